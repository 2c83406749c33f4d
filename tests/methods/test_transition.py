"""Forward correction and T-revision: matrices by hand, stages, and a matrix that is learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.formulas import losses
from fedsift.methods.forward_correction import (
    CHANGE,
    TRANSITION,
    EstimatedTransition,
    EstimateTransition,
    ForwardCorrection,
    ThroughTransition,
    TrainCorrected,
    anchor_transition,
    confident_transition,
)
from fedsift.methods.t_revision import TRevision
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import View
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Trained
from tests.methods.by_hand import plain_weights, site

P = np.array([[0.97, 0.02, 0.01], [0.96, 0.03, 0.01], [0.01, 0.98, 0.01], [0.5, 0.3, 0.2], [0.96, 0.0, 0.04]])
"""Three samples surely called 0, one surely called 1, one that is not sure, nobody called 2."""


def test_rows_are_given_labels_among_sure_samples() -> None:
    table, rows = confident_transition(P, [0, 1, 1, 2, 0], 0.95)
    np.testing.assert_allclose(table, [[2 / 3, 1 / 3, 0], [0, 1, 0], [0, 0, 1]])
    assert rows == 2


def test_nobody_is_sure() -> None:
    table, rows = confident_transition(P, [0, 1, 1, 2, 0], 0.99)
    np.testing.assert_array_equal(table, np.eye(3))
    assert rows == 0


def test_anchors_leave_the_very_surest_out() -> None:
    """Of p_0 the percentile 75 is 0.96: below it the largest is the unsure sample; at 100 the surest but one counts."""
    table, rows = anchor_transition(P, 100.0)
    np.testing.assert_allclose(table[0], P[1] / P[1].sum())
    np.testing.assert_allclose(table[2], [0, 0, 1])
    assert rows == 2
    table, _ = anchor_transition(P, 75.0)
    np.testing.assert_allclose(table[0], P[3])


def test_all_samples_alike_are_their_own_anchor() -> None:
    table, rows = anchor_transition(np.tile([0.6, 0.3, 0.1], (4, 1)), 97.0)
    np.testing.assert_allclose(table[0], [0.6, 0.3, 0.1])
    assert rows == 1
    np.testing.assert_array_equal(table[1:], np.eye(3)[1:])


def test_a_site_keeps_its_matrix() -> None:
    here = site([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]], [0, 1, 1], classes=2)
    weights = plain_weights([[1.0, -1.0], [-1.0, 1.0]])
    reply = EstimateTransition(weights, 2).answer(here)
    assert reply == EstimatedTransition(2)
    assert here.notebook[TRANSITION].tolist() == [[0.5, 0.5], [0.0, 1.0]]
    request = EstimateTransition(weights, 2)
    assert "rows = 3" in (EstimatedTransition(3).refusal(request, here.facts) or "")


def test_a_site_that_was_away_corrects_nothing() -> None:
    here = site([[9.0, 0.0]], [0], classes=2)
    request = TrainCorrected(plain_weights([[1.0, 0.0], [0.0, 1.0]]), Recipe())
    assert torch.equal(request.extras(here)[TRANSITION].tensor, torch.eye(2))  # type: ignore[union-attr]


def test_forward_correction_in_a_term() -> None:
    """p = (.8, .2), T = ((.5, .5), (0, 1)): P(given 1) = .4 + .2 = .6."""
    z = torch.log(torch.tensor([[0.8, 0.2]]).double())
    t = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()
    view = View(z, torch.tensor([[0.0, 1.0]]).double(), torch.ones(1), extras={TRANSITION: t})
    assert float(ThroughTransition().value(view)) == pytest.approx(-np.log(0.6))
    want = 0.2 / 0.6 * -np.log(0.2)
    assert float(ThroughTransition("reweight").value(view)) == pytest.approx(want)


def test_every_sample_of_a_batch_sees_the_same_revision() -> None:
    """The release adds dT once more for every sample of the loop: the n-th would see T + n dT."""
    z = torch.log(torch.tensor([[0.8, 0.2]] * 3).double())
    extras = {TRANSITION: torch.eye(2).double(), CHANGE: torch.tensor([[-0.5, 0.5], [0.0, 0.0]]).double()}
    view = View(z, torch.tensor([[0.0, 1.0]] * 3).double(), torch.ones(3), extras=extras)
    value = ThroughTransition("forward", revise=True).value(view)
    assert float(value) == pytest.approx(-np.log(0.6), rel=1e-5)


def test_a_revision_is_learnt_and_kept() -> None:
    """All labels say 1 where the network is sure of 0: the first row must come to say 1 too."""
    here = site([[1.0, 0.0]] * 8, [1] * 8, classes=2)
    here.notebook[TRANSITION] = torch.eye(2)
    loss = 1.0 * ThroughTransition("forward", revise=True)
    sure = plain_weights([[2.0, 0.0], [0.0, 0.0]])
    request = TrainCorrected(sure, Recipe(lr=1e-6, batch_size=8, objective=loss), revision_lr=0.05)
    for _ in range(5):
        request.answer(here)
    change = here.notebook[CHANGE]
    assert change[0, 1] > 0.05
    assert change[0, 0] < 0
    revised = losses.revised_transition(torch.eye(2), change)
    torch.testing.assert_close(revised[1], torch.tensor([0.0, 1.0]), rtol=0, atol=1e-5)


def script(name: str, request: Request[Any]) -> Reply:
    if isinstance(request, EstimateTransition):
        return EstimatedTransition(0)
    return Trained(request.weights, 10, 1.0)  # type: ignore[attr-defined]


def test_stages_ask_what_they_should() -> None:
    federation = Scripted({f"s{i}": 10 for i in range(5)}, script, {"w": torch.zeros(1)})
    method = TRevision(fraction=0.4)
    state = method.start(federation)
    state = method.warm(state, federation.at(0))
    assert len(federation.asked[-1]) == 2  # "the selected clients update the weight", FedDPCont section 9.4 ...
    state = method.estimate(state, federation.at(0))
    assert len(federation.asked[-1]) == 5  # ... "and all the clients estimate T"
    assert "no site is sure" in federation.warnings[0]
    state = method.correct(state, federation.at(0))
    sent = list(federation.asked[-1].values())
    assert len(sent) == 2
    assert isinstance(sent[0], TrainCorrected) and sent[0].revision_lr == 0
    method.revise(state, federation.at(0))
    [last, *_] = federation.asked[-1].values()
    assert isinstance(last, TrainCorrected) and last.revision_lr == method.revision_lr
    assert [stage.rounds for stage in method.stages()] == [20, 1, 140, 140]
    assert [stage.rounds for stage in ForwardCorrection().stages()] == [150, 1, 150]
