"""FedDyn, coordinate median and power-of-choice against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods.feddyn import MEMORY, DynamicRound, FedDyn, TrainDynamically, begin_dynamics
from fedsift.methods.fedmedian import FedMedian
from fedsift.methods.power_of_choice import PowerOfChoice
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.method import State
from fedsift.protocol.site import Site
from fedsift.testing import Scripted
from fedsift.training.objective import CrossEntropy, Proximal, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Indicate, Indicators, Train, Trained
from tests.methods.by_hand import plain_weights, site


def shifting(name: str, request: Request[Any]) -> Reply | None:
    """Site s_i moves the weight by i + 1; its loss under the global model is i + 1 too."""
    step = float(name[1:]) + 1
    if isinstance(request, Train):
        return Trained({"w": request.weights["w"] + step}, 10, 0.5)
    assert isinstance(request, Indicate)
    return Indicators(torch.tensor([step]), torch.tensor([True]), 10)


def four(sizes: tuple[int, ...] = (10, 10, 10, 10)) -> Scripted:
    return Scripted({f"s{i}": n for i, n in enumerate(sizes)}, shifting, {"w": torch.zeros(1)})


# FedDyn


def test_feddyn_server_by_hand() -> None:
    """Two of four sites: mean (1 + 2) / 2; memories sum to 3 and count over all four sites: 1.5 + 3/4."""
    federation = four()
    dynamics = begin_dynamics({"w": torch.zeros(1)}, [])
    averaged, after = DynamicRound(0.1)(federation, dynamics, Recipe(), ["s0", "s1"])
    assert averaged["w"].item() == pytest.approx(1.5)
    assert after.memory["w"].item() == pytest.approx(3.0)
    assert after.cloud["w"].item() == pytest.approx(2.25)
    averaged, after = DynamicRound(0.1)(federation, after, Recipe(), ["s2", "s3"])
    assert averaged["w"].item() == pytest.approx(2.25 + 3.5)
    assert after.memory["w"].item() == pytest.approx(3.0 + 7.0)
    assert after.cloud["w"].item() == pytest.approx(5.75 + 10 / 4)


def test_feddyn_weighs_alpha_by_size() -> None:
    """Sizes 10 and 30: relative sizes 1/2 and 3/2, so alpha doubles at the small site."""
    for by_size, expected in ((True, [0.4, 0.4 / 3]), (False, [0.2, 0.2])):
        federation = Scripted({"s0": 10, "s1": 30}, shifting, {"w": torch.zeros(1)})
        DynamicRound(0.2, by_size)(federation, begin_dynamics({"w": torch.zeros(1)}, []), Recipe(), ["s0", "s1"])
        strengths = [own.recipe.objective.terms[-1] for _, _, own in federation.log]
        assert strengths == [(pytest.approx(alpha), Proximal(power=2)) for alpha in expected]


def test_feddyn_running_statistics_are_averaged_without_memory() -> None:
    weights = {"w": torch.zeros(1), "running_mean": torch.zeros(1)}

    def answer(name: str, request: Request[Any]) -> Reply | None:
        step = float(name[1:]) + 1
        return Trained({key: value + step for key, value in request.weights.items()}, 10, 0.5)  # type: ignore[attr-defined]

    federation = Scripted({"s0": 10, "s1": 10}, answer, weights)
    dynamics = begin_dynamics(weights, ["running_mean"])
    assert list(dynamics.memory) == ["w"]
    averaged, after = DynamicRound(0.1)(federation, dynamics, Recipe(), ["s0", "s1"])
    assert after.cloud["running_mean"].item() == averaged["running_mean"].item() == pytest.approx(1.5)
    assert after.cloud["w"].item() == pytest.approx(3.0)


def here() -> Site:
    return site([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes=2)


def test_feddyn_gradient_at_a_site_by_hand() -> None:
    """One full-batch step of lr 1 from w with alpha = 0.5: w - grad CE(w) on the first visit (h = 0), and
    w - grad CE(w) - 0.5 h on the second, h being what the first visit moved."""
    names = ("head.weight", "head.bias")
    start = plain_weights([[0.2, 0.0], [0.0, 0.1]])
    recipe = Recipe(batch_size=2, lr=1.0, objective=as_objective(CrossEntropy()) + 0.5 * Proximal(power=2))
    plain = Train(start, replace(recipe, objective=as_objective(CrossEntropy()))).answer(here())
    place = here()
    ask = TrainDynamically(start, recipe, trained_names=names)
    first = ask.answer(place)
    memory = place.notebook[MEMORY]
    for name in names:
        torch.testing.assert_close(first.weights[name], plain.weights[name])
        torch.testing.assert_close(memory[name], first.weights[name] - start[name])
    second = ask.answer(place)
    for name in names:
        torch.testing.assert_close(second.weights[name], plain.weights[name] - 0.5 * memory[name])
        torch.testing.assert_close(place.notebook[MEMORY][name], memory[name] + second.weights[name] - start[name])
    assert second.refusal(ask, place.facts) is None


def test_feddyn_decays_and_clips() -> None:
    federation = four()
    method = FedDyn(rounds=3, decay=0.5, clip=7.0, local=Recipe(lr=0.8))
    state = method.start(federation)
    for index in range(3):
        state = method.train(state, federation.at(index))
    rates = [own.recipe.lr for _, name, own in federation.log if name == "s0"]
    assert rates == pytest.approx([0.8, 0.4, 0.2])
    assert {own.recipe.clip for _, _, own in federation.log} == {7.0}
    assert method.model(state)["w"] is state.weights["w"]  # type: ignore[index]


def test_feddyn_without_alpha_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha"):
        FedDyn(alpha=0.0)


# Median


def test_median_of_four_is_between_the_middle_two() -> None:
    federation = four((1000, 10, 10, 10))  # sizes play no role
    method = FedMedian()
    assert method.train(method.start(federation), federation.at(0)).weights["w"].item() == pytest.approx(2.5)


# Power-of-choice


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    federation, zero = four(), State({"w": torch.zeros(1)})
    assert PowerOfChoice(fraction=0.5, pool=4).choose(zero, federation.at(0)) == ["s2", "s3"]
    assert federation.asked_of(Indicate) == ["s0", "s1", "s2", "s3"]


def test_power_of_choice_draws_candidates_by_size() -> None:
    """One of d = 1 candidates: with sizes 1 and 99 the large site comes up about 99 times of 100."""
    federation = Scripted({"s0": 1, "s1": 99}, shifting, {"w": torch.zeros(1)})
    method, zero = PowerOfChoice(fraction=0.5, pool=1), State({"w": torch.zeros(1)})
    drawn = [method.choose(zero, federation.at(i))[0] for i in range(300)]
    assert np.mean([name == "s1" for name in drawn]) == pytest.approx(0.99, abs=0.02)


def test_power_of_choice_pool_is_at_least_the_cohort_and_passes_the_silent_over() -> None:
    def without_s3(name: str, request: Request[Any]) -> Reply | None:
        return None if name == "s3" else shifting(name, request)

    federation = Scripted({f"s{i}": 10 for i in range(4)}, without_s3, {"w": torch.zeros(1)})
    method = PowerOfChoice(fraction=1.0, pool=1)
    state = method.train(method.start(federation), federation.at(0))
    assert federation.asked_of(Indicate) == ["s0", "s1", "s2", "s3"]
    assert federation.asked_of(Train) == ["s0", "s1", "s2"]
    assert state.weights["w"].item() == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="pool"):
        PowerOfChoice(pool=0)
