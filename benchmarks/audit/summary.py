"""What the cells' files say together: means over seeds, and ratios with their paired interval."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.files import read_list, read_tree, replaced
from scipy.stats import t

from fedsift.benchmark.rows import flat, write_rows
from fedsift.detection.any_wrong_labels import FEW, VAGUE
from fedsift.detection.label_posterior import FOLLOWS, ODDS_POWER
from fedsift.detection.label_rates import STRETCH, SURE
from fedsift.detection.label_thresholds import APPLY

SETTINGS = {
    "follows": FOLLOWS,
    "few": FEW,
    "spread": ODDS_POWER,
    "stretch": STRETCH,
    "apply": APPLY,
    "vague": VAGUE,
    "sure": SURE,
}
"""What the posterior was set to: a cell that was measured with anything else is of an earlier model."""


CELLS, RANKING, SITES = "cells.csv", "ranking.csv", "sites.csv"
KEY = ("scenario", "seed")


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Mean of the paired ratios over seeds and the lower end of its 95 % interval (Student's t)."""
    values = np.array(ours) / np.array(theirs)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half)


def difference(values: list[float]) -> tuple[float, float]:
    """Mean of paired differences over seeds and half of its 95 % interval (Student's t)."""
    each = np.array(values)
    if len(each) < 2:
        return float(each.mean()), float("nan")
    return float(each.mean()), float(t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)))


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every cell with its ranking and its sites, by scenario."""
    rankings = read_tree(folder / RANKING, (*KEY, "score"))
    sites = read_tree(folder / SITES, (*KEY, "site"))
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in read_list(folder / CELLS):
        name, seed = cell["scenario"], cell["seed"]
        if seed in rankings.get(name, {}):
            cell["ranking"] = rankings[name][seed]
        cell["ours"]["sites"] = list(sites[name][seed].values())
        cells[name].append(cell)
    return cells


def keep(folder: Path, cell: dict[str, Any]) -> None:
    """One more cell: a row in `cells.csv`, one for each score in `ranking.csv`, one for each site in `sites.csv`."""
    place = {name: cell[name] for name in KEY}
    ours = {name: value for name, value in cell["ours"].items() if name != "sites"}
    whole = {name: value for name, value in cell.items() if name != "ranking"} | {"ours": ours}
    rows = {
        CELLS: [flat(whole)],
        RANKING: [{**place, "score": score, **figures} for score, figures in cell.get("ranking", {}).items()],
        SITES: [{**place, "site": number, **site} for number, site in enumerate(cell["ours"]["sites"])],
    }
    for (name, new), further in zip(rows.items(), ((), ("score",), ("site",))):
        write_rows(folder / name, replaced(folder / name, new, **place), (*KEY, *further))


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """One scenario over its seeds."""
    sites = [site for cell in cells for site in cell["ours"]["sites"] if site["samples"]]
    errors = [abs(site["estimated"] - site["wrong"]) / site["samples"] for site in sites]
    inside = [site["low"] <= site["wrong"] <= site["high"] for site in sites]
    line: dict[str, Any] = {
        "seeds": len(cells),
        "current": all(cell["ours"].get("settings") == SETTINGS for cell in cells),
        "wrong": np.mean([cell["wrong"] / cell["samples"] for cell in cells]),
        "rate_error_points": 100 * np.mean(errors),
        "coverage": np.mean(inside),
        "calibration_error": np.mean([cell["ours"]["calibration_error"] for cell in cells]),
        "flagged_share": np.mean([cell["ours"]["flagged"] / cell["samples"] for cell in cells]),
        "evidence": np.mean([site["evidence"] for site in sites]),
        "fixed_share": np.mean([cell["ours"]["fixed"] / max(cell["wrong"], 1) for cell in cells]),
        "fixed_per_harmed": sum(cell["ours"]["fixed"] for cell in cells)
        / max(sum(cell["ours"]["harmed"] for cell in cells), 1),
    }
    if all("ranking" in cell for cell in cells):
        rows = [key for key in cells[0]["ranking"] if all(key in cell["ranking"] for cell in cells)]
        ap = {key: [cell["ranking"][key]["ap"] for cell in cells] for key in rows}
        line["ap"] = {key: float(np.mean(values)) for key, values in ap.items()}
        line["recall_at_budget"] = np.mean([cell["ranking"]["ours"]["recall_at_budget"] for cell in cells])
        line["over_pooled"] = ratio(ap["ours"], ap["cleanlab, pooled"])
        line["over_local"] = ratio(ap["ours"], ap["cleanlab, each site alone"])
    return line


def print_summary(folder: Path) -> None:
    for name, cells in read(folder).items():
        line = summary(cells)
        print(f"\n{name}: {line['seeds']} seeds, {line['wrong']:.1%} wrong")
        if "ap" in line:
            print("  AP  " + "; ".join(f"{key} {value:.3f}" for key, value in line["ap"].items()))
            for key in ("over_pooled", "over_local"):
                print(f"  {key}: {line[key][0]:.3f}, lower end {line[key][1]:.3f}")
        print(
            f"  rate error {line['rate_error_points']:.1f} points, coverage {line['coverage']:.2f}, calibration "
            f"{line['calibration_error']:.3f}, flagged {line['flagged_share']:.3f}, evidence {line['evidence']:.2f}, "
            f"fixed {line['fixed_share']:.2f}, {line['fixed_per_harmed']:.1f} for each harmed"
        )
