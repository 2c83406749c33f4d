"""What a finished run leaves behind: sites.csv, summary.json, the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsift.data.dataset import Spread
from fedsift.engines.federation import EngineFederation
from fedsift.engines.inprocess import InProcess
from fedsift.engines.runfolder import RunFolder
from fedsift.local import native
from fedsift.local.dispatch import decisions
from fedsift.metrics import detect_sets
from fedsift.metrics import summarise as summarise_curve
from fedsift.study.corrections import summarise_corrections
from fedsift.study.study import Study

CURVES = ("accuracy", "bacc", "auc", "map")
LAST = 10
"""Rounds over which "last" is averaged, as FedNoRo's tables do."""


def write_results(
    study: Study,
    folder: RunFolder,
    federation: EngineFederation,
    state: Any,
    spread: Spread | None = None,
    notebooks: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """`spread`, `notebooks`: what a simulation knows of its data and its sites; a deployed run has neither."""
    rows = folder.rounds()
    if isinstance(federation, InProcess):
        spread, notebooks = federation.spread, federation.notebooks
    weights = study.method.model(state)
    if weights is not None:
        folder.save_model(weights)
        folder.write_json("model.json", model_card(study, federation, spread))
    folder.write_table("sites.csv", site_table(federation, spread, rows))
    summary = {
        "study": study.name,
        "method": study.method_name,
        "model": study.model.name,
        "dataset": spread.dataset.name if spread else "",
        "classes": list(federation.classes),
        "seed": study.seed,
        "engine": study.engine.name,
        "sites": len(federation.sites),
        "trainers": decisions(),
        "kernels": "torch" if native.library() is None else "native",
        **summarise(rows, spread),
        **_corrections(federation, spread, notebooks),
        "notes": list(spread.notes) if spread else [],
    }
    folder.write_json("summary.json", summary)
    return summary


def model_card(study: Study, federation: EngineFederation, spread: Spread | None) -> dict[str, Any]:
    """What it takes to apply the model: its network, the shape of a sample, how pixels are normalised, the classes.

    Sites that are not simulated keep the normalisation to themselves: then `mean` and `std` are null.
    """
    return {
        "model": study.model.name,
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        "multilabel": federation.multilabel,
        "mean": None if spread is None else list(spread.dataset.mean),
        "std": None if spread is None else list(spread.dataset.std),
    }


def _corrections(
    federation: EngineFederation, spread: Spread | None, notebooks: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """What became of the labels, for methods that touch them in a simulation."""
    if spread is None or notebooks is None:
        return {}
    levels = federation.site_records.get("noise_level")
    found = summarise_corrections(spread, notebooks, levels)
    return {} if found is None else {"corrections": found}


def summarise(rows: list[dict[str, Any]], spread: Spread | None) -> dict[str, Any]:
    """Best and last of every curve, detection against the truth, what travelled, what was refused."""
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
    claims = [row["noisy_sites"] for row in rows if row.get("noisy_sites") is not None]
    if claims:
        result["noisy_sites_found"] = claims[-1]
        if spread is not None and spread.truth is not None:
            result["detection"] = site_detection(spread, claims[-1])
    result["bytes_down"] = sum(row["bytes_down"] for row in rows)
    result["bytes_up"] = sum(row["bytes_up"] for row in rows)
    result["participations"] = sum(row["participants"] for row in rows)
    result["refused"] = sum(len(row["refused"]) for row in rows)
    result["seconds"] = round(sum(row["seconds"] for row in rows), 3)
    result["warnings"] = list(dict.fromkeys(text for row in rows for text in row.get("warnings", ())))
    return result


def site_detection(spread: Spread, claimed: list[str]) -> dict[str, Any]:
    """Precision and recall of the sites called noisy, against those that the simulation made noisy."""
    assert spread.truth is not None
    truth = list(spread.truth.noisy)
    scores = detect_sets([claimed], truth)
    return {
        "precision": scores.precision,
        "recall": scores.recall,
        "exact": set(truth) == set(claimed),
        "truth": truth,
        "missed": sorted(set(truth) - set(claimed)),
        "false_alarms": sorted(set(claimed) - set(truth)),
    }


def site_table(
    federation: EngineFederation, spread: Spread | None, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One line a site: what it declared, what was found and recorded of it, and the truth where it is known."""
    refused: dict[str, int] = {}
    for row in rows:
        for site in row["refused"]:
            refused[site] = refused.get(site, 0) + 1
    table = []
    for site, facts in federation.facts.items():
        line: dict[str, Any] = {
            "site": site,
            "samples": facts.samples,
            "held_out": facts.held_out,
            "model": facts.model,
        }
        line.update({name: values.get(site) for name, values in federation.site_records.items()})
        line["replies_refused"] = refused.get(site, 0)
        if spread is not None:
            line.update(_truth_of(spread, site))
        table.append(line)
    return table


def _truth_of(spread: Spread, site: str) -> Mapping[str, Any]:
    given = spread.given[site]
    counts = given.sum(0) if given.ndim == 2 else np.bincount(given, minlength=spread.dataset.n_classes)
    line: dict[str, Any] = {"given_label_counts": counts.tolist()}
    if spread.truth is not None:
        line["truth_noisy"] = site in spread.truth.noisy
        line["truth_level"] = spread.truth.level.get(site, 0.0)
        line["truth_noise_rate"] = spread.truth.effective_rate(site, given)
    return line
