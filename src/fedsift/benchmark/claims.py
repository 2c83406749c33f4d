"""Judges a paper's claims and printed figures by our runs, paired over seeds: holds, does not hold, not decided or
open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsift.benchmark.figures import lower_is_better
from fedsift.benchmark.table import PaperClaim, Table
from fedsift.formulas.intervals import PairedDifference, paired

if TYPE_CHECKING:
    from fedsift.benchmark.summary import TableFigure

HOLDS, IN_THE_MEAN, UNDECIDED, NOT, OPEN = (
    "holds",
    "holds in the mean",
    "not decided",
    "does not hold",
    "open",
)
"""`holds`: every difference has the stated sign and its 95 % interval leaves 0 out (for `alike`: lies within the
stated bound; for `printed`: the means do, as a paper's own figures come with no seeds to pair with). `holds in the
mean`: the sign is right everywhere, an interval crosses 0, though by no more than the mean is above it. `not decided`:
the sign is right everywhere, but an interval reaches farther below 0 than its mean is above (for `alike`: farther out
of the bound than its mean is within), as that of a single seed does. `does not hold`: a mean is 0 or has the
other sign, however wide its interval: it is the claim that has to be shown. `open`: runs are missing."""
PAPER, ON_AVERAGE = "the paper", "the mean over all, whatever the sign"
FROM_WORST = (OPEN, NOT, UNDECIDED, IN_THE_MEAN, HOLDS)


@dataclass(frozen=True)
class Difference:
    """One pair of rows in one column."""

    better: str
    worse: str
    column: str
    found: PairedDifference | None
    """How far `better` is above `worse` in the stated direction; None where there is no common seed."""
    verdict: str


@dataclass(frozen=True)
class ClaimOutcome:
    claim: PaperClaim
    figure: str
    verdict: str
    differences: tuple[Difference, ...]

    @property
    def against(self) -> tuple[Difference, ...]:
        """The differences, those first that speak most against the claim."""
        return tuple(sorted(self.differences, key=lambda d: (FROM_WORST.index(d.verdict), self._for(d))))

    def _for(self, difference: Difference) -> float:
        if difference.found is None:
            return 0.0
        near = self.claim.alike or self.claim.printed
        return -abs(difference.found.mean) if near else difference.found.low


def judge(claim: PaperClaim, table: Table, entries: Sequence[TableFigure]) -> ClaimOutcome:
    """A claim against the entries that are there."""
    figure = claim.figure or table.figures[0]
    found = {(e.row, e.column): e for e in entries if e.figure == figure}
    columns = [c.label for c in table.columns if not claim.columns or c.label in claim.columns]
    differences = []
    for column in columns:
        for better, worse in pairs_of(claim, table):
            if (better, column) in found and (worse, column) in found:
                one, other = found[better, column], found[worse, column]
                pair = _paired(one, other, figure)
                whole = min(one.runs, other.runs) >= len(table.seeds)
                verdict = _verdict(claim, pair) if whole else OPEN
                differences.append(Difference(better, worse, column, pair, verdict))
    differences += _reproduced(claim, columns, found)
    overall = min((d.verdict for d in differences), key=FROM_WORST.index, default=OPEN)
    return ClaimOutcome(claim, figure, overall, tuple(differences))


def judged(table: Table, entries: Sequence[TableFigure]) -> tuple[ClaimOutcome, ...]:
    """All claims of a table, each followed by those that explain it."""
    found = [judge(claim, table, entries) for claim in table.claims]
    return tuple(
        verdict
        for stated in found
        if not stated.claim.explains
        for verdict in (stated, *(why for why in found if why.claim.explains == stated.claim.text))
    )


def pairs_of(claim: PaperClaim, table: Table) -> Iterator[tuple[str, str]]:
    """Pairs of rows, the one that should be better first."""
    yield from zip(claim.order, claim.order[1:])
    ends = {claim.first, claim.last}
    others = claim.over or tuple(row.label for row in table.rows if row.label not in ends)
    if claim.first:
        yield from ((claim.first, other) for other in others)
    if claim.last:
        yield from ((other, claim.last) for other in others)
    yield from ((one, other) for n, one in enumerate(claim.alike) for other in claim.alike[n + 1 :])


def _reproduced(
    claim: PaperClaim, columns: Sequence[str], found: Mapping[tuple[str, str], TableFigure]
) -> Iterator[Difference]:
    """Every printed figure beside ours, then the mean distance of all of them."""
    pairs = []
    for row in claim.printed:
        for column in columns:
            entry = found.get((row, column))
            if entry is None or entry.printed is None:
                continue
            pair = None
            if entry.values:
                pair = paired(list(entry.values.values()), [entry.printed] * len(entry.values))
            pairs.append(pair)
            verdict = OPEN if pair is None else HOLDS if abs(pair.mean) <= claim.within else NOT
            yield Difference(row, PAPER, column, pair, verdict)
    known = [abs(pair.mean) for pair in pairs if pair is not None]
    if pairs and claim.on_average < math.inf:
        mean = None if len(known) < len(pairs) else paired(known, [0.0] * len(known))
        verdict = OPEN if mean is None else HOLDS if mean.mean <= claim.on_average else NOT
        yield Difference("ours", PAPER, ON_AVERAGE, mean, verdict)


def _paired(one: TableFigure, other: TableFigure, figure: str) -> PairedDifference | None:
    """A run that never reached its target counts with all its visits: it would have needed more. Pairs in which neither
    did say nothing."""
    first, second = {**one.never, **one.values}, {**other.never, **other.values}
    seeds = [s for s in first if s in second and (s in one.values or s in other.values)]
    if not seeds:
        return None
    sign = -1.0 if lower_is_better(figure) else 1.0
    return paired([sign * first[s] for s in seeds], [sign * second[s] for s in seeds])


def _verdict(claim: PaperClaim, found: PairedDifference | None) -> str:
    if found is None:
        return OPEN
    # by how much the mean, and the end of its interval that speaks against the claim, are on the stated side
    if claim.alike:
        mean, end = claim.within - abs(found.mean), claim.within - max(found.high, -found.low)
        if mean < 0:
            return NOT
        holds = end >= 0
    else:
        mean, end = found.mean, found.low
        if mean <= 0:
            return NOT
        holds = end > 0
    return HOLDS if holds else IN_THE_MEAN if -end <= mean else UNDECIDED
