"""Two networks in step, tensors of a site, memories of samples: by hand, and alike for one site and a cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas import losses
from fedsift.methods._two_networks import TrainedPair, TrainPair
from fedsift.methods.co_teaching import PeersChoice, TrainCoTaught
from fedsift.methods.divide_mix import DivideMix, TrainDivided
from fedsift.methods.forward_correction import TRANSITION, ThroughTransition, TrainCorrected
from fedsift.methods.joint_opt import JointLabels, TrainJointly
from fedsift.training.cohort import train_cohort
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import (
    PREDICTIONS,
    ClassBalance,
    CrossEntropy,
    EarlyLearning,
    Entropy,
    PerSample,
    PerSite,
    Term,
    View,
)
from fedsift.training.requests import Train
from fedsift.training.trainer import train_each, train_one
from tests.training.test_stacked_cohort import (
    CLASSES,
    assert_alike,
    double_precision,
    make_sites,
    recipe,
    some_weights,
)

__all__ = ["double_precision"]  # a fixture for every test here

SIZES = (13, 8, 9)


@dataclass(frozen=True)
class Towards(Term):
    """Cross-entropy with what the other network says of the batch."""

    needs: ClassVar[frozenset[str]] = frozenset({"twin"})

    def value(self, view: View) -> Tensor:
        assert view.twin is not None
        assert not view.twin.requires_grad
        return view.mean(losses.cross_entropy(view.logits, view.twin.softmax(-1)))


@dataclass(frozen=True)
class Scale(Term):
    """(s - 3)^2 / 2 for a number s of the site."""

    needs: ClassVar[frozenset[str]] = frozenset({"scale"})

    def value(self, view: View) -> Tensor:
        return (view.site("scale") - 3).square() / 2 + 0 * view.logits.sum((-2, -1))


@dataclass(frozen=True)
class Counting(Term):
    """Remembers how often each sample was visited, and weighs it by that."""

    needs: ClassVar[frozenset[str]] = frozenset({"visits"})

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {"visits": ()}

    def value(self, view: View) -> Tensor:
        visits = view.rows("visits")
        view.keep("visits", visits + 1)
        return view.mean(visits * losses.cross_entropy(view.logits, view.target))


def paired(objective: Any, **options: Any) -> list[TrainingJob]:
    how = recipe(objective, **options)
    return [
        TrainingJob(site, some_weights(), how, twin=TrainingJob(site, some_weights(9), how))
        for site in make_sites(SIZES)
    ]


def test_pairs_of_a_cohort_train_as_pairs_alone() -> None:
    jobs = paired(CrossEntropy() + 0.5 * Towards())
    results = assert_alike(jobs, tolerance=1e-10)
    for ours, theirs in zip(results, train_each(jobs)):
        assert isinstance(theirs, TrainingResult)
        assert ours.twin is not None and theirs.twin is not None
        for name, value in theirs.twin.weights.items():
            torch.testing.assert_close(ours.twin.weights[name], value, rtol=1e-9, atol=1e-11)


def test_a_twin_that_nobody_looks_at_trains_as_if_it_were_alone() -> None:
    """Both follow the plan of the first: the same batches, each with its own weights and dropout."""
    [result, *_] = train_each(paired(CrossEntropy()))
    [site, *_] = make_sites(SIZES)
    alone = [
        train_one(TrainingJob(site, some_weights(seed), recipe(CrossEntropy()), dropout=dropout))
        for seed, dropout in ((1, "dropout"), (9, "twin dropout"))
    ]
    assert isinstance(result, TrainingResult) and result.twin is not None
    for got, want in zip((result, result.twin), alone):
        for name, value in want.weights.items():
            assert torch.equal(got.weights[name], value)


def test_each_sees_the_other_before_either_has_moved() -> None:
    """One step on one batch: the gradient of network 1 is that of a cross-entropy with network 2's first prediction."""
    [site] = make_sites((6,), model="linear")
    weights = [some_weights(seed, "linear") for seed in (1, 9)]
    how = recipe(Towards(), epochs=1, batch_size=6, lr=0.5)
    result = train_one(TrainingJob(site, weights[0], how, twin=TrainingJob(site, weights[1], how)))
    assert result.twin is not None
    start = [{name: value.clone().requires_grad_() for name, value in own.items()} for own in weights]
    x = torch.nn.functional.layer_norm(site.samples.take(torch.arange(6)).flatten(1), (128,))
    names = list(weights[0])
    weight, bias = (next(n for n in names if n.endswith(end)) for end in ("weight", "bias"))
    logits = [x @ own[weight].T + own[bias] for own in start]
    for side, got in enumerate((result, result.twin)):
        goal = logits[1 - side].detach().softmax(-1)
        loss = losses.cross_entropy(logits[side], goal).mean()
        grads = torch.autograd.grad(loss, [start[side][name] for name in names])
        for name, grad in zip(names, grads):
            torch.testing.assert_close(got.weights[name], weights[side][name] - 0.5 * grad)


def test_a_term_that_needs_a_twin_says_so() -> None:
    [site] = make_sites((6,))
    with pytest.raises(DataError, match="'site 0'.*second network"):
        train_one(TrainingJob(site, some_weights(), recipe(Towards())))


def test_a_request_for_two_networks() -> None:
    [site] = make_sites((8,))
    request = TrainPair(some_weights(), recipe(CrossEntropy()), twin=some_weights(9))
    reply = request.answer(site)
    assert isinstance(reply, TrainedPair)
    assert reply.refusal(request, site.facts) is None
    lacking = replace(reply, twin={})
    assert "keys differ" in (lacking.refusal(request, site.facts) or "")
    far = {name: value + 100 for name, value in reply.twin.items()}
    moves = replace(reply, twin=far).moves(request)
    assert moves[0][0] is reply.weights and moves[0][1] is request.weights
    assert moves[1][0] is far and moves[1][1] is request.twin


# Tensors of a site --------------------------------------------------------------------------------------


def test_a_learnt_tensor_descends_beside_the_network() -> None:
    """s <- s - lr (s - 3) at every step: 3 + (s0 - 3) (1 - lr)^steps; a constant one stays."""
    jobs = [
        TrainingJob(
            site,
            some_weights(),
            recipe(CrossEntropy() + Scale()),
            extras={"scale": PerSite(torch.tensor(float(number)), lr=0.1)},
        )
        for number, site in enumerate(make_sites(SIZES))
    ]
    results = assert_alike(jobs, tolerance=1e-10)
    for number, result in enumerate(results):
        want = 3 + (number - 3) * 0.9**result.steps
        assert float(result.learnt["scale"]) == pytest.approx(want)
        extra = jobs[number].extras["scale"]
        assert isinstance(extra, PerSite) and float(extra.tensor) == number
    for job, result in zip(jobs, train_each(jobs)):
        assert isinstance(result, TrainingResult)
        assert float(result.learnt["scale"]) == pytest.approx(3 + (jobs.index(job) - 3) * 0.9**result.steps)
    still = [replace(job, extras={"scale": PerSite(torch.tensor(1.0))}) for job in jobs]
    assert all(not result.learnt for result in assert_alike(still, tolerance=1e-10))


# Memories -----------------------------------------------------------------------------------------------


def test_memories_last_from_visit_to_visit() -> None:
    """Two epochs a visit: weights 0 and 1 in the first, 2 and 3 in the second; the page says 2, then 4."""
    [site] = make_sites((8,))
    request = Train(some_weights(), recipe(Counting()))
    first, second = request.answer(site), request.answer(site)
    assert site.notebook["visits"].tolist() == [4.0] * 8
    assert second.loss > first.loss > 0


def test_a_cohort_remembers_as_its_sites_do() -> None:
    jobs = [TrainingJob(site, some_weights(), recipe(EarlyLearning())) for site in make_sites(SIZES)]
    for ours, theirs in zip(train_cohort(jobs), train_each(jobs)):
        assert isinstance(ours, TrainingResult) and isinstance(theirs, TrainingResult)
        assert ours.rows[PREDICTIONS].shape[1:] == (CLASSES,)
        torch.testing.assert_close(ours.rows[PREDICTIONS], theirs.rows[PREDICTIONS], rtol=1e-9, atol=1e-11)


def test_twins_have_memories_of_their_own() -> None:
    [site] = make_sites((8,))
    request = TrainPair(some_weights(), recipe(EarlyLearning()), twin=some_weights(9))
    request.answer(site)
    own, other = site.notebook[PREDICTIONS], site.notebook[f"{PREDICTIONS} of the twin"]
    assert own.shape == other.shape == (8, CLASSES)
    assert not torch.equal(own, other)


def test_a_memory_of_another_shape_starts_again() -> None:
    [site] = make_sites((8,))
    site.notebook["visits"] = torch.zeros(3)
    extra = TrainingJob(site, some_weights(), recipe(Counting())).remembered()["visits"]
    assert isinstance(extra, PerSample)
    assert torch.equal(extra.rows, torch.zeros(8))


def test_mixed_samples_cannot_be_remembered() -> None:
    [site] = make_sites((8,))
    with pytest.raises(ConfigError, match=r"train\.mixup = 0\.5.*visits"):
        train_one(TrainingJob(site, some_weights(), recipe(Counting(), mixup=0.5)))


# What methods ask ---------------------------------------------------------------------------------------

FIRST, SECOND = 1, 9
ASKED: dict[str, Any] = {
    "co-teaching": lambda: TrainCoTaught(
        some_weights(FIRST), recipe(PeersChoice()), twin=some_weights(SECOND), ramp=1.0, noise_rate=0.4
    ),
    "dividemix": lambda: TrainDivided(
        some_weights(FIRST), recipe(DivideMix().loss(2.0), mixup=4.0), twin=some_weights(SECOND)
    ),
    "lc": lambda: TrainCorrected(some_weights(FIRST), recipe(ThroughTransition())),
    "t-revision": lambda: TrainCorrected(
        some_weights(FIRST), recipe(ThroughTransition("reweight", revise=True)), revision_lr=0.1
    ),
    "joint-opt": lambda: TrainJointly(
        some_weights(FIRST), recipe(JointLabels(3) + 1.2 * ClassBalance("given") + 0.8 * Entropy())
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_cohort_does_for_a_method_what_its_sites_do(name: str) -> None:
    request = ASKED[name]()
    sites = make_sites(SIZES)
    for number, site in enumerate(sites):
        site.notebook[TRANSITION] = torch.eye(CLASSES) * 0.5 + (1 + number) * torch.rand(CLASSES, CLASSES)
        site.notebook[TRANSITION] /= site.notebook[TRANSITION].sum(-1, keepdim=True)
    jobs = [request.job(site) for site in sites]
    for ours, theirs in zip(assert_alike(jobs, tolerance=1e-7), train_each(jobs)):
        assert isinstance(theirs, TrainingResult)
        pairs = [(ours, theirs)]
        if ours.twin is not None and theirs.twin is not None:
            pairs.append((ours.twin, theirs.twin))
        for mine, other in pairs:
            assert mine.rows.keys() == other.rows.keys()
            assert mine.learnt.keys() == other.learnt.keys()
            for got, want in zip((mine.weights, mine.rows, mine.learnt), (other.weights, other.rows, other.learnt)):
                for key, value in want.items():
                    torch.testing.assert_close(got[key], value, rtol=1e-6, atol=1e-8)
    assert (name in ("co-teaching", "dividemix")) == (jobs[0].twin is not None)
