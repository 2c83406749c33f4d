"""FedIRM: relations at a site and on the server, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods.fedirm import (
    RELATED,
    RELATIONS,
    FedIRM,
    Relate,
    RelationRows,
    SameRelations,
    TrainByRelations,
)
from fedsift.protocol.messages import Reply, Request, SiteFacts
from fedsift.testing import Scripted
from fedsift.training.objective import MissingTo, PositiveWeighted
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import plain_weights, site

FACTS = [
    SiteFacts("a", 10, annotated=(0,)),
    SiteFacts("b", 30, annotated=(0, 1)),
]
ROWS = {
    "a": RelationRows(torch.tensor([[0.8, 0.4, 0.0]]), torch.tensor([True])),
    "b": RelationRows(torch.tensor([[0.4, 0.0, 0.4], [0.1, 0.9, 0.5]]), torch.tensor([True, True])),
}
"""Three classes; nobody annotates the last."""


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, Train)
    return Trained({"w": torch.ones(1)}, {"a": 10, "b": 30}[name], 0.5, (ROWS[name],) if request.then else ())


def federation() -> Scripted:
    return Scripted(FACTS, answer, {"w": torch.zeros(1)}, classes=3, multilabel=True)


def test_rows_of_a_site_by_hand() -> None:
    """Class 0 is annotated; its positives have inputs 1 and 3, so logits (2, -4) on average, halved."""
    here = site([[1.0], [3.0], [5.0]], [[1, 0], [1, 0], [0, 0]], classes=2, annotated=(0,))
    told = Relate(2, 2.0, weights=plain_weights([[1.0], [-2.0]])).answer(here)
    expected = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))]
    np.testing.assert_allclose(told.rows.numpy(), [expected], rtol=1e-6)
    assert told.held.tolist() == [True]
    assert told.refusal(Relate(2), here.facts) is None


def test_a_row_of_few_samples_or_none_is_withheld() -> None:
    here = site([[1.0], [3.0]], [[1, 0], [0, 0]], classes=2)
    weights = plain_weights([[1.0], [1.0]])
    assert Relate(2, weights=weights).answer(here).held.tolist() == [True, False]
    few = Relate(2, least_members=2, weights=weights).answer(here)
    assert few.held.tolist() == [False, False]
    assert bool((few.rows == 0).all())


def test_what_a_reply_may_say() -> None:
    request, facts = Relate(3), FACTS[1]
    assert ROWS["b"].refusal(request, facts) is None
    assert "shape (1, 3), asked were (2, 3)" in (ROWS["a"].refusal(request, facts) or "")
    wrong = RelationRows(ROWS["b"].rows.double(), ROWS["b"].held)
    assert "types" in (wrong.refusal(request, facts) or "")
    assert "no probability" in (RelationRows(ROWS["b"].rows + 1, ROWS["b"].held).refusal(request, facts) or "")


def test_the_server_averages_rows_by_size_over_those_who_annotate() -> None:
    """Class 0: (10 a + 30 b) / 40; class 1: b's alone; class 2: nobody's. The last warm-up round brings the first."""
    here, method = federation(), FedIRM(rounds=4, warm_up=2)
    state = method.train_on_annotated(method.start(here), here.at(0))
    assert not bool(state.related.any())
    state = method.train_on_annotated(state, here.at(1))
    assert state.related.tolist() == [True, True, False]
    expected = [[0.5, 0.1, 0.3], [0.1, 0.9, 0.5], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(state.relations.numpy(), expected, rtol=1e-6)


def test_a_class_without_a_new_row_keeps_its_last() -> None:
    here, method = federation(), FedIRM(rounds=4, warm_up=1)
    state = method.train_on_annotated(method.start(here), here.at(0))
    before = state.relations.clone()
    here.answer = lambda name, request: answer(name, request) if name == "a" else None
    state = method.train_on_all(state, here.at(0))
    np.testing.assert_allclose(state.relations[0].numpy(), ROWS["a"].rows[0].numpy())
    assert torch.equal(state.relations[1], before[1])
    assert state.related.tolist() == [True, True, False]


def test_the_weight_grows_over_the_rounds_of_the_run() -> None:
    method = FedIRM(rounds=100)
    assert method.t_1 == 20
    assert method.share_at(20) == pytest.approx(math.exp(-5 / 9))
    assert method.share_at(30) == method.share_at(99) == 1.0
    assert FedIRM(rounds=10).t_1 == 5
    with pytest.raises(ConfigError, match="method.warm_up = 5"):
        FedIRM(rounds=4, warm_up=5)


def test_what_a_later_round_asks() -> None:
    here, method = federation(), FedIRM(rounds=40, warm_up=20)
    state = method.train_on_all(method.start(here), here.at(10))
    [request] = {type(own): own for own in here.asked[-1].values()}.values()
    assert isinstance(request, TrainByRelations)
    assert request.recipe.objective.terms == (
        (1.0, PositiveWeighted(weigh=True)),
        (1.0, MissingTo("average", total=True, everywhere=True)),
        (1.0, SameRelations()),
    )
    assert (request.recipe.views, request.decay) == (2, 0.99)
    extras = request.extras(site([[1.0]], [[0, 0, 0]], classes=3))
    assert {RELATIONS, RELATED} <= extras.keys()
    assert state.related.any()


def test_without_matching_no_relation_leaves_a_site() -> None:
    here, method = federation(), FedIRM(rounds=4, warm_up=1, matching=False, mean_teacher=False)
    state = method.train_on_annotated(method.start(here), here.at(0))
    state = method.train_on_all(state, here.at(0))
    for asked in here.asked:
        for request in asked.values():
            assert isinstance(request, Train)
            assert request.then == ()
    assert not bool(state.related.any())
    assert all(Relate not in stage.asks for stage in method.stages())
