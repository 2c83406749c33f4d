"""What the consortium gets of a site: a row of shares and whole counts, never a small count, never a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsift.label_audit.site_audit import AuditFinding, SiteAudit, WrongShare


@dataclass(frozen=True)
class CensoredCounts:
    """Counts after small cells were taken out. A cell is None where it went into its row's remainder."""

    cells: tuple[tuple[int | None, ...], ...]
    """`[R][C]`."""
    remainders: tuple[int | None, ...]
    """`[R]`: what the row's withheld cells add up to; None where the whole row went into `remainder`."""
    remainder: int | None
    """What the rows that are withheld as a whole add up to; None where even that is below the floor."""
    lumped_by: str = "given"
    """Which class of a pair the remainders are of: the rows' ("given"), or the columns' ("probable")."""


def withhold(counts: NDArray[np.int64], floor: int) -> CensoredCounts:
    """Cells below the floor leave in lumps only, and every lump reaches the floor.

    A row's small cells (zeros too: "nobody" is a count) become its remainder. A remainder that is itself below the
    floor takes the row's smallest shown cells with it until it is not, because a reader who knows the row's sum could
    take the shown cells away from it. A row that is too small as a whole goes into the site's remainder, which takes
    further rows with it in the same way.
    """
    shown = [[int(value) >= floor for value in row] for row in counts]
    for row, keep in zip(counts, shown):
        while not all(keep) and _hidden(row, keep) < floor and any(keep):
            keep[min((c for c in range(len(keep)) if keep[c]), key=lambda c: int(row[c]))] = False
    whole = [int(row.sum()) < floor for row in counts]
    while any(whole) and sum(int(counts[r].sum()) for r in np.flatnonzero(whole)) < floor and not all(whole):
        whole[min((r for r in range(len(whole)) if not whole[r]), key=lambda r: int(counts[r].sum()))] = True
    lump = sum(int(counts[r].sum()) for r in np.flatnonzero(whole))
    cells = tuple(
        tuple(int(v) if k and not hidden else None for v, k in zip(row, keep))
        for row, keep, hidden in zip(counts, shown, whole)
    )
    remainders = tuple(None if hidden else _hidden(row, keep) for row, keep, hidden in zip(counts, shown, whole))
    return CensoredCounts(cells, remainders, (lump if lump >= floor else None) if any(whole) else 0)


def _hidden(row: NDArray[np.int64], keep: list[bool]) -> int:
    return int(sum(int(value) for value, shown in zip(row, keep) if not shown))


@dataclass(frozen=True)
class SiteRow:
    """A site's row in the consortium's table: all that leaves it."""

    site: str
    samples: int | None
    """Training samples; None below the floor."""
    flagged: int | None
    """Of them on the list of suspects; None where it, or the number of the others, is below the floor."""
    rate: WrongShare | None
    """Estimated share of wrong labels; None for a site below the floor, and NaN as its estimate where only the interval
    is told, since so few labels are wrong, or right, though not none, that the number is below the floor."""
    finding: AuditFinding | None
    classes: tuple[str, ...]
    agreement: CensoredCounts
    """Row: given class, column: probably true class; multi-label as in `SiteAudit.agreement`."""
    floor: int
    method: str


def release(audit: SiteAudit, floor: int | None = None) -> SiteRow:
    """The row that a site hands out, with its own floor."""
    least = audit.floor if floor is None else floor
    train = ~audit.is_test
    samples, flagged = int(train.sum()), int(audit.flagged[train].sum())
    enough = samples >= least
    both = flagged >= least and samples - flagged >= least
    return SiteRow(
        site=audit.site,
        samples=samples if enough else None,
        flagged=flagged if both else None,
        rate=_told(audit, samples, least) if enough else None,
        finding=audit.finding if enough else None,
        classes=audit.classes,
        agreement=withhold(audit.agreement, least),
        floor=least,
        method=audit.evidence.method,
    )


def _told(audit: SiteAudit, samples: int, floor: int) -> WrongShare:
    """The rate as the last reply tells it: a share of few labels would tell the count that the floor withholds."""
    from fedsift.detection.label_rates import SiteRate
    from fedsift.formulas.small_counts import WITHHELD
    from fedsift.label_audit.messages import released_rate

    labels = max(samples * audit.asked, 1)
    wrong, low, high = (round(share * labels) for share in (audit.rate.estimate, audit.rate.low, audit.rate.high))
    told = released_rate(SiteRate(labels, wrong, low, high, audit.finding.wrong_labels), floor)
    estimate = math.nan if told.wrong == WITHHELD else told.wrong / labels
    rate = replace(audit.rate, estimate=estimate, low=told.low / labels, high=told.high / labels)
    return rate.at_stated_rate(audit.finding.wrong_labels, labels) if audit.finding.stated else rate
