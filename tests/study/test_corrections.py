"""The `corrections` part of a summary, from notebooks and truth by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.data.dataset import Dataset, FederatedDataset, SimulationTruth
from fedsift.protocol.notebook import EVIDENCE, LabelEvidence
from fedsift.study.running import summarise_corrections


def federated(clean: dict[str, list[int]], given: dict[str, list[int]], known: bool = True) -> FederatedDataset:
    sites = tuple(clean)
    sizes = np.cumsum([0, *(len(labels) for labels in clean.values())])
    everything = np.concatenate([np.array(labels) for labels in clean.values()])
    data = Dataset(
        name="toy",
        images=np.zeros((len(everything), 2), dtype=np.float32),
        labels=everything,
        classes=("a", "b", "c"),
        train=np.arange(len(everything)),
        test=np.zeros(0, dtype=np.int64),
    )
    truth = SimulationTruth({s: np.array(v) for s, v in clean.items()}, dict.fromkeys(sites, 0.0), ())
    return FederatedDataset(
        data,
        sites,
        {site: np.arange(sizes[i], sizes[i + 1]) for i, site in enumerate(sites)},
        {site: np.array(labels) for site, labels in given.items()},
        truth if known else None,
    )


CLEAN = {"x": [0, 0, 1, 1], "y": [2, 2]}
GIVEN = {"x": [0, 1, 1, 0], "y": [2, 1]}
"""Wrong: the 2nd and 4th of x, the 2nd of y."""


def test_fixed_harmed_missed_by_hand() -> None:
    """x believes [1, 0, 1, 2]: first harmed, second fixed, third kept, fourth still wrong and rewritten; y kept its
    labels, one right and one wrong."""
    found = summarise_corrections(
        federated(CLEAN, GIVEN), {"x": {EVIDENCE: LabelEvidence(labels=torch.tensor([1, 0, 1, 2]))}}
    )
    assert found is not None
    overall = found["overall"]
    assert [overall[k] for k in ("n", "fixed", "harmed", "missed", "kept")] == [6, 1, 1, 2, 2]
    assert (overall["missed_rewritten"], overall["missed_untouched"]) == (1, 1)
    assert overall["noise_before"] == pytest.approx(0.5)
    assert overall["noise_after"] == pytest.approx(0.5)
    assert [found["per_class"][c]["missed"] for c in "abc"] == [0, 1, 1]
    assert found["per_class"]["a"]["fixed"] == found["per_class"]["a"]["harmed"] == 1
    assert found["per_site"]["x"]["fixed"] == 1
    assert found["per_site"]["y"]["noise_after"] == pytest.approx(0.5)
    assert "noise_level" not in found


def test_sample_detection_by_hand() -> None:
    """x flags its first two: one right, one wrong; y flags nothing. Suspicion of x orders its wrong ones above one
    of two right ones each: 3/4 within the site."""
    pages = {
        "x": {
            EVIDENCE: LabelEvidence(
                flagged=torch.tensor([True, True, False, False]),
                suspicion=torch.tensor([0.9, 0.95, 0.1, 0.5]),
            )
        }
    }
    samples = (summarise_corrections(federated(CLEAN, GIVEN), pages) or {})["samples"]
    assert [samples[k] for k in ("tp", "fp", "fn", "tn")] == [1, 1, 2, 2]
    assert samples["precision"] == pytest.approx(1 / 2)
    assert samples["recall"] == pytest.approx(1 / 3)
    assert samples["auroc"] == samples["auroc_within_sites"] == pytest.approx(3 / 4)


def test_noise_level_error_by_hand() -> None:
    """x: rate 1/2 given, 1/4 believed; y: 1/2 both. Estimates 0.4 and 0.2."""
    pages = {"x": {EVIDENCE: LabelEvidence(labels=torch.tensor([0, 0, 1, 0]))}}
    found = summarise_corrections(federated(CLEAN, GIVEN), pages, {"x": 0.4, "y": 0.2, "gone": 1.0}) or {}
    assert found["noise_level"]["mean_error_given"] == pytest.approx((0.1 + 0.3) / 2)
    assert found["noise_level"]["mean_error_believed"] == pytest.approx((0.15 + 0.3) / 2)
    assert found["noise_level"]["sites"] == 2


def test_nothing_to_say_without_evidence_or_truth() -> None:
    assert summarise_corrections(federated(CLEAN, GIVEN), {"x": {"feddyn memory": {}}}) is None
    pages = {"x": {EVIDENCE: LabelEvidence(labels=torch.tensor([0, 0, 0, 0]))}}
    assert summarise_corrections(federated(CLEAN, GIVEN, known=False), pages) is None


def test_a_federation_without_wrong_labels() -> None:
    found = summarise_corrections(
        federated(CLEAN, CLEAN), {"x": {EVIDENCE: LabelEvidence(suspicion=torch.tensor([0.1, 0.2, 0.3, 0.4]))}}
    )
    assert found is not None
    assert found["samples"]["auroc"] is None
    assert found["overall"]["noise_after"] == 0.0
