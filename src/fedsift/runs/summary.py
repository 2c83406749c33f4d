"""What a run's lines add up to: the part of its summary that needs nothing but the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.contract.findings import Findings
from fedsift.runs.curves import summarise as summarise_curve

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
