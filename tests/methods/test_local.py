"""Local training: sites alone, models of their own, judged at the sites."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedsift.methods.local_training import LocalTraining
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import RequestEnvelope, RequestMoment
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.in_process import InProcess
from fedsift.training.own_models import EvaluateOwn, TrainOwn, own_model
from fedsift.training.recipe import Recipe
from tests.methods.rhfl_small import LINEAR, WIDER, distance, federated, federation, models_of, play

BASE = LocalTraining(rounds=2, local=Recipe(batch_size=4, lr=0.5))


def test_a_site_alone_by_hand() -> None:
    """Four samples in one batch, two rounds: two gradient steps of cross-entropy from its own start."""
    fed = federation()
    play(BASE, fed)
    for name in fed.sites:
        own = fed.site(RequestEnvelope("r", name, RequestMoment(3, "", 0, 0), "", EvaluateOwn()))
        own.notebook.pages().clear()
        weight = own_model(_forgetful(fed, name))["weight"]
        x, y = own.samples.pool[own.samples.rows], torch.nn.functional.one_hot(own.given, 3).float()
        for _ in range(2):
            weight = weight - 0.5 * (torch.softmax(x @ weight.T, -1) - y).T @ x / 4
        assert torch.allclose(models_of(fed)[name]["weight"], weight, atol=1e-6)


def _forgetful(fed: InProcess, name: str):  # type: ignore[no-untyped-def]
    """The site before it ever trained."""
    return federation(fed.federated).site(RequestEnvelope("r", name, RequestMoment(3, "", 0, 0), "", EvaluateOwn()))


def test_nobody_influences_anybody() -> None:
    """Other labels at one site change its model and no other."""
    data = federated()
    changed = dataclasses.replace(data, given={**data.given, "site-0": (data.given["site-0"] + 1) % 3})
    one, two = federation(data), federation(changed)
    play(BASE, one)
    play(BASE, two)
    a, b = models_of(one), models_of(two)
    assert distance({"site-0": a["site-0"]}, {"site-0": b["site-0"]}) > 1e-3
    assert distance({n: a[n] for n in ("site-1", "site-2")}, {n: b[n] for n in ("site-1", "site-2")}) == 0


def test_sites_start_from_models_of_their_own() -> None:
    fed = federation()
    starts = [own_model(_forgetful(fed, name))["weight"] for name in fed.sites]
    assert not torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], own_model(_forgetful(federation(), "site-0"))["weight"])


def test_only_scalars_leave() -> None:
    fed = federation(models={"site-1": WIDER})
    state = play(BASE, fed)
    assert state.weights == {}
    assert BASE.model(state) is None
    request = TrainOwn(BASE.local)
    reply = request.answer(_forgetful(fed, "site-0"))
    assert isinstance(reply.loss, float)
    assert set(vars(reply)) == {"loss", "samples"}
    assert dataclasses.replace(reply, samples=5).refusal(request, fed.facts["site-0"]) is not None


def test_each_site_is_judged_on_the_common_test_set() -> None:
    fed = federation(models={"site-1": WIDER})
    state = play(BASE, fed)
    fed.begin(Round("train", 2, 2), ())
    metrics = Evaluator(fed, fed.test_set())(BASE, state)
    test = fed.test_set()
    assert test is not None
    x, y = test[0].pool[test[0].rows], test[1]
    right = (x @ models_of(fed)["site-0"]["weight"].T).argmax(-1) == y
    each = metrics["site_accuracy"]
    assert each["site-0"] == pytest.approx(float(right.float().mean()))
    assert metrics["mean_site_accuracy"] == pytest.approx(sum(each.values()) / 3)
    assert metrics["accuracy"] == pytest.approx(metrics["mean_site_accuracy"])
    assert metrics["evaluated_on"] == 3 * 9
    assert fed.site_records["accuracy"] == each


def test_without_a_test_set_on_what_each_site_holds_out() -> None:
    """Held-out parts of 1 and 3 samples: the pooled accuracy counts samples, the mean counts sites."""
    data = federated(sites=2, each=4, test=0)
    data = dataclasses.replace(
        data,
        rows={"site-0": np.array([0, 1, 2]), "site-1": np.array([4])},
        given={"site-0": data.given["site-0"][:3], "site-1": data.given["site-1"][:1]},
        held_out={"site-0": np.array([3]), "site-1": np.array([5, 6, 7])},
        held_out_given={"site-0": data.given["site-0"][3:], "site-1": data.given["site-1"][1:]},
    )
    fed = federation(data)
    state = play(BASE, fed)
    fed.begin(Round("train", 2, 2), ())
    metrics = Evaluator(fed, fed.test_set())(BASE, state)
    each = metrics["site_accuracy"]
    assert metrics["accuracy"] == pytest.approx((each["site-0"] + 3 * each["site-1"]) / 4)
    assert metrics["mean_site_accuracy"] == pytest.approx((each["site-0"] + each["site-1"]) / 2)
    reply = EvaluateOwn().answer(
        fed.site(RequestEnvelope("r", "site-1", RequestMoment(3, "", 0, 0), "", EvaluateOwn()))
    )
    assert reply.where == "held out"
    facts = fed.facts["site-1"]
    assert reply.refusal(EvaluateOwn(), facts) is None
    assert dataclasses.replace(reply, samples=4).refusal(EvaluateOwn(), facts) is not None
    assert dataclasses.replace(reply, where="elsewhere").refusal(EvaluateOwn(), facts) is not None


def test_one_site_is_a_federation_too() -> None:
    fed = federation(federated(sites=1), model=LINEAR)
    play(BASE, fed)
    assert set(models_of(fed)) == {"site-0"}


def test_more_rounds_are_more_training() -> None:
    one, two = federation(), federation()
    play(BASE, one)
    play(dataclasses.replace(BASE, rounds=3), two)
    assert distance(models_of(one), models_of(two)) > 1e-3
