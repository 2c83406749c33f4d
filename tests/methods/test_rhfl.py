"""RHFL against hand-derived steps, the golden confidence weights and a plain loop of its algorithm."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.methods.rhfl import RHFL, RHFLState
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment
from fedsift.protocol.site import Samples
from fedsift.runtime.in_process import InProcess
from fedsift.training.objective import SymmetricCrossEntropy
from fedsift.training.own_models import mean_objective, own_model
from fedsift.training.public_learning import (
    OPTIMISER,
    Collaborate,
    PublicLesson,
    PublicPart,
    PublicPredictions,
    learn,
)
from fedsift.training.recipe import Augment, Recipe
from tests.methods.rhfl_small import (
    LINEAR,
    NORMED,
    WIDER,
    distance,
    federated,
    federation,
    models_of,
    play,
    site,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "vectors" / "rhfl_ccr.json"
ADAM = Recipe(batch_size=4, optimiser="adam", lr=0.05)
BASE = RHFL(rounds=2, pretrain_rounds=1, pretrain_epochs=2, local=ADAM)

# One site, by hand ------------------------------------------------------------------------------------


def test_one_visit_by_hand() -> None:
    """z = W x from W = 0, so p = (1/2, 1/2) on both public rows e_1 and e_2; one batch, SGD with step 1.

    Learn: the gradient of -sum_c M_c log p_c is S p - M with S = sum_c M_c = 3/4. For M = (0.6, 0.15) it is
    (-0.225, 0.225), for M = (0.3, 0.45) it is (0.075, -0.075); the mean over two rows halves them, so
    W = [[0.1125, -0.0375], [-0.1125, 0.0375]].

    Train on x = e_1, y = 0: with q = sigmoid(2 * 0.1125), CE has gradient (q - 1, 1 - q), RCE = 4 (1 - q)
    has (-4 q (1 - q), 4 q (1 - q)); alpha = 0.1, beta = 1.
    """
    rows = torch.eye(2)
    part = PublicPart(0, 0, 2)
    order = part.positions(7, 2)
    target = torch.tensor([[0.6, 0.15], [0.3, 0.45]])[order]
    step = Recipe(batch_size=2, lr=1.0)
    loss = SymmetricCrossEntropy(0.1, 1.0, -4.0)
    here = site(rows[:1], [0], rows, weights={"weight": torch.zeros(2, 2)})
    request = Collaborate(
        learn=PublicLesson(part, target, "mixture", step),
        train=dataclasses.replace(step, objective=1.0 * loss),
        measure=1.0 * loss,
        show=PublicPredictions(part, 2),
    )
    reply = request.answer(here)

    q = 1 / (1 + math.exp(-0.225))
    move = 0.1 * (1 - q) + 4 * q * (1 - q)
    first, second = 0.1125 + move, -0.0375
    weight = here.notebook["model"]["weight"]
    assert torch.allclose(weight, torch.tensor([[first, second], [-first, -second]]), atol=1e-6)
    q1, q2 = 1 / (1 + math.exp(-2 * first)), 1 / (1 + math.exp(-2 * second))
    assert reply.private_loss == pytest.approx(-0.1 * math.log(q1) + 4 * (1 - q1), abs=1e-6)
    expected = torch.tensor([[q1, 1 - q1], [q2, 1 - q2]])[order]
    assert reply.outputs is not None
    assert torch.allclose(reply.outputs, expected, atol=1e-6)
    # the training loss is the objective before its one step: alpha ln(1/q) + 4 (1 - q)
    assert reply.loss == pytest.approx(-0.1 * math.log(q) + 4 * (1 - q), abs=1e-6)
    assert reply.samples == 1
    assert request.reply_type is type(reply)
    assert reply.refusal(request, here.facts) is None


def test_a_mixture_teaches_what_all_teachers_together_would() -> None:
    """The gradient of -sum_c M_c log p_c with M = sum_i a_i p_i is that of sum_i a_i KL(p_i || p)."""
    generator = torch.Generator().manual_seed(0)
    teachers = torch.softmax(torch.randn(3, 5, 4, generator=generator), -1)
    shares = torch.tensor([0.2, 0.35, 0.25])
    gradients = []
    for kind in ("mixture", "each"):
        logits = torch.ones(5, 4).cumsum(0).cumsum(1).div(7).requires_grad_()
        log_p = F.log_softmax(logits, -1)
        if kind == "each":
            loss = sum(a * F.kl_div(log_p, p, reduction="batchmean") for a, p in zip(shares, teachers))
        else:
            target = torch.einsum("s,snk->nk", shares, teachers)
            loss = PublicLesson(PublicPart(0, 0, 5), target, "mixture", Recipe()).value(logits, target)
        loss.backward()  # type: ignore[union-attr]
        gradients.append(logits.grad)
    assert torch.allclose(*gradients, atol=1e-7)


def _lesson(recipe: Recipe, optimiser: Any) -> PublicLesson:
    target = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    return PublicLesson(PublicPart(0, 0, 4), target, "mixture", recipe, optimiser)


def test_a_fresh_adam_takes_a_full_step_for_every_batch() -> None:
    """Adam's first step is -lr g / (|g| + eps): two batches from scratch are two steps of one length."""
    rows = torch.ones(4, 1)
    lesson = _lesson(Recipe(batch_size=2, optimiser="adam", lr=0.01), "batch")
    here = site(rows, [0, 0, 0, 0], rows, weights={"weight": torch.zeros(2, 1)})
    moved = learn(here, own_model(here), lesson)["weight"]
    # each batch's two targets ask for more of class 0 in sum, or for class 1; signs are those of mean(M) - p
    signs = []
    weight = 0.0
    for start in (0, 2):
        p = 1 / (1 + math.exp(-2 * weight))
        gradient = p - float(lesson.target[start : start + 2, 0].mean())
        signs.append(-math.copysign(1, gradient))
        weight += 0.01 * signs[-1]
    assert float(moved[0, 0]) == pytest.approx(weight, abs=1e-5)


def test_a_persistent_optimiser_lives_on_in_the_notebook() -> None:
    """Two visits with moments kept are four steps of one Adam; without, they are not."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4, 3, generator=generator)
    recipe = Recipe(batch_size=2, optimiser="adam", lr=0.1)

    def after_two_visits(kept: str) -> Tensor:
        here = site(rows, [0] * 4, rows, weights={"weight": torch.zeros(2, 3)})
        for _ in range(2):
            here.notebook["model"] = learn(here, own_model(here), _lesson(recipe, kept))
        assert (OPTIMISER in here.notebook) == (kept == "run")
        weight: Tensor = here.notebook["model"]["weight"]
        return weight

    part = PublicPart(0, 0, 4)
    here = site(rows, [0] * 4, rows)
    student = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.zeros_(student.weight)
    adam = torch.optim.Adam(student.parameters(), 0.1)
    for _ in range(2):
        for start in (0, 2):
            order = torch.arange(start, start + 2)
            loss = _lesson(recipe, "run").value(student(part.images(here, order)), _lesson(recipe, "run").target[order])
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    assert torch.allclose(after_two_visits("run"), student.weight, atol=1e-6)
    assert not torch.allclose(after_two_visits("visit"), student.weight, atol=1e-3)
    assert not torch.allclose(after_two_visits("batch"), after_two_visits("visit"), atol=1e-3)


def test_older_notebooks_keep_their_moments() -> None:
    """An optimiser works on copies: the pages of the last visit stay what they were."""
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    here = site(rows, [0] * 4, rows, weights={"weight": torch.zeros(2, 3)})
    lesson = _lesson(Recipe(batch_size=2, optimiser="adam", lr=0.1), "run")
    learn(here, own_model(here), lesson)
    page = here.notebook[OPTIMISER]
    before = {key: value.clone() for key, value in page[0].items()}
    learn(here, own_model(here), lesson)
    assert all(torch.equal(page[0][key], value) for key, value in before.items())
    assert not torch.equal(here.notebook[OPTIMISER][0]["exp_avg"], before["exp_avg"])


# Confidence, eqs. 9-13 --------------------------------------------------------------------------------

CASES = json.loads(GOLDEN.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_confidence_is_the_golden_one(case: Mapping[str, Any]) -> None:
    inputs = case["inputs"]
    method = RHFL(eta=inputs["eta"], ccr_mode=inputs["mode"])
    losses = inputs["losses"]
    names = [f"s{k}" for k in range(len(losses[0]))]
    outputs = {name: torch.full((1, 2), 0.5) for name in names}
    fed = federation()
    earlier: dict[str, float] = {}
    for row, expected in zip(losses, case["expected"]["rounds"]):
        now = dict(zip(names, row))
        found = method.confidence(RHFLState(outputs=outputs, losses=now, earlier=earlier), fed)
        assert list(found) == names
        np.testing.assert_allclose(list(found.values()), expected["W"], rtol=1e-7, atol=1e-9)
        earlier = now


def test_equal_losses_trust_all_alike() -> None:
    outputs = {name: torch.full((1, 2), 0.5) for name in "abcd"}
    same = dict.fromkeys("abcd", 0.7)
    found = RHFL().confidence(RHFLState(outputs=outputs, losses=same, earlier=same), federation())
    assert found == pytest.approx(dict.fromkeys("abcd", 0.25))


def test_a_site_without_an_earlier_loss_has_no_confidence_of_its_own() -> None:
    """F = 0 for it, so w = 1 / (K - 1); the others' confidence is shared among them."""
    outputs = {name: torch.full((1, 2), 0.5) for name in "abc"}
    state = RHFLState(outputs=outputs, losses={"a": 1.0, "b": 1.0, "c": 1.0}, earlier={"a": 2.0, "b": 2.0})
    found = RHFL(eta=1.0).confidence(state, federation())
    high, low = math.exp(0.5 + 0.5), math.exp(0.5)
    assert found == pytest.approx(
        {"a": high / (2 * high + low), "b": high / (2 * high + low), "c": low / (2 * high + low)}
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (RHFL(ccr=False), [0.5, 0.0, 0.5]),
        (RHFL(weigh="teacher"), [0.2, 0.0, 0.5]),
        (RHFL(weigh="own"), [0.3, 0.0, 0.3]),
    ],
)
def test_shares_of_the_teachers(method: RHFL, expected: list[float]) -> None:
    confidence = {"a": 0.2, "b": 0.3, "c": 0.5} if method.ccr else {}
    assert method.shares("b", ["a", "b", "c"], confidence).tolist() == pytest.approx(expected)


def test_a_student_whose_reply_was_refused_learns_from_all_others() -> None:
    assert RHFL().shares("late", ["a", "b"], {"a": 0.4, "b": 0.6}).tolist() == pytest.approx([0.4, 0.6])
    assert RHFL(weigh="own").shares("late", ["a", "b"], {"a": 0.4, "b": 0.6}).tolist() == [0.5, 0.5]
    assert RHFL(ccr=False).shares("late", ["a", "b"], {}).tolist() == [0.5, 0.5]


# The whole algorithm ----------------------------------------------------------------------------------


def _symmetric(logits: Tensor, labels: Tensor) -> Tensor:
    """0.1 CE + RCE with log 0 = ln 1e-4, written out."""
    p = torch.softmax(logits, -1).clamp(1e-7, 1.0)
    log_label = torch.log(F.one_hot(labels, logits.shape[-1]).to(logits).clamp(1e-4, 1.0))
    return 0.1 * F.cross_entropy(logits, labels) - (p * log_label).sum(-1).mean()


class Plain:
    """RHFL's released loop in one process, for networks without batch norm: the reference."""

    def __init__(self, fed: InProcess, refresh: bool) -> None:
        self.refresh = refresh
        self.sites = [
            fed.site(RequestEnvelope("r", name, RequestMoment(3, "", 0, 0), "", Collaborate())) for name in fed.sites
        ]
        self.networks = []
        for own in self.sites:
            network = torch.nn.Linear(3, 3, bias=False) if own.facts.model == LINEAR else _wide()
            network.load_state_dict(own_model(own))
            self.networks.append(network)

    def train(self, epochs: int) -> None:
        for own, network in zip(self.sites, self.networks):
            adam = torch.optim.Adam(network.parameters(), 0.05)
            for _ in range(epochs):  # four samples, batches of four: order does not matter
                loss = _symmetric(network(own.samples.pool[own.samples.rows]), own.given)
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()

    def losses(self) -> list[float]:
        with torch.no_grad():
            return [
                float(_symmetric(net(own.samples.pool[own.samples.rows]), own.given))
                for own, net in zip(self.sites, self.networks)
            ]

    def collaborate(self, epoch: int, trust: list[float]) -> None:
        order = PublicPart(epoch, 0, 10).positions(3, 10)
        public = self.sites[0].public
        assert public is not None
        images = public.pool[order]
        frozen = [F.softmax(net(images), -1).detach() for net in self.networks]
        for batch in (slice(0, 4), slice(4, 8), slice(8, 10)):
            teachers = [
                F.softmax(net(images[batch]), -1).detach() if self.refresh else p[batch]
                for net, p in zip(self.networks, frozen)
            ]
            for k, network in enumerate(self.networks):
                adam = torch.optim.Adam(network.parameters(), 0.05)
                log_p = F.log_softmax(network(images[batch]), -1)
                loss = sum(
                    trust[i] * F.kl_div(log_p, p, reduction="batchmean") for i, p in enumerate(teachers) if i != k
                )
                adam.zero_grad()
                loss.backward()  # type: ignore[union-attr]
                adam.step()


def _wide() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def _trust(now: list[float], before: list[float] | None) -> list[float]:
    """Eqs. 9-13, written out."""
    count = len(now)
    if before is None:
        return [1 / (count - 1)] * count
    confidence = [(b - n) / n for n, b in zip(now, before)]
    raw = [1 / (count - 1) + 0.5 * f / sum(confidence) for f in confidence]
    total = sum(math.exp(w) for w in raw)
    return [math.exp(w) / total for w in raw]


@pytest.mark.parametrize("exchange", ["epoch", "batch"])
def test_the_method_is_the_plain_loop(exchange: str) -> None:
    """Three sites, two networks, pre-training and three communication epochs: every weight of every site."""
    method = dataclasses.replace(BASE, rounds=3, exchange=exchange)
    networks = {"site-1": WIDER}
    fed = federation(models=networks)
    play(method, fed)

    plain = Plain(federation(models=networks), refresh=exchange == "batch")
    plain.train(2)
    now, before = plain.losses(), None
    for epoch in range(3):
        plain.collaborate(epoch, _trust(now, before))
        plain.train(1)
        now, before = plain.losses(), now
    expected = {own.name: net.state_dict() for own, net in zip(plain.sites, plain.networks)}
    # a fresh Adam divides a gradient by its own size, which magnifies the last bits of small ones
    assert distance(models_of(fed), expected) < 2e-4


def test_epoch_and_batch_exchange_differ_only_where_there_are_several_batches() -> None:
    def final(exchange: Any, batch_size: int) -> Any:
        local = dataclasses.replace(ADAM, batch_size=batch_size)
        fed = federation()
        play(dataclasses.replace(BASE, exchange=exchange, local=local), fed)
        return models_of(fed)

    assert distance(final("epoch", 10), final("batch", 10)) == 0
    assert distance(final("epoch", 4), final("batch", 4)) > 1e-4


def test_one_exchange_a_round() -> None:
    """One ask a round; a mixture goes to the sites, predictions and scalars come back, and no model."""
    asked: list[RequestEnvelope] = []

    class Watched(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            asked.extend(envelopes.values())
            return super().deliver(envelopes, deadline)

    fed = federation(kind=Watched)
    play(BASE, fed)
    assert len(asked) == 3 * BASE.total_rounds
    for envelope in asked:
        request = envelope.request
        assert isinstance(request, Collaborate)
        assert request.learn is None or request.learn.target.shape == (10, 3)
    asked.clear()
    play(dataclasses.replace(BASE, exchange="batch"), federation(kind=Watched))
    assert len(asked) == 3 * (1 + 2 * 3), "pre-training, then two rounds of three public batches"


SWITCHES: dict[str, dict[str, Any]] = {
    "hfl": {"hfl": False},
    "sl": {"sl": False},
    "ccr": {"ccr": False},
    "alpha": {"alpha": 1.0},
    "beta": {"beta": 0.2},
    "rce_log0": {"rce_log0": -4.0},
    "eta": {"eta": 5.0},
    "weigh": {"weigh": "own"},
    "exchange": {"exchange": "batch"},
    "public_opt persistent": {"public_opt": "persistent"},
    "public_opt sgd": {"public_opt": "sgd"},
    "public_lr": {"public_lr": 0.001},
    "local_epochs": {"local_epochs": 2},
    "local_epochs by ratio": {"local_epochs": "ratio"},
    "rounds": {"rounds": 4},
    "pretrain_rounds": {"pretrain_rounds": 2},
    "no pre-training": {"pretrain_rounds": 0},
    "pretrain_epochs": {"pretrain_epochs": 3},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_does_something(switch: str) -> None:
    # sites of 16 samples and 6 public ones, so that N_k / N_0 is 3 epochs and not 1
    data = federated(each=16, public=6)
    # a fresh Adam sees only the signs of a gradient; plain SGD shows its size, which some switches change
    local = ADAM if switch.startswith("public_opt") else dataclasses.replace(ADAM, optimiser="sgd")
    base = dataclasses.replace(BASE, rounds=3, local=local)
    results = []
    for method in (base, dataclasses.replace(base, **SWITCHES[switch])):
        fed = federation(data)
        play(method, fed)
        results.append(models_of(fed))
    assert distance(*results) > 1e-6


@pytest.mark.parametrize("mode", ["abs", "clip"])
def test_ccr_mode_guards_against_rising_losses(mode: Any) -> None:
    """Losses 1 -> 2, 1 -> 1.1, 1 -> 0.9: as printed sum F = -0.48 and the site that got worst leads."""
    outputs = {name: torch.full((1, 2), 0.5) for name in "abc"}
    state = RHFLState(outputs=outputs, losses={"a": 2.0, "b": 1.1, "c": 0.9}, earlier=dict.fromkeys("abc", 1.0))
    printed = RHFL().confidence(state, federation())
    guarded = RHFL(ccr_mode=mode).confidence(state, federation())
    assert max(printed, key=lambda s: printed[s]) == "a"
    assert max(guarded, key=lambda s: guarded[s]) == "c"


def test_hfl_off_is_private_training_with_the_symmetric_loss() -> None:
    method = dataclasses.replace(BASE, hfl=False)
    fed = federation()
    state = play(method, fed)
    assert state.outputs == {}
    assert state.losses == {}
    plain = Plain(federation(), refresh=False)
    plain.train(2)
    for _ in range(2):
        plain.train(1)
    expected = {own.name: net.state_dict() for own, net in zip(plain.sites, plain.networks)}
    assert distance(models_of(fed), expected) < 1e-5


def test_private_losses_on_augmented_images_when_asked() -> None:
    """Rolled pictures give another loss; with the site's own draws, so that asking again gives the same."""
    pictures = torch.arange(4 * 64, dtype=torch.uint8).reshape(4, 1, 8, 8)
    samples = Samples(pictures, torch.arange(4))
    here = site(torch.zeros(4, 3), [0, 1, 0, 1], torch.zeros(2, 3), model="mlp")
    here.samples = samples
    loss = 1.0 * SymmetricCrossEntropy()
    weights = own_model(here)
    plain = mean_objective(here, weights, loss)
    rolled = mean_objective(here, weights, loss, Augment(flip=True, crop=2))
    assert plain != pytest.approx(rolled, abs=1e-6)
    assert rolled == mean_objective(here, weights, loss, Augment(flip=True, crop=2))
    fed = federation()
    local = dataclasses.replace(ADAM, augment=Augment(flip=True))
    for mode, expected in (("eval", None), ("train", Augment(flip=True))):
        visit = RHFL(statistics_on=mode, local=local).visit(fed, None, None, None, closing=True)
        assert visit.measure_augment == expected


def test_teachers_may_use_the_statistics_of_the_batch() -> None:
    """With batch norm's running mean at 0 and public rows around 5, the two modes cannot agree."""
    rows = 5 + torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    here = site(rows, [0] * 6, rows, model=NORMED)
    weights = own_model(here)
    part = PublicPart(0, 0, 6)
    running = PublicPredictions(part, 2, mode="eval").outputs(here, weights)
    batch = PublicPredictions(part, 2, mode="train").outputs(here, weights)
    assert not torch.allclose(running, batch, atol=1e-3)
    halves = PublicPredictions(part, 2, mode="train", batch_size=3).outputs(here, weights)
    assert not torch.allclose(batch, halves, atol=1e-3)
    fed = federation()
    for mode in ("eval", "train"):
        show = RHFL(outputs_in=mode).visit(fed, None, None, part, closing=False).show  # type: ignore[arg-type]
        assert show is not None
        assert show.mode == mode


def test_public_pictures_are_augmented_alike_at_every_site() -> None:
    pool = torch.randint(0, 255, (6, 1, 8, 8), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    one, two = (site(torch.zeros(2, 3), [0, 1], torch.zeros(2, 3), name=name) for name in "ab")
    for here in (one, two):
        here.public = Samples(pool, torch.arange(6))
    [part] = RHFL(public_augment=Augment(flip=True, crop=2)).parts(0, 6)
    order = torch.tensor([4, 1, 3])
    assert torch.equal(part.images(one, order), part.images(two, order))
    plain = PublicPart(0, 0, 6).images(one, order)
    assert not torch.equal(part.images(one, order), plain)
    [later] = RHFL(public_augment=Augment(flip=True, crop=2)).parts(1, 6)
    assert later.positions(7, 6).tolist() != part.positions(7, 6).tolist()


# Odd federations --------------------------------------------------------------------------------------


def test_two_sites_learn_from_each_other_alone() -> None:
    """1 / (K - 1) = 1 in the first epoch: each one's lesson is exactly the other's predictions."""
    fed = federation(federated(sites=2))
    state = play(BASE, fed, stop=1)
    part = BASE.parts(0, 10)[0]
    lessons = BASE.lessons(part, state.outputs, BASE.confidence(state, fed), fed.sites)
    assert torch.allclose(lessons["site-0"].target, state.outputs["site-1"])
    assert torch.allclose(lessons["site-1"].target, state.outputs["site-0"])
    play(BASE, federation(federated(sites=2)))


def test_one_site_trains_alone() -> None:
    fed = federation(federated(sites=1))
    play(BASE, fed)
    alone = federation(federated(sites=1))
    play(dataclasses.replace(BASE, hfl=False), alone)
    assert distance(models_of(fed), models_of(alone)) == 0


class LossIsNaN(InProcess):
    """A site whose private loss is not a number in the first round."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = dict(super().deliver(envelopes, deadline))
        if self.round.number == 0:
            bad = answers["site-1"]
            assert bad.reply is not None
            answers["site-1"] = dataclasses.replace(
                bad, reply=dataclasses.replace(bad.reply, private_loss=float("nan"))
            )
        return answers


def test_a_loss_that_is_not_a_number_is_refused_and_its_site_does_not_teach() -> None:
    fed = federation(kind=LossIsNaN)
    state = play(BASE, fed, stop=1)
    assert "not finite" in fed.log.refused["site-1"]
    assert set(state.outputs) == {"site-0", "site-2"}
    lessons = BASE.lessons(BASE.parts(0, 10)[0], state.outputs, BASE.confidence(state, fed), fed.sites)
    both = state.outputs["site-0"] + state.outputs["site-2"]
    assert torch.allclose(lessons["site-1"].target, both), "two teachers of weight 1 / (2 - 1) each"
    end = play(BASE, federation(kind=LossIsNaN))
    assert set(end.losses) == {"site-0", "site-1", "site-2"}, "it is back as soon as it answers"
    play(dataclasses.replace(BASE, exchange="batch"), federation(kind=LossIsNaN))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"private_loss": -0.1}, "cannot be negative"),
        ({"private_loss": None}, "not a number"),
        ({"outputs": None}, "missing"),
        ({"outputs": torch.zeros(10, 2)}, "shape"),
        ({"outputs": torch.full((10, 3), 0.5)}, "no probabilities"),
        ({"outputs": torch.full((10, 3), 1 / 3, dtype=torch.float64)}, "float64"),
        ({"samples": 5}, "samples = 5"),
    ],
)
def test_implausible_replies_are_refused(change: dict[str, Any], reason: str) -> None:
    fed = federation()
    request = BASE.visit(fed, None, None, BASE.parts(0, 10)[0], closing=True)
    name = fed.sites[0]
    reply = request.answer(fed.site(RequestEnvelope("r", name, RequestMoment(3, "", 0, 0), "", request)))
    assert reply.refusal(request, fed.facts[name]) is None
    refusal = dataclasses.replace(reply, **change).refusal(request, fed.facts[name])
    assert refusal is not None
    assert reason in refusal


def test_public_samples_must_be_there_and_the_same_everywhere() -> None:
    without = dataclasses.replace(federated(), public=None)
    with pytest.raises(ConfigError, match=r"site-0.*no public samples"):
        BASE.start(federation(without))
    fed = federation()
    fed.facts = {**fed.facts, "site-2": dataclasses.replace(fed.facts["site-2"], public_digest="other")}
    with pytest.raises(ConfigError, match=r"site-2.*other public samples"):
        BASE.start(fed)


@pytest.mark.parametrize(
    "wrong", [{"pretrain_rounds": -1}, {"pretrain_epochs": 0}, {"local_epochs": 0}, {"rce_log0": 0.0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RHFL(**wrong)
