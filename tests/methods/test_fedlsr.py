"""FedLSR's loss against a NumPy transcription, and the round that uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.methods import fedlsr
from fedsift.methods.fedlsr import FedLSR, SelfRegularised
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.method import State
from fedsift.testing import Scripted
from fedsift.training.objective import View
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train, Trained

Array = NDArray[np.float64]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def by_numpy(z1: Array, z2: Array, labels: Array, share: float, gamma: float, **how: Any) -> float:
    """One site's loss, sample by sample."""
    total = 0.0
    for a, b, y in zip(z1, z2, labels):
        p = share * softmax(a) + (1 - share) * softmax(b)
        s = p ** (1 / how.get("sharpen", 0.5))
        s /= s.sum()
        fit = -np.log(softmax(s)[int(y)]) if how.get("twice") else -np.log(s[int(y)])
        q, r = (np.maximum(softmax(3 * z), 1e-6) for z in (a, b))
        m = (q + r) / 2
        js = ((q * np.log(q / m)).sum() + (r * np.log(r / m)).sum()) / 2
        if how.get("mean_over") == "entries":
            js /= len(a)
        total += fit + gamma * js - how.get("lambda_e", 0.0) * (s * np.log(s)).sum()
    return total / len(labels)


def two_looks(seed: int, rows: int = 4, classes: int = 3) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, classes)),
        rng.normal(size=(rows, classes)),
        rng.integers(classes, size=rows),
    )


def seen(z1: Array, z2: Array, labels: Array, share: float, padding: int = 0) -> View:
    """One site's view, with rows of padding at the end of each look."""
    pad = np.zeros((padding, z1.shape[1])) + 7.0
    logits = torch.from_numpy(np.concatenate([z1, pad, z2, pad]))
    rows = np.concatenate([labels, np.zeros(padding, dtype=int)])
    target = torch.nn.functional.one_hot(torch.from_numpy(np.concatenate([rows, rows])), z1.shape[1]).double()
    real = torch.tensor(([1.0] * len(z1) + [0.0] * padding) * 2, dtype=torch.float64)
    return View(logits, target, real, chance=torch.full((len(logits),), share, dtype=torch.float64))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"twice": True, "mean_over": "entries"},
        {"lambda_e": 0.6},
        {"sharpen": 1.0},
    ],
)
def test_the_loss_equals_its_transcription(how: dict[str, Any]) -> None:
    z1, z2, labels = two_looks(0)
    term = SelfRegularised(0.3, **how)
    expected = by_numpy(z1, z2, labels, 0.3, 0.3, **how)
    assert float(term.value(seen(z1, z2, labels, 0.3))) == pytest.approx(expected, rel=1e-6)


def test_padding_does_not_count_and_a_cohort_is_its_sites() -> None:
    one, two = two_looks(1), two_looks(2, rows=3)
    term = SelfRegularised(0.4)
    short = seen(*two, share=0.8, padding=1)
    alone = [float(term.value(seen(*one, share=0.2))), float(term.value(seen(*two, share=0.8)))]
    assert float(term.value(short)) == pytest.approx(alone[1], rel=1e-9)
    first = seen(*one, share=0.2)
    assert first.chance is not None
    assert short.chance is not None
    both = View(
        torch.stack([first.logits, short.logits]),
        torch.stack([first.target, short.target]),
        torch.stack([first.present, short.present]),
        chance=torch.stack([first.chance, short.chance]),
    )
    assert term.value(both).tolist() == pytest.approx(alone, rel=1e-9)


def test_looks_that_agree_have_nothing_to_mend() -> None:
    z, _, labels = two_looks(3)
    assert fedlsr.jensen_shannon(torch.from_numpy(z), torch.from_numpy(z)).abs().max() < 1e-12
    with_it, without = (SelfRegularised(gamma).value(seen(z, z, labels, 0.5)) for gamma in (5.0, 0.0))
    assert float(with_it) == pytest.approx(float(without))


def test_a_confident_wrong_prediction_keeps_its_gradient() -> None:
    z = torch.tensor([[200.0, 0.0]], dtype=torch.float64).requires_grad_()
    log_s = fedlsr.log_sharpened_mixture(z, z, torch.tensor(0.5))
    [gradient] = torch.autograd.grad(-log_s[0, 1], z)
    assert gradient.tolist() == [pytest.approx([2.0, -2.0])]  # 1 / T times cross-entropy's
    for share in (0.0, 1.0):  # ends of the draw
        assert torch.isfinite(fedlsr.log_sharpened_mixture(z, -z, torch.tensor(share))).all()


def test_the_released_loss_is_bounded() -> None:
    """10 classes: between log(e + 9) - 1 = 1.46 and log(e + 9) = 2.46, however wrong."""
    target = torch.eye(10, dtype=torch.float64)[:1]
    for sign, bound in ((1, np.log(np.e + 9) - 1), (-1, np.log(np.e + 9))):
        z = torch.full((1, 10), 0.0, dtype=torch.float64)
        z[0, 0 if sign > 0 else 1] = 80.0
        view = View(z.repeat(2, 1), target.repeat(2, 1), torch.ones(2), chance=torch.full((2,), 0.5))
        assert float(SelfRegularised(0.0, twice=True).value(view)) == pytest.approx(bound, abs=1e-5)


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, Train)
    return Trained({"w": torch.ones(1)}, 10, 0.5)


def test_gamma_grows_and_the_looks_differ() -> None:
    method, federation = FedLSR(rounds=50), Scripted({"a": 10}, answer, {"w": torch.zeros(1)})
    assert [method.gamma_at(t) for t in (0, 5, 10, 30)] == pytest.approx([0.0, 0.2, 0.4, 0.4])
    method.train(State({"w": torch.zeros(1)}), federation.at(5))
    [request] = federation.asked[0].values()
    assert isinstance(request, Train)
    assert (request.recipe.views, request.recipe.augment) == (2, Augment(degrees=30.0))
    assert federation.recorded["gamma"] == pytest.approx(0.2)
    own = FedLSR(local=Recipe(augment=Augment(flip=True))).looks(federation)
    assert (own.augment, own.plain_views) == (Augment(flip=True), 1)
    assert FedLSR(plain_first=False).looks(federation).plain_views == 0


def test_mixup_is_refused() -> None:
    with pytest.raises(ConfigError, match="train.mixup = 0.5: fedlsr mixes"):
        FedLSR(local=Recipe(mixup=0.5))
