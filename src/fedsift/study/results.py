"""What a finished run leaves behind: sites.csv, summary.json, the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.torch import save

from fedsift.contract.findings import Findings
from fedsift.contract.messages import Weights
from fedsift.data.dataset import Spread
from fedsift.engines.federation import EngineFederation, Simulation
from fedsift.local import native
from fedsift.metrics import detect_sets
from fedsift.runs import RunFolder, refusals, summarise
from fedsift.study.corrections import summarise_corrections
from fedsift.study.study import Study


def write_results(
    study: Study, folder: RunFolder, federation: EngineFederation, state: Any
) -> dict[str, Any]:
    """The model, the site table and the summary; what a simulation knows besides goes into them."""
    rows = folder.rounds()
    simulation = federation.simulation
    spread = None if simulation is None else simulation.spread
    weights = study.method.model(state)
    if weights is not None:
        save_model(folder, weights)
        folder.write_json("model.json", model_card(study, federation, spread))
    folder.write_table("sites.csv", site_table(federation, spread, rows))
    summary = {
        "study": study.name,
        "method": study.method_name,
        "model": study.model.name,
        "dataset": spread.dataset.name if spread else "",
        "classes": list(federation.classes),
        "oracle": study.method.oracle,
        "seed": study.seed,
        "engine": study.engine.name,
        "sites": len(federation.sites),
        "trainers": dict(federation.cohorts),
        "kernels": "torch" if native.library() is None else "native",
        **summarise(rows),
        **({} if simulation is None else _against_the_truth(simulation, rows)),
        "notes": list(spread.notes) if spread else [],
    }
    folder.write_json("summary.json", summary)
    return summary


def model_card(study: Study, federation: EngineFederation, spread: Spread | None) -> dict[str, Any]:
    """What it takes to apply the model: its network, the shape of a sample, how pixels are normalised, the classes,
    and the scale of a table's features.

    Sites that are not simulated keep the normalisation to themselves: then `mean`, `std` and `scale` are null.
    """
    return {
        "model": study.model.name,
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        "multilabel": federation.multilabel,
        "mean": None if spread is None else list(spread.dataset.mean),
        "std": None if spread is None else list(spread.dataset.std),
        "scale": None if spread is None else spread.dataset.scale,
    }


def save_model(folder: RunFolder, weights: Weights) -> None:
    """The weights as a plain safetensors file, readable by any tool."""
    folder.write_bytes(
        "model.safetensors", bytes(save({key: value.contiguous() for key, value in weights.items()}))
    )


def _against_the_truth(simulation: Simulation, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the sites called noisy compare with those that are, and what became of the labels."""
    spread, result = simulation.spread, {}
    found = Findings.last(rows)
    if found is not None and spread.truth is not None and not found.no_clean_reference:
        result["detection"] = site_detection(spread, list(found.noisy))
    corrections = summarise_corrections(spread, simulation.notebooks, None if found is None else found.level)
    if corrections is not None:
        result["corrections"] = corrections
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
    refused = refusals(rows)
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
