"""FedELC against numbers worked out by hand: its loss, the labels' gradient, their fixed point, the merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.methods import fedelc
from fedsift.methods.fedelc import LABELS, FedELC, LearntLabels, TrainLearningLabels, TrainScoring, begun
from fedsift.methods.fednoro import FedNoRoState
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import View
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Trained
from tests.methods.by_hand import plain_weights, site

DRAW = np.random.default_rng(3)


def seen(n: int = 5, classes: int = 4, present: Any = None) -> View:
    logits, u = DRAW.normal(size=(n, classes)), DRAW.normal(size=(n, classes))
    target = np.eye(classes)[DRAW.integers(classes, size=n)]
    real = np.ones(n) if present is None else np.array(present, dtype=float)
    tensors = [torch.tensor(part, dtype=torch.float64) for part in (logits, target, real)]
    return View(*tensors, extras={LABELS: torch.tensor(u)})


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def written_out(view: View, alpha: float, beta: float, scale: float) -> np.ndarray:
    """The loss of each sample by sums over classes."""
    p, d, y = softmax(view.logits.numpy()), softmax(view.rows(LABELS).numpy()), view.target.numpy()
    divergence = (p * np.log(p / d)).sum(-1)
    return np.asarray(scale * divergence - alpha * np.log((d * y).sum(-1)) - scale * beta * (p * np.log(p)).sum(-1))


@pytest.mark.parametrize(("words", "scale"), [("1/C", 0.25), ("1", 1.0)])
def test_the_loss(words: Any, scale: float) -> None:
    view = seen()
    value = LearntLabels(0.3, 0.7, words).value(view)
    assert float(value) == pytest.approx(written_out(view, 0.3, 0.7, scale).mean())


def test_padding_counts_for_nothing() -> None:
    view = seen(present=(1, 1, 1, 0, 0))
    assert float(LearntLabels().value(view)) == pytest.approx(written_out(view, 0.5, 0.2, 0.25)[:3].mean())


@pytest.mark.parametrize("batch", [64, 0])
def test_labels_follow_the_gradient_of_the_loss(batch: int) -> None:
    """The step is (lambda / B) dL_i / du_i, with B = 64 whatever the batch, or the batch's own 5."""
    view = seen()
    u = view.rows(LABELS).clone().requires_grad_()
    kept = torch.ones(5).double()
    loss = fedelc.label_distribution_loss(view.logits, u, view.target, kept, 0.5, 0.2, 0.25)
    (gradient,) = torch.autograd.grad(loss.sum(), u)
    LearntLabels(rate=100.0, batch=batch).value(view)
    want = u.detach() - 100.0 / (batch or 5) * gradient
    torch.testing.assert_close(view.kept[LABELS], want)


def test_the_network_does_not_see_the_given_label() -> None:
    view = seen()
    view.logits.requires_grad_()
    (one,) = torch.autograd.grad(LearntLabels().value(view), view.logits)
    view.target = view.target.roll(1, -1)
    (two,) = torch.autograd.grad(LearntLabels().value(view), view.logits)
    assert torch.equal(one, two)


@pytest.mark.parametrize(("alpha", "classes", "share"), [(0.5, 10, 1 / 6), (0.2, 10, 1 / 3), (0.5, 100, 1 / 51)])
def test_the_given_label_never_loses_its_share(alpha: float, classes: int, share: float) -> None:
    """d = (p / C + alpha e_y) / (1 / C + alpha): so small is the prediction's share of a learnt label."""
    p, y = torch.zeros(classes).double(), torch.zeros(classes).double()
    p[:], y[0] = 0.05 / (classes - 1), 1.0
    p[1] = 0.95
    fixed = share * p + (1 - share) * y
    stay = fedelc.stepped_labels(
        fixed.log()[None], p.log()[None], y[None], torch.ones(1).double(), alpha, 1 / classes, 15.0
    )
    torch.testing.assert_close(stay, fixed.log()[None])
    u = 10 * y[None]
    for _ in range(2000):
        u = fedelc.stepped_labels(u, p.log()[None], y[None], torch.ones(1).double(), alpha, 1 / classes, 5.0)
    torch.testing.assert_close(torch.softmax(u, -1)[0], fixed, atol=1e-4, rtol=0)


def test_masked_labels_have_no_say() -> None:
    """Of five samples the four of smallest cross-entropy are kept: the fifth moves towards the prediction alone."""
    view = seen()
    hard = int((view.target * torch.log_softmax(view.logits, -1)).sum(-1).argmin())
    term = LearntLabels(rate=64.0, mask_keep=0.8)
    value = term.value(view)
    u, p = view.rows(LABELS), torch.softmax(view.logits, -1)
    want = u[hard] - 0.25 * (torch.softmax(u[hard], -1) - p[hard])
    torch.testing.assert_close(view.kept[LABELS][hard], want)
    full = written_out(view, 0.5, 0.2, 0.25)
    full[hard] = written_out(view, 0.0, 0.2, 0.25)[hard]
    assert float(value) == pytest.approx(full.mean()), "summed over the kept ones, divided by all"


def test_labels_begin_at_the_given_ones() -> None:
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    u = torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    assert begun(u, target, 10.0).tolist() == [[0.0, 10.0], [0.5, -0.5]]


START = plain_weights([[4.0, 0.0], [0.0, 4.0]])
ROWS, GIVEN = [[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 6, [0] * 5 + [1] + [1] * 6
"""The last of the first kind is labelled like the second: a site with fewer samples than a batch."""


def visit(**more: Any) -> TrainLearningLabels:
    method = FedELC(local=Recipe(epochs=5, batch_size=64, lr=0.01), **more)
    request = method.at_noisy_site(FedNoRoState(START))
    assert isinstance(request, TrainLearningLabels)
    return request


def test_a_wrong_label_moves_and_is_proposed() -> None:
    """In steps of 2: the published 1000 / 64 would leap over the fixed point of two classes and back."""
    here = site(ROWS, GIVEN, classes=2)
    visit(label_rate=128.0).answer(here)
    merged = here.notebook[LABELS] / 10
    assert merged.sum(-1).tolist() == pytest.approx([1.0] * 12)
    reply = visit(label_rate=128.0).answer(here)
    found = here.evidence
    assert isinstance(reply, Trained) and reply.samples == 12
    assert found.flagged is not None and found.flagged.nonzero().flatten().tolist() == [5]
    assert found.proposed is not None and found.proposed.tolist() == [0] * 6 + [1] * 6
    assert found.labels is None, "given labels stay what the loss is faithful to"
    last = here.notebook[LABELS] / 10
    given = torch.tensor(GIVEN)
    expected = 1 - last.gather(1, given[:, None])[:, 0]
    torch.testing.assert_close(found.suspicion, expected)


def test_what_is_merged_is_half_learnt_and_half_predicted() -> None:
    """With a step of next to 0 the learnt label stays softmax(10 e_y), and p is that of a network that hardly moves."""
    here = site(ROWS, GIVEN, classes=2)
    request = visit(label_rate=1e-9)
    quiet = Recipe(epochs=1, lr=1e-9, objective=request.recipe.objective)
    TrainLearningLabels(START, quiet, merge_weight=0.25, start=10.0).answer(here)
    d, p = 1 / (1 + np.exp(-10)), 1 / (1 + np.exp(-4))
    want = 10 * (0.25 * (1 - d) + 0.75 * p)
    assert float(here.notebook[LABELS][5, 0]) == pytest.approx(want, rel=1e-5)


def test_a_noisy_site_may_send_a_part_of_its_step() -> None:
    whole = visit().answer(site(ROWS, GIVEN, classes=2)).weights["head.weight"]
    part = visit(upload_mix=0.8).answer(site(ROWS, GIVEN, classes=2)).weights["head.weight"]
    torch.testing.assert_close(part, 0.2 * START["head.weight"] + 0.8 * whole)


def test_a_site_called_clean_scores_its_labels_and_suspects_none() -> None:
    here = site(ROWS, GIVEN, classes=2)
    TrainScoring(START, Recipe(epochs=1)).answer(here)
    found = here.evidence
    assert found.flagged is not None and not bool(found.flagged.any())
    assert found.suspicion is not None
    assert float(found.suspicion[5]) == pytest.approx(1 / (1 + np.exp(-4.0)))
    assert int(found.suspicion.argmax()) == 5


def test_each_kind_of_site_gets_its_own_request_and_the_distance_counts() -> None:
    def answer(name: str, request: Request[Any]) -> Reply:
        shift = {"a": 0.0, "b": 1.0, "c": 3.0}[name]
        return Trained({"w": torch.full((1,), shift)}, 10, 1.0)

    federation = Scripted({"a": 10, "b": 10, "c": 10}, answer, {"w": torch.zeros(1)})
    method = FedELC(fraction=1.0)
    state = method.correct_labels(FedNoRoState({"w": torch.zeros(1)}, noisy=("b", "c")), federation)
    kinds = [type(federation.asked[0][name]) for name in "abc"]
    assert kinds == [TrainScoring, TrainLearningLabels, TrainLearningLabels]
    shares = np.exp(-np.array([0, 1 / 3, 1.0]))
    assert float(state.weights["w"]) == pytest.approx((shares * [0, 1, 3]).sum() / shares.sum())


def test_the_forms() -> None:
    assert FedELC().t_1 == 20 and FedELC(rounds=10).t_1 == 5
    masked = FedELC(**FedELC.forms["masked-optim"])
    assert (masked.t_1, masked.mask_keep, masked.upload_mix, masked.aggregate) == (
        30,
        0.8,
        0.8,
        "geometric-median",
    )
