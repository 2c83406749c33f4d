"""What a finished run leaves behind: sites.csv, summary.json, the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save

from fedsift.core.json_values import plain
from fedsift.data.dataset import FederatedDataset
from fedsift.formulas.metrics import (
    CorrectionScores,
    correction,
    correction_per_class,
    detect_samples,
    detect_sets,
    roc_area,
)
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Weights
from fedsift.protocol.notebook import evidence_of
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import refusals, summarise
from fedsift.runtime.federation import EngineFederation, SimulationSettings
from fedsift.study.study import Study
from fedsift.training import native

# What a method did to the labels, against the truth that only a simulation knows
# ------------------------------------------------------------------------------


def summarise_corrections(
    spread: FederatedDataset,
    notebooks: Mapping[str, Mapping[str, Any]],
    levels: Mapping[str, float] | None = None,
) -> dict[str, Any] | None:
    """The `corrections` part of a run's summary; None when no method touched a label or the truth is unknown.

    notebooks: pages by site. levels: noise levels that a method estimated, by site.
    """
    if spread.truth is None or all(evidence_of(pages).empty for pages in notebooks.values()):
        return None
    clean = {site: np.asarray(spread.truth.clean[site]) for site in spread.sites}
    labels_to_train_on = {site: _page(notebooks, site, "labels", spread.given[site]) for site in spread.sites}
    each = {site: correction(clean[site], spread.given[site], labels_to_train_on[site]) for site in spread.sites}
    true, before, after = (
        np.concatenate([part[site] for site in spread.sites]) for part in (clean, spread.given, labels_to_train_on)
    )
    result: dict[str, Any] = {
        "overall": _shown(correction(true, before, after)),
        "per_class": {
            name: _shown(found)
            for name, found in zip(
                spread.dataset.classes, correction_per_class(true, before, after, spread.dataset.n_classes)
            )
        },
        "per_site": {site: _shown(found) for site, found in each.items()},
        "samples": _sample_detection(spread, notebooks, clean),
    }
    if levels:
        result["noise_level"] = _level_error(levels, each)
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def _page(notebooks: Mapping[str, Mapping[str, Any]], site: str, page: str, default: NDArray[Any]) -> NDArray[Any]:
    """A field of the evidence as an array of the labels' shape, the default where a site has none that fits."""
    kept = getattr(evidence_of(notebooks.get(site, {})), page)
    if kept is None:
        return default
    values = np.asarray(kept)
    return values if values.shape == default.shape else default


def _shown(found: CorrectionScores) -> dict[str, Any]:
    counts: dict[str, Any] = plain(found)
    return {**counts, "noise_before": found.noise_before, "noise_after": found.noise_after}


def _sample_detection(
    spread: FederatedDataset, notebooks: Mapping[str, Mapping[str, Any]], clean: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Flagged samples of all sites against wrong given labels; a site without flags flagged nothing.

    auroc: over all labels that have a suspicion; auroc_within_sites: the mean of the sites' own.
    """
    wrong: list[NDArray[np.bool_]] = []
    marked: list[NDArray[np.bool_]] = []
    scored: list[tuple[NDArray[np.bool_], NDArray[np.float64]]] = []
    for site in spread.sites:
        bad = clean[site] != spread.given[site]
        wrong.append(bad.ravel())
        unmarked = np.zeros(bad.shape, dtype=np.bool_)
        marked.append(_page(notebooks, site, "flagged", unmarked).astype(np.bool_).ravel())
        unscored = np.full(bad.shape, np.nan)
        suspicion = _page(notebooks, site, "suspicion", unscored).astype(np.float64)
        judged = ~np.isnan(suspicion)
        if judged.any():
            scored.append((bad[judged], suspicion[judged]))
    found = detect_samples(np.concatenate(wrong), np.concatenate(marked))
    own = [area for bad, score in scored if not np.isnan(area := roc_area(bad, score))]
    pooled = float("nan")
    if scored:
        pooled = roc_area(np.concatenate([b for b, _ in scored]), np.concatenate([s for _, s in scored]))
    return {
        "tp": found.tp,
        "fp": found.fp,
        "fn": found.fn,
        "tn": found.tn,
        "precision": found.precision,
        "recall": found.recall,
        "f1": found.f1,
        "auroc": pooled,
        "auroc_within_sites": float(np.mean(own)) if own else float("nan"),
    }


def _level_error(levels: Mapping[str, float], each: Mapping[str, CorrectionScores]) -> dict[str, float]:
    """Mean absolute error of the estimated noise levels, against the given and against the believed labels.

    A method that corrects as it goes estimates what is left (FedCorr Fig. 7); another one, what was given.
    """
    sites = [site for site in levels if site in each]
    return {
        "mean_error_given": float(np.mean([abs(levels[s] - each[s].noise_before) for s in sites])),
        "mean_error_believed": float(np.mean([abs(levels[s] - each[s].noise_after) for s in sites])),
        "sites": len(sites),
    }


def write_results(study: Study, folder: RunFolder, federation: EngineFederation, state: Any) -> dict[str, Any]:
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


def model_card(study: Study, federation: EngineFederation, spread: FederatedDataset | None) -> dict[str, Any]:
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
    folder.write_bytes("model.safetensors", bytes(save({key: value.contiguous() for key, value in weights.items()})))


def _against_the_truth(simulation: SimulationSettings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the sites called noisy compare with those that are, and what became of the labels."""
    spread, result = simulation.spread, {}
    found = Findings.last(rows)
    if found is not None and spread.truth is not None and not found.no_clean_reference:
        result["detection"] = site_detection(spread, list(found.noisy))
    corrections = summarise_corrections(spread, simulation.notebooks, None if found is None else found.level)
    if corrections is not None:
        result["corrections"] = corrections
    return result


def site_detection(spread: FederatedDataset, claimed: list[str]) -> dict[str, Any]:
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
    federation: EngineFederation, spread: FederatedDataset | None, rows: list[dict[str, Any]]
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


def _truth_of(spread: FederatedDataset, site: str) -> Mapping[str, Any]:
    given = spread.given[site]
    counts = given.sum(0) if given.ndim == 2 else np.bincount(given, minlength=spread.dataset.n_classes)
    line: dict[str, Any] = {"given_label_counts": counts.tolist()}
    if spread.truth is not None:
        line["truth_noisy"] = site in spread.truth.noisy
        line["truth_level"] = spread.truth.level.get(site, 0.0)
        line["truth_noise_rate"] = spread.truth.effective_rate(site, given)
    return line
