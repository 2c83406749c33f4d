"""JointOpt: labels that are learnt, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.methods.joint_opt import WINDOW, JointLabels, JointOpt, TrainJointly, mean_prediction
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import ClassBalance, Entropy, View
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Trained
from tests.methods.by_hand import plain_weights, site

HALF = [[0.0, 0.0], [0.2, 0.8], [0.6, 0.4]]


def seen(window: Any, probability: tuple[float, float] = (0.9, 0.1)) -> View:
    z = torch.log(torch.tensor([probability], dtype=torch.float64))
    target = torch.tensor([[1.0, 0.0]]).double()
    return View(z, target, torch.ones(1), extras={WINDOW: torch.tensor([window], dtype=torch.float64)})


def test_a_window_that_is_not_full_still_gives_a_distribution() -> None:
    """FedRN's corrector divides by the window's length whatever it holds, and its labels sum to less than 1."""
    label = mean_prediction(torch.tensor(HALF).double())
    torch.testing.assert_close(label, torch.tensor([0.4, 0.6]).double())
    assert mean_prediction(torch.zeros(3, 2)).tolist() == [0.0, 0.0]


def test_the_loss_is_cross_entropy_with_the_mean() -> None:
    view = seen(HALF)
    want = -(0.4 * np.log(0.9) + 0.6 * np.log(0.1))
    assert float(JointLabels(3).value(view)) == pytest.approx(want)
    kept = view.kept[WINDOW][0]
    torch.testing.assert_close(kept, torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.9, 0.1]]).double())


def test_hard_labels_and_given_ones() -> None:
    assert float(JointLabels(3, kind="hard").value(seen(HALF))) == pytest.approx(-np.log(0.1))
    assert float(JointLabels(3, learnt=False).value(seen(HALF))) == pytest.approx(-np.log(0.9))
    fresh = seen(np.zeros((3, 2)).tolist())
    assert float(JointLabels(3).value(fresh)) == pytest.approx(-np.log(0.9)), "an empty window: the given label"
    still = seen(HALF)
    JointLabels(3, record=False).value(still)
    assert not still.kept


def test_a_site_learns_its_labels() -> None:
    """Nine samples of one kind, one of them labelled otherwise: the network says the same of all nine."""
    here = site([[3.0, 0.0]] * 9 + [[0.0, 3.0]] * 9, [0] * 8 + [1] + [1] * 9, classes=2)
    start = plain_weights([[1.0, 0.0], [0.0, 1.0]])
    request = TrainJointly(start, Recipe(epochs=3, lr=0.01, objective=1.0 * JointLabels(4)))
    request.answer(here)
    assert torch.nonzero(here.evidence.flagged).flatten().tolist() == [8]
    assert here.labels.tolist() == [0] * 9 + [1] * 9
    assert here.given.tolist() == [0] * 8 + [1] * 10
    window = here.notebook[WINDOW]
    assert window.shape == (18, 4, 2)
    torch.testing.assert_close(window.sum(-1), torch.tensor([[0.0, 1.0, 1.0, 1.0]]).expand(18, 4))


def test_stages() -> None:
    def answer(name: str, request: Request[Any]) -> Reply:
        return Trained({"w": torch.ones(1)}, 10, 1.0)

    federation = Scripted({"a": 10}, answer, {"w": torch.zeros(1)})
    method = JointOpt(fraction=1.0, alpha=1.5, beta=0.5, retrain=4)
    state = method.warm(method.start(federation), federation.at(0))
    state = method.joint(state, federation.at(0))
    [asked] = federation.asked[-1].values()
    assert isinstance(asked, TrainJointly)
    assert asked.recipe.objective.terms == ((1.0, JointLabels(10)), (1.5, ClassBalance()), (0.5, Entropy()))
    method.train_again(state, federation.at(0))
    [asked] = federation.asked[-1].values()
    assert float(asked.weights["w"]) == 0, "the second step starts afresh"  # type: ignore[attr-defined]
    method.train_again(state, federation.at(1))
    [asked] = federation.asked[-1].values()
    assert float(asked.weights["w"]) == 1  # type: ignore[attr-defined]
    assert [stage.rounds for stage in method.stages()] == [20, 80, 4]


@pytest.mark.parametrize(("said", "expected"), [(5, 5), (0, 20)])
def test_the_warm_up_may_have_epochs_of_its_own(said: int, expected: int) -> None:
    """FedCorr's comparison warms up with 5 local epochs and goes on with 20; alone at a site, 2 rounds and 3."""
    federation = Scripted({"a": 10}, lambda *_: Trained({"w": torch.ones(1)}, 10, 1.0), {"w": torch.zeros(1)})
    method = JointOpt(warmup=2, warmup_epochs=said, rounds=3, fraction=1.0, local=Recipe(epochs=20))
    state = method.start(federation)
    for stage, epochs in ((method.warm, expected), (method.joint, 20), (method.train_again, 20)):
        state = stage(state, federation.at(0))
        [asked] = federation.asked[-1].values()
        assert asked.recipe.epochs == epochs  # type: ignore[attr-defined]
    assert [visit.recipe.epochs for visit in method.alone()] == [2 * expected, 60]
