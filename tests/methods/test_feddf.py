"""FedDF: averages within a network, the ensemble over all, and one student for each network."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.formulas.losses import ensemble_distillation
from fedsift.methods.feddf import Contribute, EvaluateStudent, FedDF, FedDFState
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import RequestEnvelope, RequestMoment, Weights
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.in_process import InProcess
from fedsift.training.public_learning import PublicPart, learn
from fedsift.training.recipe import Recipe
from tests.methods.rhfl_small import LINEAR, WIDER, federated, federation, play

BASE = FedDF(rounds=2, local=Recipe(batch_size=4, lr=0.2))
MIXED = {"site-1": WIDER}


def _students(state: FedDFState, fed: InProcess, method: FedDF = BASE) -> dict[str, Weights]:
    """What each site would distil next."""
    lesson = method.lesson(state)
    assert lesson is not None
    envelope = {
        name: RequestEnvelope("r", name, RequestMoment(3, "", 9, 0), "", Contribute({}, None, Recipe(), None))
        for name in fed.sites
    }
    return {name: learn(fed.site(envelope[name]), state.models[state.networks[name]], lesson) for name in fed.sites}


def test_averages_are_weighted_by_size_within_a_network() -> None:
    """Sites 0 and 2 share a network and have 4 and 2 samples: w = (2 w_0 + w_2) / 3; site 1 stays alone."""
    data = federated()
    rows = {**data.rows, "site-2": data.rows["site-2"][:2]}
    given = {**data.given, "site-2": data.given["site-2"][:2]}
    data = dataclasses.replace(data, rows=rows, given=given)
    seen: dict[str, Any] = {}

    class Watched(InProcess):
        def deliver(self, envelopes: Any, deadline: float) -> Any:
            answers = super().deliver(envelopes, deadline)
            seen.update({name: answer.reply for name, answer in answers.items()})
            return answers

    fed = federation(data, Watched, models=MIXED)
    state = play(BASE, fed, stop=1)
    expected = (2 * seen["site-0"].weights["weight"] + seen["site-2"].weights["weight"]) / 3
    assert torch.allclose(state.models[LINEAR]["weight"], expected, atol=1e-6)
    assert all(torch.equal(value, seen["site-1"].weights[name]) for name, value in state.models[WIDER].items())
    scores = torch.stack([seen[name].outputs for name in fed.sites]).mean(0)
    assert torch.allclose(state.ensemble, scores, atol=1e-6)


def test_all_sites_of_a_network_distil_the_same_student() -> None:
    fed = federation(models=MIXED)
    state = play(BASE, fed, stop=1)
    students = _students(state, fed)
    assert torch.equal(students["site-0"]["weight"], students["site-2"]["weight"])
    assert not torch.equal(students["site-0"]["weight"], state.models[LINEAR]["weight"])


def test_distillation_brings_the_student_nearer_to_the_ensemble() -> None:
    fed = federation(models=MIXED)
    state = play(BASE, fed, stop=1)
    public = fed.public
    assert public is not None
    images = public.pool[PublicPart(0, 0, 10).positions(3, 10)]

    def gap(weights: Weights) -> float:
        return float(ensemble_distillation(images @ weights["weight"].T, state.ensemble).mean())

    assert gap(_students(state, fed)["site-0"]) < gap(state.models[LINEAR])


def test_a_round_starts_from_the_distilled_student() -> None:
    """With a vanishing private step, what a site sends is the student itself."""
    fed = federation(models=MIXED)
    state = play(BASE, fed, stop=1)
    students = _students(state, fed)
    request = Contribute(state.models[LINEAR], BASE.lesson(state), Recipe(batch_size=4, lr=1e-12), None)
    reply = request.answer(fed.site(RequestEnvelope("r", "site-0", RequestMoment(3, "x", 1, 0), "", request)))
    assert torch.allclose(reply.weights["weight"], students["site-0"]["weight"], atol=1e-7)
    assert reply.outputs is None


def test_the_student_is_judged_and_not_the_average() -> None:
    fed = federation(models=MIXED)
    state = play(BASE, fed)
    requests = BASE.evaluation(state)
    assert set(requests) == set(fed.sites)
    assert all(isinstance(request, EvaluateStudent) for request in requests.values())
    fed.begin(Round("train", 2, 2), ())
    metrics = Evaluator(fed, fed.test_set())(BASE, state)
    test = fed.test_set()
    assert test is not None
    samples, labels = test
    student = _students(state, fed)["site-0"]["weight"]
    right = (samples.pool[samples.rows] @ student.T).argmax(-1) == labels
    assert metrics["site_accuracy"]["site-0"] == pytest.approx(float(right.float().mean()))
    assert metrics["site_accuracy"]["site-0"] == metrics["site_accuracy"]["site-2"]
    assert metrics["mean_site_accuracy"] == pytest.approx(metrics["accuracy"])


def _final(method: FedDF) -> dict[str, Weights]:
    state = play(method, federation(models=MIXED))
    return dict(state.models)


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 3},
        {"fraction": 0.34},
        {"distil_epochs": 2},
        {"distil_lr": 0.001},
        {"distil_clip": 0.01},
        {"warm_up": 1},
    ],
    ids=str,
)
def test_every_switch_does_something(change: dict[str, Any]) -> None:
    base = dataclasses.replace(BASE, rounds=3 if "fraction" in change else 2)
    one, two = _final(base), _final(dataclasses.replace(base, **change))
    assert max(float((one[n][k] - two[n][k]).abs().max()) for n in one for k in one[n]) > 1e-6


def test_no_predictions_travel_while_warming_up() -> None:
    method = dataclasses.replace(BASE, rounds=2, warm_up=2)
    state = play(method, federation())
    assert state.ensemble is None
    assert method.lesson(state) is None


def test_bad_contributions_are_refused() -> None:
    fed = federation()
    state = play(BASE, fed, stop=1)
    request = Contribute(state.models[LINEAR], None, BASE.local, None)
    reply = request.answer(fed.site(RequestEnvelope("r", "site-0", RequestMoment(3, "x", 1, 0), "", request)))
    facts = fed.facts["site-0"]
    assert reply.refusal(request, facts) is None
    for change, reason in (
        ({"weights": {"weight": torch.zeros(1, 1)}}, "shape"),
        ({"samples": 5}, "samples = 5"),
        ({"outputs": torch.zeros(1, 1)}, "not asked for"),
    ):
        refusal = dataclasses.replace(reply, **change).refusal(request, facts)
        assert refusal is not None
        assert reason in refusal
    doubled = {"weight": 3 * request.weights["weight"]}
    assert dataclasses.replace(reply, weights=doubled).moves(request) == ((doubled, request.weights),)


@pytest.mark.parametrize("wrong", [{"distil_epochs": 0}, {"warm_up": -1}], ids=str)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedDF(**wrong)


def test_judged_as_trained_is_the_average_itself() -> None:
    method, fed = dataclasses.replace(BASE, judged="trained"), federation(models=MIXED)
    state = play(method, fed)
    assert BASE.lesson(state) is not None
    for site, request in method.evaluation(state).items():
        assert isinstance(request, EvaluateStudent)
        assert request.lesson is None
        assert request.weights is state.models[state.networks[site]]
