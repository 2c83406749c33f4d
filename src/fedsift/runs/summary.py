"""What a run's lines add up to: the part of its summary that needs nothing but the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsift.protocol.findings import Findings

# What a paper's table takes from a curve of one value a round
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveSummary:
    best: float
    best_round: int | None
    """The first round that reaches `best`, from 0; None for a curve without values."""
    last: float
    """Mean of the last rounds."""
    best_from: float
    """The best value from a given round on; NaN if the curve is shorter."""


def summarise_curve(curve: ArrayLike, last: int = 10, from_round: int = 0) -> CurveSummary:
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


CURVES = ("accuracy", "bacc", "auc", "map", "mean_site_accuracy")
LAST = 10
"""Rounds over which "last" is averaged, as FedNoRo's tables do."""


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Best and last of every curve, the sites called noisy last, what travelled, what was refused."""
    result: dict[str, Any] = {"rounds": len(rows)}
    for name in CURVES:
        curve = [row[name] for row in rows if row.get(name) is not None]
        if curve:
            found = summarise_curve(curve, last=LAST)
            where = [row["round"] for row in rows if row.get(name) is not None]
            result[name] = {
                "best": found.best,
                "best_round": None if found.best_round is None else where[found.best_round],
                "last": found.last,
                "final": curve[-1],
            }
    findings = Findings.last(rows)
    if findings is not None:
        result["noisy_sites_found"] = None if findings.no_clean_reference else list(findings.noisy)
        result["findings"] = findings.line()
    result["bytes_down"] = sum(row["bytes_down"] for row in rows)
    result["bytes_up"] = sum(row["bytes_up"] for row in rows)
    result["participations"] = sum(row["participants"] for row in rows)
    result["refused"] = sum(len(row["refused"]) for row in rows)
    result["seconds"] = round(sum(row["seconds"] for row in rows), 3)
    result["warnings"] = list(dict.fromkeys(text for row in rows for text in row.get("warnings", ())))
    return result


def refusals(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many replies of each site were refused, for the sites that had any."""
    counts: dict[str, int] = {}
    for row in rows:
        for site in row["refused"]:
            counts[site] = counts.get(site, 0) + 1
    return counts
