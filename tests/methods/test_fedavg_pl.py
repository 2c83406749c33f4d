"""FedAvg-PL's loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from fedsift.core.errors import QuorumError
from fedsift.methods.fedavg_pl import FedAvgPL
from fedsift.protocol.method import State
from fedsift.testing import Scripted
from fedsift.training.objective import PositiveWeighted
from fedsift.training.requests import Train
from tests.methods.by_hand import site, view

LOG2 = math.log(2)


def test_only_annotated_classes_count() -> None:
    at = view([[0.0, 3.0], [0.0, -1.0]], [[1, 0], [0, 0]], known=[[1, 0], [1, 0]])
    assert PositiveWeighted().value(at).item() == pytest.approx(LOG2)
    face_value = (2 * LOG2 + math.log1p(math.exp(3)) + math.log1p(math.exp(-1))) / 4
    assert PositiveWeighted(partial=False).value(at).item() == pytest.approx(face_value)


def test_positives_weigh_one_over_their_share() -> None:
    # pi = 1/4: log-odds -log 3; the positive counts 4 times
    at = view([[0.0], [0.0]], [[1], [0]], known=[[1], [1]], log_prior=[[-math.log(3)]])
    assert PositiveWeighted(weigh=True).value(at).item() == pytest.approx((4 * LOG2 + LOG2) / 2)
    assert PositiveWeighted(weigh=True).needs == {"prior"}
    assert PositiveWeighted().needs == frozenset()


def test_a_site_that_annotates_everything_trains_on_everything() -> None:
    at = view([[0.0, 0.0]], [[1, 0]])
    assert PositiveWeighted().value(at).item() == pytest.approx(LOG2)


def test_padding_does_not_count() -> None:
    at = view([[0.0, 0.0], [9.0, 9.0]], [[1, 0], [0, 0]], known=[[1, 0], [1, 1]], present=[1, 0])
    assert PositiveWeighted().value(at).item() == pytest.approx(LOG2)


def test_weight_from_a_sites_labels() -> None:
    """One positive of four: N / n_c = 4; no positive: N + 1 = 5, which no sample uses."""
    from fedsift.training.job import TrainingJob
    from fedsift.training.objective import as_objective
    from fedsift.training.recipe import Recipe

    at = site([[0.0]] * 4, [[1, 0], [0, 0], [0, 0], [0, 0]], classes=2)
    recipe = Recipe(objective=as_objective(PositiveWeighted(weigh=True)))
    weights = 1 / TrainingJob(at, {}, recipe).log_prior().sigmoid()
    assert weights.tolist()[0] == pytest.approx([4.0, 5.0])


def test_switches_reach_the_loss() -> None:
    federation = Scripted({"a": 4}, lambda site, request: None)
    with pytest.raises(QuorumError):  # what was asked is all that matters here
        FedAvgPL(partial=False, pos_weight=True).train(State({}), federation)
    [train] = federation.requests
    assert isinstance(train, Train)
    assert train.recipe.objective.terms == ((1.0, PositiveWeighted(partial=False, weigh=True)),)
