"""What a paper's table takes from a curve of one value a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class CurveSummary:
    best: float
    best_round: int | None
    """The first round that reaches `best`, from 0; None for a curve without values."""
    last: float
    """Mean of the last rounds."""
    best_from: float
    """The best value from a given round on; NaN if the curve is shorter."""


def summarise(curve: ArrayLike, last: int = 10, from_round: int = 0) -> CurveSummary:
    """What a table takes from a curve; rounds without a value (NaN) are passed over.

    last: how many rounds at the end are averaged (all if fewer); from_round: where `best_from` begins.
    """
    values = np.asarray(curve, dtype=np.float64).ravel()
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return CurveSummary(float("nan"), None, float("nan"), float("nan"))
    best_round = int(known[values[known].argmax()])
    later = known[known >= from_round]
    return CurveSummary(
        best=float(values[best_round]),
        best_round=best_round,
        last=float(values[known[-last:] if last > 0 else known[:0]].mean()) if last > 0 else float("nan"),
        best_from=float(values[later].max()) if len(later) else float("nan"),
    )


def targeted_cost(accuracy: Sequence[float], participants: Sequence[int], target: float) -> int | None:
    """Participations until the first round with accuracy >= target, this one included; None if never.

    FedCorr C.3 counts every site in every round.
    """
    reached = np.flatnonzero(np.asarray(accuracy, dtype=np.float64) >= target)
    return int(sum(participants[: reached[0] + 1])) if len(reached) else None
