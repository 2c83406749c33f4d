"""Why FedFixMatch weighs positives: without it rare findings are labelled absent, and it ends below FedAvg-PL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedsift.formulas.losses import confident_tags
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.training.objective import PositiveWeighted, View


@pytest.mark.parametrize(("weigh", "says"), [(False, 0.1), (True, 1 / 1.9)])
def test_what_a_model_says_that_knows_only_how_frequent_a_finding_is(weigh: bool, says: float) -> None:
    """One in ten: where the loss is flat. Without weights that is sure of "absent", with them of nothing."""
    target = torch.zeros(10, 1, dtype=torch.float64)
    target[0] = 1.0
    logit = torch.logit(torch.tensor(says, dtype=torch.float64)).requires_grad_()
    odds = torch.logit(torch.tensor([[0.1]], dtype=torch.float64))
    at = View(logit.expand(10, 1), target, torch.ones(10, dtype=torch.float64), log_prior=odds)
    [slope] = torch.autograd.grad(PositiveWeighted(weigh=weigh).value(at), logit)
    assert float(slope) == pytest.approx(0.0, abs=1e-12)
    labels, sure = confident_tags(torch.sigmoid(logit.detach()), 0.8)
    assert bool(sure) is not weigh
    assert float(labels) == 0.0


@pytest.mark.slow
def test_on_digits_it_ends_above_fedavg_pl_with_weights_and_below_without(tmp_path: Path) -> None:
    """Eight findings of one in ten each, eight sites that annotate three of them."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    labels = np.stack([digits.target == k for k in range(8)], axis=1).astype(np.int64)
    np.savez(
        tmp_path / "findings.npz",
        images=images[:1200],
        labels=labels[:1200],
        test_images=images[1200:],
        test_labels=labels[1200:],
        classes=np.array([f"digit {k}" for k in range(8)]),
    )

    def auc(**method: Any) -> float:
        table = {
            "seed": 31,
            "data": {"name": "npz", "path": str(tmp_path / "findings.npz")},
            "partition": {"name": "iid", "sites": 8},
            "noise": {"name": "class-missing", "missing": 5},
            "model": {"name": "mlp"},
            "train": {"optimiser": "adam", "lr": 0.003, "augment": {"crop": 1}},
            "method": {"rounds": 25, **method},
            "engine": {"threads": 1, "trainer": "cohort"},
        }
        study = Study.from_table(table)
        return float(run(study, new_run(study, tmp_path))["auc"]["last"])

    reference = auc(name="fedavg-pl")
    assert auc(name="fedfixmatch") > reference - 0.01
    assert auc(name="fedfixmatch", pos_weight=False) < reference - 0.03
