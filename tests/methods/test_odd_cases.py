"""Sites that the comparison methods' formulas were not made for: one sample, one class of three, labels that the model
disowns one and all. Every visit ends with a finite model and a reply that the gate takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedsift.methods._two_networks import TrainedPair
from fedsift.methods.co_teaching import PeersChoice, TrainCoTaught
from fedsift.methods.divide_mix import DivideMix, TrainDivided
from fedsift.methods.fedrn import TrainAmongNeighbours
from fedsift.methods.forward_correction import EstimateTransition, ThroughTransition, TrainCorrected
from fedsift.methods.joint_opt import JointOpt, TrainJointly
from fedsift.methods.rofl import RobustTerm, TrainRobustly
from fedsift.protocol.messages import Weights
from fedsift.training.objective import Objective, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from tests.methods.by_hand import plain_weights, site

KNOWS = plain_weights([[6.0, 0.0], [0.0, 6.0], [-3.0, -3.0]])
SITES: dict[str, tuple[list[list[float]], list[int]]] = {
    "one sample": ([[1.0, 0.0]], [0]),
    "one class": ([[1.0, 0.1 * k] for k in range(6)], [0] * 6),
    "all disowned": ([[1.0, 0.1 * k] for k in range(5)] + [[0.0, 1.0]], [2, 1, 2, 1, 2, 0]),
}


def recipe(loss: Any, **more: Any) -> Recipe:
    objective = loss if isinstance(loss, Objective) else as_objective(loss)
    return Recipe(lr=0.01, batch_size=4, objective=objective, **more)


VISITS: dict[str, Callable[[Weights], Train]] = {
    "co-teaching": lambda w: TrainCoTaught(w, recipe(PeersChoice()), twin=w, noise_rate=0.9),
    "co-teaching, estimated": lambda w: TrainCoTaught(w, recipe(PeersChoice()), twin=w),
    "dividemix": lambda w: TrainDivided(w, recipe(DivideMix().loss(25.0), mixup=4.0), twin=w),
    "joint-opt": lambda w: TrainJointly(w, recipe(JointOpt().joint_loss())),
    "rofl": lambda w: TrainRobustly(w, recipe(RobustTerm()), classes=3, refine=True, forget=0.9),
    "rofl, as published": lambda w: TrainRobustly(
        w, recipe(RobustTerm()), classes=3, refine=True, sure=0.0, guarded=False
    ),
    "fedrn, one neighbour": lambda w: TrainAmongNeighbours(
        w, Recipe(lr=0.01, batch_size=4), neighbours=(w,), scores=(0.0, 1.0)
    ),
    "fedrn, as published": lambda w: TrainAmongNeighbours(
        w, Recipe(lr=0.01, batch_size=4), guarded=False, balanced=False
    ),
    "lc": lambda w: TrainCorrected(w, recipe(ThroughTransition())),
    "t-revision": lambda w: TrainCorrected(w, recipe(ThroughTransition("reweight", revise=True)), revision_lr=10.0),
}


@pytest.mark.parametrize("visit", VISITS)
@pytest.mark.parametrize("which", SITES)
def test_a_visit_ends_well(visit: str, which: str) -> None:
    samples, given = SITES[which]
    here = site(samples, given, classes=3)
    for estimator in ("anchor", "confident"):
        if visit in ("lc", "t-revision"):
            EstimateTransition(KNOWS, 3, estimator).answer(here)  # type: ignore[arg-type]
        request = VISITS[visit](KNOWS)
        for _ in range(2):  # the second visit goes on with what the first one wrote down
            reply = request.answer(here)
            models = [reply.weights, *([reply.twin] if isinstance(reply, TrainedPair) else [])]
            assert all(torch.isfinite(tensor).all() for model in models for tensor in model.values())
            assert reply.refusal(request, here.facts) is None
            assert torch.isfinite(torch.tensor(reply.loss))
