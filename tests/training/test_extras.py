"""Tensors of a site that loss terms see: by hand at one site, and alike for one site and a stacked cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas import losses
from fedsift.protocol.site import Site
from fedsift.training import cohort
from fedsift.training.cohort import train_cohort
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import (
    CrossEntropy,
    Extra,
    FollowerNetwork,
    FrozenNetwork,
    Objective,
    PerParameter,
    PerSample,
    PerSite,
    Term,
    View,
)
from fedsift.training.recipe import Augment
from fedsift.training.trainer import train_each, train_one
from tests.training.test_stacked_cohort import (
    CLASSES,
    SIZES,
    assert_alike,
    double_precision,
    make_sites,
    recipe,
    some_weights,
)

__all__ = ["double_precision"]  # a fixture for every test here


@dataclass(frozen=True)
class Pull(Term):
    """<w, d> with a direction of the site's own (SCAFFOLD)."""

    needs: ClassVar[frozenset[str]] = frozenset({"direction"})

    def value(self, view: View) -> Tensor:
        return losses.inner_product(view.parameters, view.tensors("direction"), lead=view.lead)


@dataclass(frozen=True)
class Weighted(Term):
    """Cross-entropy with a weight for each sample (Co-teaching, DivideMix)."""

    needs: ClassVar[frozenset[str]] = frozenset({"weights"})

    def value(self, view: View) -> Tensor:
        return view.mean(view.rows("weights") * losses.cross_entropy(view.logits, view.target))


@dataclass(frozen=True)
class SoftLabels(Term):
    """Cross-entropy with soft labels of the site's own (JointOpt)."""

    needs: ClassVar[frozenset[str]] = frozenset({"soft"})

    def value(self, view: View) -> Tensor:
        return view.mean(losses.cross_entropy(view.logits, view.rows("soft")))


@dataclass(frozen=True)
class Peer(Term):
    """Divergence from a second, frozen network."""

    needs: ClassVar[frozenset[str]] = frozenset({"peer"})

    def value(self, view: View) -> Tensor:
        return view.mean(losses.ensemble_distillation(view.logits, view.rows("peer")))


@dataclass(frozen=True)
class Running(Term):
    """A running average of each sample's predictions, which the term itself keeps (ELR)."""

    needs: ClassVar[frozenset[str]] = frozenset({"running"})

    def value(self, view: View) -> Tensor:
        now = view.logits.softmax(-1)
        running = 0.7 * view.rows("running") + 0.3 * now.detach()
        view.keep("running", running)
        return view.mean(torch.log(1 - (running * now).sum(-1) + 1e-4))


@dataclass(frozen=True)
class Drawn(Term):
    """Features are drawn to a point of the site's own, which follows their mean (RoFL's centroids)."""

    needs: ClassVar[frozenset[str]] = frozenset({"features", "point"})

    def value(self, view: View) -> Tensor:
        assert view.features is not None
        point, real = view.site("point"), view.present.unsqueeze(-1)
        mean = (view.features * real).sum(-2) / real.sum(-2)
        view.keep("point", 0.9 * point + 0.1 * mean)
        return view.mean((view.features - point.unsqueeze(-2)).square().mean(-1))


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def extras_of(site: Site, seed: int) -> dict[str, Extra]:
    """Everything that the terms above need, different at every site."""
    n = len(site.samples)
    return {
        "direction": PerParameter({name: numbers(seed, *v.shape) for name, v in some_weights().items()}),
        "weights": PerSample(numbers(seed + 100, n).abs()),
        "soft": PerSample(numbers(seed + 200, n, CLASSES).softmax(-1)),
        "peer": FrozenNetwork(some_weights(seed + 300)),
        "running": PerSample(torch.zeros(n, CLASSES)),
        "point": PerSite(numbers(seed + 400, some_weights()["head.weight"].shape[1])),
    }


def jobs_with(objective: Objective | Term, sizes: tuple[int, ...] = SIZES, **options: Any) -> list[TrainingJob]:
    return [
        TrainingJob(site, some_weights(), recipe(objective, **options), extras=extras_of(site, seed))
        for seed, site in enumerate(make_sites(sizes))
    ]


TERMS: dict[str, Term | Objective] = {
    "per parameter": CrossEntropy() + 0.1 * Pull(),
    "weights": Weighted(),
    "soft labels": SoftLabels(),
    "another network": CrossEntropy() + 0.5 * Peer(),
    "running average": CrossEntropy() + 0.5 * Running(),
    "features and a point": CrossEntropy() + 0.5 * Drawn(),
    "all": CrossEntropy() + 0.1 * Pull() + 0.3 * Weighted() + 0.2 * SoftLabels() + 0.5 * Peer() + 0.5 * Running(),
}


@pytest.mark.parametrize("objective", TERMS.values(), ids=TERMS.keys())
def test_a_cohort_trains_as_its_sites_do(objective: Term | Objective) -> None:
    results = assert_alike(jobs_with(objective), tolerance=1e-10)
    moved = [bool(result.rows) for result in results]
    assert all(moved) == any(moved) == ("running" in jobs_with(objective)[0].recipe.objective.needs)


@pytest.mark.parametrize(
    "options", [{"views": 2}, {"mixup": 0.4}, {"mixup": 1.0, "views": 2}], ids=["views", "mixup", "both"]
)
def test_rows_follow_views_and_mixup(options: dict[str, Any]) -> None:
    assert_alike(jobs_with(TERMS["all"], **options))


def test_rows_written_are_alike() -> None:
    jobs = jobs_with(TERMS["running average"], views=2)
    for ours, theirs in zip(train_cohort(jobs), train_each(jobs)):
        assert isinstance(ours, TrainingResult)
        assert isinstance(theirs, TrainingResult)
        torch.testing.assert_close(ours.rows["running"], theirs.rows["running"], rtol=1e-10, atol=1e-12)
    for job in jobs:  # what a job brought stays as it was
        extra = job.extras["running"]
        assert isinstance(extra, PerSample)
        assert bool((extra.rows == 0).all())


def test_a_point_that_a_term_writes_is_alike() -> None:
    """Also at sites that are done before the others; what a job brought stays as it was."""
    jobs = jobs_with(TERMS["features and a point"])
    brought = [job.extras["point"] for job in jobs]
    before = [extra.tensor.clone() for extra in brought if isinstance(extra, PerSite)]
    for ours, theirs, start in zip(train_cohort(jobs), train_each(jobs), before):
        assert isinstance(ours, TrainingResult)
        assert isinstance(theirs, TrainingResult)
        torch.testing.assert_close(ours.learnt["point"], theirs.learnt["point"], rtol=1e-10, atol=1e-12)
        assert not torch.equal(ours.learnt["point"], start)
    for extra, start in zip(brought, before):
        assert isinstance(extra, PerSite)
        assert torch.equal(extra.tensor, start)


def test_extras_that_all_sites_share_and_extras_of_their_own_agree() -> None:
    """One object for all sites takes a shorter way through the cohort."""
    sites = make_sites((8, 9, 10))
    shared = extras_of(sites[0], 5)
    for name in ("direction", "peer"):
        objective = CrossEntropy() + 0.2 * (Pull() if name == "direction" else Peer())
        jobs = [TrainingJob(site, some_weights(), recipe(objective), extras={name: shared[name]}) for site in sites]
        assert_alike(jobs, tolerance=1e-10)


def test_different_extras_are_different_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts: list[int] = []
    train = cohort._train_stacked
    monkeypatch.setattr(cohort, "_train_stacked", lambda jobs, last: cohorts.append(len(jobs)) or train(jobs, last))
    jobs = jobs_with(CrossEntropy(), (8, 9, 10, 11))
    jobs = [*jobs[:2], *(TrainingJob(job.site, job.weights, job.recipe) for job in jobs[2:])]
    assert_alike(jobs)
    assert sorted(cohorts) == [2, 2]


# Networks that follow --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Behind(Term):
    """Squared distance to what a running average of the network says (a mean teacher), of the same view or another."""

    needs: ClassVar[frozenset[str]] = frozenset({"average"})

    def value(self, view: View) -> Tensor:
        return view.mean((view.logits - view.rows("average")).square().mean(-1))


@dataclass(frozen=True)
class BehindAside(Behind):
    needs: ClassVar[frozenset[str]] = frozenset({"average", "aside"})


def following(
    term: Term, ages: tuple[int | None, ...], sizes: tuple[int, ...] = SIZES, **options: Any
) -> list[TrainingJob]:
    return [
        TrainingJob(
            site,
            some_weights(),
            recipe(CrossEntropy() + 0.5 * term, **options),
            extras={"average": FollowerNetwork(some_weights(seed), 0.9, age)},
        )
        for seed, (site, age) in enumerate(zip(make_sites(sizes), ages))
    ]


@pytest.mark.parametrize(
    ("term", "ages", "options"),
    [
        (Behind(), (None,) * 6, {}),
        (Behind(), (0, 3, 50, 1, 0, 7), {"views": 2}),
        (BehindAside(), (0, 3, 50, 1, 0, 7), {"views": 2, "augment": Augment(flip=True)}),
        (BehindAside(), (None,) * 6, {"views": 2}),
    ],
    ids=["one view", "of different age", "a view of its own", "the same picture twice"],
)
def test_followers_of_a_cohort_follow_as_at_each_site(
    term: Term, ages: tuple[int | None, ...], options: dict[str, Any]
) -> None:
    """Also at sites that are done before the others, with running statistics and a batch of one."""
    jobs = following(term, ages, **options)
    for ours, theirs in zip(assert_alike(jobs, tolerance=1e-10), train_each(jobs)):
        assert isinstance(theirs, TrainingResult)
        for name, value in theirs.followers["average"].items():
            torch.testing.assert_close(ours.followers["average"][name], value, rtol=1e-10, atol=1e-12)


def test_a_follower_by_hand() -> None:
    """One step: 0.9 v + 0.1 w, running statistics too; the counter of batches is copied."""
    [job] = following(Behind(), (None,), (6,), epochs=1, batch_size=6)
    result = train_one(job)
    extra = job.extras["average"]
    assert isinstance(extra, FollowerNetwork)
    for name, start in extra.weights.items():
        if name == "norm.num_batches_tracked":
            assert result.followers["average"][name] == result.weights[name] == 1
        else:
            expected = 0.9 * start + 0.1 * result.weights[name]
            torch.testing.assert_close(result.followers["average"][name], expected)


def test_a_young_follower_is_the_mean_of_all_models_so_far() -> None:
    """Steps 1, 2, 3 from age 0: d = 1/2, 2/3, 3/4, until 0.9 is smaller; by then it is an old one."""
    young = FollowerNetwork({}, 0.9, 0)
    assert [young.decay_at(step) for step in (1, 2, 3)] == pytest.approx([1 / 2, 2 / 3, 3 / 4])
    assert young.decay_at(9) == pytest.approx(0.9)
    assert FollowerNetwork({}, 0.9, 50).decay_at(1) == FollowerNetwork({}, 0.9).decay_at(1) == 0.9


def test_a_view_held_back_is_not_trained_on() -> None:
    """With weight 0 for the teacher's part, two views of which one is held back train as one view does."""

    @dataclass(frozen=True)
    class Nothing(Term):
        needs: ClassVar[frozenset[str]] = frozenset({"aside"})

        def value(self, view: View) -> Tensor:
            return torch.zeros(view.logits.shape[:-2])

    [site] = make_sites((9,))
    plain, held = (
        train_one(TrainingJob(site, some_weights(), recipe(objective, views=views)))
        for objective, views in ((CrossEntropy(), 1), (CrossEntropy() + Nothing(), 2))
    )
    for name, value in plain.weights.items():
        torch.testing.assert_close(held.weights[name], value)
    with pytest.raises(ConfigError, match="train.views = 1, .*: a teacher that sees a view of its own"):
        train_one(TrainingJob(site, some_weights(), recipe(CrossEntropy() + Nothing())))
    with pytest.raises(ConfigError, match=r"train.mixup = 0.4: a teacher"):
        train_one(TrainingJob(site, some_weights(), recipe(CrossEntropy() + Nothing(), views=2, mixup=0.4)))


# By hand ---------------------------------------------------------------------------------------------------


def test_a_direction_is_added_to_the_gradient() -> None:
    """One step of lr 0.5 with <w, d> in the loss ends 0.5 d below one without."""
    [site] = make_sites((6,))
    direction = {name: numbers(3, *value.shape) for name, value in some_weights().items()}
    options: dict[str, Any] = {"epochs": 1, "batch_size": 6, "lr": 0.5}
    plain = train_one(TrainingJob(site, some_weights(), recipe(**options)))
    pulled = train_one(
        TrainingJob(
            site,
            some_weights(),
            recipe(CrossEntropy() + Pull(), **options),
            extras={"direction": PerParameter(direction)},
        )
    )
    for name in ("conv.weight", "norm.weight", "head.weight", "head.bias"):
        torch.testing.assert_close(pulled.weights[name], plain.weights[name] - 0.5 * direction[name])


def test_a_sample_of_weight_zero_is_not_learnt_from() -> None:
    """Weight n / m on m samples and 0 on the others is training on these m alone (no batch norm in between)."""
    [site] = make_sites((6,), model="linear")
    options: dict[str, Any] = {"epochs": 1, "batch_size": 6, "lr": 0.5}
    start = some_weights(model="linear")
    chosen = torch.tensor([2.0, 0.0, 2.0, 0.0, 0.0, 2.0])
    weighted = train_one(TrainingJob(site, start, recipe(Weighted(), **options), extras={"weights": PerSample(chosen)}))
    [alone] = make_sites((6,), model="linear")
    keep = chosen > 0
    alone.samples = type(site.samples)(site.samples.pool, site.samples.rows[keep])
    alone.given = site.given[keep]
    expected = train_one(TrainingJob(alone, start, recipe(**options)))
    for name, value in expected.weights.items():
        torch.testing.assert_close(weighted.weights[name], value)


def test_rows_that_a_term_writes_are_seen_by_later_batches() -> None:
    """Two epochs that change nothing but the rows: 0.3 p, then 0.7 * 0.3 p + 0.3 p = 0.51 p."""
    [site] = make_sites((5,), model="linear")
    start = some_weights(model="linear")
    extras: dict[str, Extra] = {"running": PerSample(torch.zeros(5, CLASSES))}
    result = train_one(TrainingJob(site, start, recipe(Running(), batch_size=5, lr=1e-14), extras=extras))
    network = site.network(start).eval()
    with torch.no_grad():
        p = network(site.samples.take(torch.arange(5))).softmax(-1)
    torch.testing.assert_close(result.rows["running"], 0.51 * p, rtol=1e-9, atol=1e-12)


def test_what_is_missing_is_named() -> None:
    [site] = make_sites((6,))
    with pytest.raises(DataError, match="site 'site 0': a loss term needs 'direction'"):
        train_one(TrainingJob(site, some_weights(), recipe(Pull())))
    short: dict[str, Extra] = {"weights": PerSample(torch.ones(4))}
    with pytest.raises(DataError, match="'weights' has 4 rows for 6 samples"):
        train_one(TrainingJob(site, some_weights(), recipe(Weighted()), extras=short))
    [alone] = train_cohort([TrainingJob(site, some_weights(), recipe(Pull()))])
    assert isinstance(alone, DataError)
