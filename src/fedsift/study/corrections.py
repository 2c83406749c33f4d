"""What a method did to the labels, against the truth that only a simulation knows.

It reads the evidence in the sites' notebooks after the run: the labels that a site believes now, which it flagged,
how suspect each is. A method never sees any of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.evidence import evidence_of
from fedsift.contract.plain import plain
from fedsift.data.dataset import Spread
from fedsift.metrics import correction, correction_per_class, detect_samples, roc_area
from fedsift.metrics.correction import Correction


def summarise_corrections(
    spread: Spread, notebooks: Mapping[str, Mapping[str, Any]], levels: Mapping[str, float] | None = None
) -> dict[str, Any] | None:
    """The `corrections` part of a run's summary; None when no method touched a label or the truth is unknown.

    notebooks: pages by site. levels: noise levels that a method estimated, by site.
    """
    if spread.truth is None or all(evidence_of(pages).empty for pages in notebooks.values()):
        return None
    clean = {site: np.asarray(spread.truth.clean[site]) for site in spread.sites}
    believed = {site: _page(notebooks, site, "labels", spread.given[site]) for site in spread.sites}
    each = {site: correction(clean[site], spread.given[site], believed[site]) for site in spread.sites}
    true, before, after = (
        np.concatenate([part[site] for site in spread.sites]) for part in (clean, spread.given, believed)
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


def _page(
    notebooks: Mapping[str, Mapping[str, Any]], site: str, page: str, default: NDArray[Any]
) -> NDArray[Any]:
    """A field of the evidence as an array of the labels' shape, the default where a site has none that fits."""
    kept = getattr(evidence_of(notebooks.get(site, {})), page)
    if kept is None:
        return default
    values = np.asarray(kept)
    return values if values.shape == default.shape else default


def _shown(found: Correction) -> dict[str, Any]:
    counts: dict[str, Any] = plain(found)
    return {**counts, "noise_before": found.noise_before, "noise_after": found.noise_after}


def _sample_detection(
    spread: Spread, notebooks: Mapping[str, Mapping[str, Any]], clean: Mapping[str, NDArray[Any]]
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


def _level_error(levels: Mapping[str, float], each: Mapping[str, Correction]) -> dict[str, float]:
    """Mean absolute error of the estimated noise levels, against the given and against the believed labels.

    A method that corrects as it goes estimates what is left (FedCorr Fig. 7); another one, what was given.
    """
    sites = [site for site in levels if site in each]
    return {
        "mean_error_given": float(np.mean([abs(levels[s] - each[s].noise_before) for s in sites])),
        "mean_error_believed": float(np.mean([abs(levels[s] - each[s].noise_after) for s in sites])),
        "sites": len(sites),
    }
