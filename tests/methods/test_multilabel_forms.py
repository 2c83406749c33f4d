"""FedLSR's and FedNoRo's multi-label forms against NumPy transcriptions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.methods.fedlsr import FedLSR, FedLSRMultiLabel, SelfRegularised
from fedsift.methods.fednoro import FedNoRo, FedNoRoMultiLabel
from fedsift.protocol.federation import FederationFacts
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.method import State
from fedsift.testing import Scripted
from fedsift.training.objective import MissingTo, PartialClass, View
from fedsift.training.requests import Train, Trained

Array = NDArray[np.float64]


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def by_numpy(z1: Array, z2: Array, y: Array, share: float, gamma: float, known: Array, **how: Any) -> float:
    """Entry by entry."""
    total = 0.0
    for i in range(len(y)):
        fit, apart, unsure = [], [], []
        for c in range(y.shape[1]):
            p = share * sigmoid(z1[i, c]) + (1 - share) * sigmoid(z2[i, c])
            s = p**2 / (p**2 + (1 - p) ** 2)
            q = sigmoid(s) if how.get("twice") else s
            if known[c] or not how.get("partial"):
                fit.append(-(y[i, c] * np.log(q) + (1 - y[i, c]) * np.log(1 - q)))
            a, b = sigmoid(3 * z1[i, c]), sigmoid(3 * z2[i, c])
            pairs = [(a, b), (1 - a, 1 - b)]
            apart.append(sum(u * np.log(2 * u / (u + v)) + v * np.log(2 * v / (u + v)) for u, v in pairs) / 2)
            unsure.append(-(s * np.log(s) + (1 - s) * np.log(1 - s)))
        agree = np.sum(apart) if how.get("mean_over") == "samples" else np.mean(apart)
        total += np.mean(fit) + gamma * agree + how.get("lambda_e", 0.0) * np.mean(unsure)
    return float(total / len(y))


def looks(seed: int, rows: int = 4, classes: int = 3) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    shape = (rows, classes)
    return rng.normal(size=shape), rng.normal(size=shape), rng.integers(0, 2, shape).astype(np.float64)


def seen(z1: Array, z2: Array, y: Array, share: float, known: Array, padding: int = 0) -> View:
    pad = np.zeros((padding, y.shape[1])) + 7.0
    logits = torch.from_numpy(np.concatenate([z1, pad, z2, pad]))
    target = torch.from_numpy(np.concatenate([y, 0 * pad, y, 0 * pad]))
    real = torch.tensor(([1.0] * len(y) + [0.0] * padding) * 2, dtype=torch.float64)
    chance = torch.full((len(logits),), share, dtype=torch.float64)
    return View(logits, target, real, known=torch.from_numpy(known).expand_as(logits), chance=chance)


KNOWN = np.array([1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    "how",
    [
        {"mean_over": "entries"},
        {"mean_over": "samples", "partial": True},
        {"mean_over": "entries", "twice": True, "lambda_e": 0.6},
    ],
)
def test_the_loss_equals_its_transcription(how: dict[str, Any]) -> None:
    z1, z2, y = looks(0)
    term = SelfRegularised(0.3, yes_no=True, **how)
    expected = by_numpy(z1, z2, y, 0.2, 0.3, KNOWN, **how)
    assert float(term.value(seen(z1, z2, y, 0.2, KNOWN))) == pytest.approx(expected, rel=1e-5)


def test_padding_does_not_count_and_a_cohort_is_its_sites() -> None:
    one, two = looks(1), looks(2, rows=3)
    term = SelfRegularised(0.4, yes_no=True, partial=True)
    first, short = seen(*one, share=0.2, known=KNOWN), seen(*two, share=0.8, known=KNOWN, padding=1)
    alone = [float(term.value(first)), float(term.value(seen(*two, share=0.8, known=KNOWN)))]
    assert first.chance is not None and first.known is not None
    assert short.chance is not None and short.known is not None
    both = View(
        torch.stack([first.logits, short.logits]),
        torch.stack([first.target, short.target]),
        torch.stack([first.present, short.present]),
        known=torch.stack([first.known, short.known]),
        chance=torch.stack([first.chance, short.chance]),
    )
    assert term.value(both).tolist() == pytest.approx(alone, rel=1e-9)


def test_the_released_loss_cannot_fit() -> None:
    """A probability taken for a logit is at best 1: an absent class costs log 2 and a present one log(1 + 1/e), however
    right the network is; fed -log p_s instead, both go to 0."""
    z = torch.tensor([[40.0, -40.0]] * 2, dtype=torch.float64)
    view = View(z, torch.tensor([[1.0, 0.0]] * 2).double(), torch.ones(2), chance=torch.full((2,), 0.5))
    released = float(SelfRegularised(0.0, twice=True, yes_no=True).value(view))
    assert released == pytest.approx((math.log(2) + math.log(1 + 1 / math.e)) / 2)
    assert float(SelfRegularised(0.0, yes_no=True).value(view)) == pytest.approx(0.0, abs=1e-12)


def test_fedlsr_ml_trains_on_it() -> None:
    method = FedLSRMultiLabel(rounds=500, partial=True)
    assert [method.gamma_at(t) for t in (0, 20, 40, 400)] == pytest.approx([0.0, 0.2, 0.4, 0.4])
    term = method.term(0.2)
    assert (term.yes_no, term.partial, term.mean_over, term.twice) == (True, True, "entries", False)
    assert not FedLSRMultiLabel().term(0.1).partial, "as published, missing labels are wrong ones"


# FedNoRo ------------------------------------------------------------------------------------------------------------


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, Train)
    return Trained({"w": torch.ones(1)}, 10, 0.5)


def test_lambda_grows_from_round_10_to_the_last() -> None:
    method = FedNoRoMultiLabel(rounds=500)
    start = 0.8 * math.exp(-5)
    assert method.share_at(0) == method.share_at(10) == pytest.approx(start)
    assert method.share_at(499) == pytest.approx(0.8)
    assert method.share_at(255) == pytest.approx(0.8 * math.exp(-5 * ((499 - 255) / 489) ** 2))
    assert FedNoRoMultiLabel(rounds=5).share_at(4) == pytest.approx(0.8), "a run shorter than the ramp's start"
    with pytest.raises(ConfigError, match=r"method.ramp_end = 3: .* method.ramp_begin = 10"):
        FedNoRoMultiLabel(ramp_end=3)


def test_labels_and_teacher_share_the_loss() -> None:
    federation = Scripted({"a": 10}, answer, {"w": torch.zeros(1)}, multilabel=True)
    method = FedNoRoMultiLabel(rounds=20, ramp_begin=0, ramp_end=5)
    method.train(State({"w": torch.zeros(1)}), federation.at(5))
    request = federation.asked[0]["a"]
    assert isinstance(request, Train)
    (own, labels), (taught, teacher) = request.recipe.objective.terms
    assert (own, taught) == pytest.approx((0.2, 0.8))
    assert (labels, teacher) == (PartialClass(1.0), MissingTo(temperature=0.8))
    assert federation.recorded["distillation_share"] == pytest.approx(0.8)


def test_each_form_names_the_other() -> None:
    several, one = FederationFacts(multilabel=True), FederationFacts(multilabel=False)
    for method, facts, other in (
        (FedLSR(), several, "fedlsr-ml"),
        (FedNoRo(), several, "fednoro-ml"),
        (FedLSRMultiLabel(), one, "fedlsr"),
        (FedNoRoMultiLabel(), one, "fednoro"),
    ):
        schema_error = method.fits(facts)
        assert schema_error is not None
        assert schema_error.refuses
        assert schema_error.reason.endswith(f"use '{other}'")
