"""RSCFed's round: groups of sites, a teacher that stays in the notebook."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods._partial_annotation import STEPS, TrainWithAverage
from fedsift.methods.rscfed import RSCFed
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.notebook import Notebook
from fedsift.testing import Scripted
from fedsift.training.objective import AVERAGE, MissingTo, PositiveWeighted, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Trained
from tests.methods.by_hand import plain_weights, site

STEP = {"a": 0.0, "b": 2.0, "c": 6.0, "d": 12.0, "e": 20.0}


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert type(request) is TrainWithAverage
    return Trained({"w": request.weights["w"] + STEP[name]}, 10, 0.5)


def federation(sites: str = "abcde") -> Scripted:
    return Scripted(dict.fromkeys(sites, 10), answer, {"w": torch.zeros(1)}, multilabel=True)


def test_groups_of_three_of_five_and_their_mean() -> None:
    """scale 0: a group's model is the plain mean of its three; each site counts 1/3 for each group that has it."""
    here, method = federation(), RSCFed(subsets=4, scale=0.0)
    state = method.train(method.start(here), here)
    shares = here.recorded_sites["aggregation_weight"]
    assert sum(shares.values()) == pytest.approx(1.0)
    for share in shares.values():
        assert share * 12 == pytest.approx(round(share * 12)), "multiples of 1/3 of 1/4"
    assert float(state.weights["w"]) == pytest.approx(sum(shares[name] * STEP[name] for name in shares))
    other = method.train(method.start(here), here.at(1))
    assert float(other.weights["w"]) != float(state.weights["w"]), "groups are drawn anew each round"


def test_one_site_and_groups_larger_than_the_round() -> None:
    alone, few = federation("c"), federation("bc")
    method = RSCFed(members=6, subsets=2)
    assert float(method.train(method.start(alone), alone).weights["w"]) == 6.0
    assert float(method.train(method.start(few), few).weights["w"]) == pytest.approx(4.0)


def test_two_views_while_there_is_a_teacher() -> None:
    here = federation()
    for weight, views in ((1.0, 2), (0.0, 1)):
        method = RSCFed(weight=weight)
        method.train(method.start(here), here)
        request = here.asked[-1]["a"]
        assert isinstance(request, TrainWithAverage)
        assert request.recipe.views == views
        assert (request.decay, request.growing) == (0.999, True)


def test_mixup_is_refused() -> None:
    with pytest.raises(ConfigError, match="train.mixup = 0.5: this method compares two views"):
        RSCFed(local=Recipe(mixup=0.5))


class TestTheTeacherAtASite:
    samples, given = [[1.0], [-1.0], [2.0]], [[1, 0], [0, 0], [1, 0]]

    def visit(self, notebook: Notebook, start: list[list[float]], **how: Any) -> Trained:
        objective = PositiveWeighted() + MissingTo("average")
        recipe = Recipe(lr=0.1, batch_size=3, views=2, objective=objective)
        request = TrainWithAverage(plain_weights(start), recipe, **how)
        here = site(self.samples, self.given, classes=2, annotated=(0,), notebook=notebook)
        return request.answer(here)

    def test_it_goes_on_from_visit_to_visit(self) -> None:
        """One step a visit from a new model each time. Young: (v0 + w1) / 2, then (v0 + w1 + w2) / 3."""
        notebook = Notebook()
        first = self.visit(notebook, [[0.0], [1.0]]).weights["head.weight"]
        start = torch.tensor([[0.0], [1.0]])
        torch.testing.assert_close(notebook[AVERAGE]["head.weight"], (start + first) / 2)
        assert notebook[STEPS] == 1
        second = self.visit(notebook, [[3.0], [2.0]]).weights["head.weight"]
        torch.testing.assert_close(notebook[AVERAGE]["head.weight"], (start + first + second) / 3)
        assert notebook[STEPS] == 2

    def test_as_released_it_hardly_moves(self) -> None:
        notebook = Notebook()
        start = torch.tensor([[0.0], [1.0]])
        first = self.visit(notebook, [[0.0], [1.0]], growing=False).weights["head.weight"]
        expected = 0.999 * start + 0.001 * first
        torch.testing.assert_close(notebook[AVERAGE]["head.weight"], expected)

    def test_missing_classes_follow_the_teacher_alone(self) -> None:
        """At its first visit the teacher is the model itself: only the annotated class moves."""
        after = self.visit(Notebook(), [[0.0], [1.0]]).weights["head.weight"]
        assert float(after[1, 0]) == 1.0
        assert float(after[0, 0]) > 0.0

    def test_without_a_teacher_nothing_is_kept(self) -> None:
        notebook = Notebook()
        recipe = Recipe(objective=as_objective(PositiveWeighted()))
        here = site(self.samples, self.given, classes=2, annotated=(0,), notebook=notebook)
        TrainWithAverage(plain_weights([[0.0], [1.0]]), recipe).answer(here)
        assert AVERAGE not in notebook
