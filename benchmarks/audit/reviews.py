"""`python -m benchmarks.audit.reviews [--reviews 100]`: simulated reviews, looked at after every verdict.

A site of 200, 500, 1,000 or 2,000 labels, some of them wrong, is read in a random order by the product's rule: a label
that every reader called wrong so far goes to the next reader, of three; others are done. After every verdict the
product's e-values are computed, and the review ends where one decides, after 400 labels, or at the last label.

Readers are mistaken on their own, except in the rows with shared mistakes, where half of the mistakes are on labels
that every reader mistakes; and there are three, except in the rows with one. An error is a conviction where 2 % or
fewer are wrong or a withdrawal where 12 % or more are. The confidence sequence is looked at after every verdict in
every fifth review; it fails where it misses the site's share at any of these looks.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.audit.files import REVIEWS, REVIEWS_KEY
from benchmarks.files import write_list

from fedsift.formulas.intervals import (
    ALLOWED,
    CLEARED,
    EVIDENCE,
    MOST_READERS,
    conviction,
    share_read,
    withdrawal,
)
from fedsift.label_audit.review import MOST_TO_DECIDE
from fedsift.label_audit.site_audit import CONVICTED, OPEN, WITHDRAWN

SIZES = (200, 500, 1000, 2000)
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, CLEARED, 0.2, 0.4)
ERRORS = (0.0, 0.02, 0.1, 0.15)
SEED = 20_261
"""The mixtures were chosen with another."""
EVERY = 5


@dataclass(frozen=True)
class Cell:
    """One kind of review."""

    share: float
    reader_error: float
    readers: int = MOST_READERS
    shared: float = 0.0
    """Share of the mistakes that all readers make together."""


def cells() -> Iterator[Cell]:
    for error in ERRORS:
        for share in SHARES:
            yield Cell(share, error)
    for share in (0.0, CLEARED, 0.2, 0.4):
        yield Cell(share, 0.1, readers=1)
        yield Cell(share, 0.1, shared=0.5)


def verdicts(cell: Cell, size: int, rng: np.random.Generator) -> Iterator[tuple[int, bool]]:
    """Verdict after verdict: the label's place in the random order, and whether it was called wrong."""
    wrong = np.zeros(size, np.bool_)
    wrong[: round(cell.share * size)] = True
    together = rng.random(size) < cell.reader_error * cell.shared
    # so that a reader errs as often as without
    alone = cell.reader_error * (1 - cell.shared) / (1 - cell.reader_error * cell.shared)
    for place, label in enumerate(rng.permutation(size)[:MOST_TO_DECIDE]):
        for _ in range(cell.readers):
            said = bool(wrong[label] ^ (together[label] or rng.random() < alone))
            yield place, said
            if not said:
                break


def review(cell: Cell, size: int, rng: np.random.Generator, *, watched: bool) -> dict[str, Any]:
    """One review to its end; watched: whether the confidence sequence is looked at as well."""
    counts: Counter[tuple[int, int]] = Counter()
    answer, read, missed, last, kind = OPEN, 0, False, -1, (0, 0)
    truth = round(cell.share * size) / size
    for place, said in verdicts(cell, size, rng):
        if place != last:
            last, kind = place, (0, 0)
        else:
            counts[kind] -= 1
        kind = (kind[0] + said, kind[1] + 1)
        counts[kind] += 1
        read += 1
        readings: dict[tuple[int, int], float] = {key: count for key, count in counts.items() if count}
        if watched:
            found = share_read(readings)
            missed |= not found.low <= truth <= found.high
        if conviction(readings) >= math.log(EVIDENCE):
            answer = CONVICTED
        elif withdrawal(readings) >= math.log(EVIDENCE):
            answer = WITHDRAWN
        if answer != OPEN:
            break
    return {"answer": answer, "verdicts": read, "missed": missed}


def measured(cell: Cell, number: int, reviews: int) -> dict[str, Any]:
    """The row of a kind of review, `reviews` of every size."""
    made = []
    for size in SIZES:
        for k in range(reviews):
            rng = np.random.default_rng([SEED, number, size, k])
            made.append(review(cell, size, rng, watched=k % EVERY == 0))
    answers = Counter(one["answer"] for one in made)
    error = answers[CONVICTED] if cell.share <= ALLOWED else answers[WITHDRAWN] if cell.share >= CLEARED else None
    watched = [one for k, one in enumerate(made) if k % reviews % EVERY == 0]
    return {
        "readers": cell.readers,
        "shared_mistakes": cell.shared,
        "reader_error": cell.reader_error,
        "share_wrong": cell.share,
        "reviews": len(made),
        "convicted": answers[CONVICTED],
        "withdrawn": answers[WITHDRAWN],
        "open": answers[OPEN],
        "errors": error,
        "median_verdicts": median(one["verdicts"] for one in made),
        "watched": len(watched),
        "share_missed": sum(one["missed"] for one in watched),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reviews", type=int, default=100, help="of every kind and size; a fifth where readers are not as assumed"
    )
    parser.add_argument("--out", type=Path, default=REVIEWS)
    chosen = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for number, cell in enumerate(cells()):
        usual = cell.readers == MOST_READERS and not cell.shared
        lines.append(measured(cell, number, chosen.reviews if usual else chosen.reviews // 5))
        print(lines[-1], flush=True)
    write_list(chosen.out, lines, REVIEWS_KEY)


if __name__ == "__main__":
    main()
