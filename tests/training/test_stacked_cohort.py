"""The cohort trainer gives what the one-site trainer gives, for every objective and every kind of recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsift.methods.feddpcont import Contrastive
from fedsift.methods.fedelc import LearntLabels
from fedsift.models.factory import initial_weights
from fedsift.models.network import Dropout
from fedsift.protocol.messages import RequestMoment, SiteFacts, Weights
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training import cohort
from fedsift.training.cohort import train_cohort
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import (
    BinaryCrossEntropy,
    CrossEntropy,
    Distillation,
    FrozenNetwork,
    LabelsAndTeacher,
    MissingTo,
    Objective,
    PartialClass,
    PerParameter,
    PositiveWeighted,
    Proximal,
    SymmetricCrossEntropy,
    Term,
    View,
    as_objective,
)
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite, _module
from fedsift.training.trainer import train_each

SHAPE = (2, 8, 8)
CLASSES = 4
SIZES = (13, 9, 21, 1, 6, 13)
"""With batches of 4: last batches of one (joined), one, five, a single sample, two, one."""


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """In double precision only a wrong formula makes a difference."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    _module.cache_clear()
    cohort.stacked_network.cache_clear()
    yield
    torch.set_default_dtype(kept)
    _module.cache_clear()
    cohort.stacked_network.cache_clear()


class Small(nn.Module):
    """A convolution, batch norm, dropout and a head: everything that can go wrong between sites."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 3, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.drop = Dropout(0.2)
        self.head = nn.Linear(3 * 16, n_classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        return self.drop(x.flatten(1))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Branching(Small):
    """Looks at its input: cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > -1e9 else -x)


SMALL = "tests.training.test_stacked_cohort:Small"
BRANCHING = "tests.training.test_stacked_cohort:Branching"


def make_sites(
    sizes: tuple[int, ...] = SIZES, multilabel: bool = False, model: str = SMALL, **compute: Any
) -> list[Site]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(sum(sizes), *SHAPE, generator=generator)
    order = torch.randperm(sum(sizes), generator=generator)
    sites, start = [], 0
    for number, n in enumerate(sizes):
        rows, start = order[start : start + n], start + n
        if multilabel:
            labels = torch.randint(0, 2, (n, CLASSES), generator=generator)
            annotated = None if number == 0 else tuple(range(number % CLASSES + 1))
        else:
            labels, annotated = torch.randint(0, CLASSES - number % 2, (n,), generator=generator), None
        sites.append(
            LocalSite(
                facts=SiteFacts(f"site {number}", n, model=model, annotated=annotated),
                samples=Samples(pool, rows),
                given=labels,
                classes=tuple("abcd"),
                moment=RequestMoment(7, "train", 3, 0),
                multilabel=multilabel,
                compute=ComputeSettings(**compute),
            )
        )
    return sites


def some_weights(seed: int = 1, model: str = SMALL) -> Weights:
    return initial_weights(model, SHAPE, CLASSES, seed)


def assert_alike(jobs: list[TrainingJob], tolerance: float = 1e-6, size: int = 10) -> list[TrainingResult]:
    expected, got = train_each(jobs), train_cohort(jobs, size)
    assert len(got) == len(expected)
    for job, ours, theirs in zip(jobs, got, expected):
        assert isinstance(ours, TrainingResult), ours
        assert isinstance(theirs, TrainingResult), theirs
        assert ours.steps == theirs.steps
        assert ours.loss == pytest.approx(theirs.loss, rel=tolerance, abs=1e-9)
        assert list(ours.weights) == list(theirs.weights)
        for name, value in theirs.weights.items():
            assert ours.weights[name].dtype == value.dtype
            assert ours.weights[name].shape == value.shape
            error = (ours.weights[name] - value).double().norm() / value.double().norm().clamp(min=1e-3)
            assert float(error) < tolerance, (job.site.name, name, float(error))
    return [result for result in got if isinstance(result, TrainingResult)]


def recipe(objective: Term | Objective | None = None, **options: Any) -> Recipe:
    objective = as_objective(objective or CrossEntropy())
    return Recipe(**{"epochs": 2, "batch_size": 4, "lr": 0.05, "objective": objective, **options})


MULTICLASS = {
    "plain": CrossEntropy(),
    "adjusted": CrossEntropy(adjust=1.0),
    "proximal": CrossEntropy() + 0.3 * Proximal(),
    "proximal, norm, first batch skipped": CrossEntropy() + 0.3 * Proximal(power=1, skip_first_batch=True),
    "distilled": 0.4 * CrossEntropy(adjust=1.0) + 0.6 * Distillation(temperature=0.8),
    "symmetric": as_objective(SymmetricCrossEntropy()),
    "learnt labels": as_objective(LearntLabels(rate=20.0, batch=0)),
    "learnt labels, some masked": as_objective(LearntLabels(class_scale="1", rate=20.0, mask_keep=0.6)),
    "contrastive": as_objective(Contrastive(beta=0.5)),
    "contrastive, expected": as_objective(Contrastive(q=(0.1, 0.2, 0.3, 0.4), peers="expectation")),
}
MULTILABEL = {
    "binary": BinaryCrossEntropy(),
    "weighted": PositiveWeighted(weigh=True),
    "partial class": PartialClass(),
    "partial class, over classes, known prior": PartialClass(norm="classes", prior_over="known"),
    "labels and teacher": LabelsAndTeacher(norm="separate"),
    "missing to teacher": PartialClass() + 0.5 * MissingTo(),
}


@pytest.mark.parametrize("objective", MULTICLASS.values(), ids=MULTICLASS.keys())
def test_objectives_for_one_label(objective: Objective) -> None:
    assert_alike([TrainingJob(site, some_weights(), recipe(objective)) for site in make_sites()])


@pytest.mark.parametrize("objective", MULTILABEL.values(), ids=MULTILABEL.keys())
def test_objectives_for_several_labels(objective: Objective) -> None:
    sites = make_sites(multilabel=True)
    assert_alike([TrainingJob(site, some_weights(), recipe(objective, views=2)) for site in sites])


RECIPES: dict[str, dict[str, Any]] = {
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01},
    "adamw": {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "flip and crop": {"augment": Augment(flip=True, crop=2)},
    "affine": {"augment": Augment(flip=True, degrees=10, translate=0.1)},
    "mixup": {"mixup": 0.4},
    "mixup of views": {"mixup": 1.0, "views": 2, "augment": Augment(flip=True)},
    "one plain view": {"views": 2, "plain_views": 1, "augment": Augment(flip=True, crop=2)},
    "clip": {"clip": 0.2},
    "batches of one": {"batch_size": 1},
    "one batch": {"batch_size": 100, "epochs": 1},
}


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES.keys())
def test_recipes(options: dict[str, Any]) -> None:
    assert_alike([TrainingJob(site, some_weights(), recipe(**options)) for site in make_sites()])


def test_sites_with_weights_teachers_and_anchors_of_their_own() -> None:
    objective = CrossEntropy() + 0.5 * Distillation(adjust=0.0) + 0.1 * Proximal()
    jobs = [
        TrainingJob(
            site,
            some_weights(i),
            recipe(objective),
            extras={
                "teacher": FrozenNetwork(some_weights(20 + i)),
                "anchors": PerParameter(some_weights(40 + i)),
            },
        )
        for i, site in enumerate(make_sites())
    ]
    assert_alike(jobs)


def test_one_teacher_of_all_sites_sees_their_batches_as_one() -> None:
    """Sites of unequal sizes, so that some are done before others; crops and mixtures are what it is shown."""
    objective, teacher = CrossEntropy() + 0.5 * Distillation(adjust=0.0), FrozenNetwork(some_weights(20))
    for options in ({}, {"augment": Augment(flip=True, crop=2), "mixup": 0.4}):
        assert_alike(
            [
                TrainingJob(site, some_weights(), recipe(objective, **options), extras={"teacher": teacher})
                for site in make_sites()
            ]
        )


def test_sizes_of_terms_may_differ_by_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedCorr pulls each site with a strength of its own; sites without any pull are a cohort of their own."""
    cohorts: list[int] = []
    train = cohort._train_stacked
    monkeypatch.setattr(cohort, "_train_stacked", lambda jobs, last: cohorts.append(len(jobs)) or train(jobs, last))
    jobs = [
        TrainingJob(site, some_weights(), recipe(CrossEntropy() + pull * Proximal()))
        for site, pull in zip(make_sites((8, 9, 10, 11, 12)), (0.3, 0.0, 0.7, 0.0, 0.1))
    ]
    assert_alike(jobs)
    assert sorted(cohorts) == [2, 3]


@pytest.mark.parametrize(
    ("sites", "size", "parts"),
    [
        (5, 4, [5]),
        (10, 4, [5, 5]),
        (6, 4, [3, 3]),
        (7, 1, [1] * 7),
        (3, 10, [3]),
        (25, 10, [12, 13]),
        (1, 4, [1]),
    ],
)
def test_cohorts_are_of_nearly_one_size(sites: int, size: int, parts: list[int]) -> None:
    split = cohort._parts(list(range(sites)), size)
    assert [len(part) for part in split] == parts
    assert [index for part in split for index in part] == list(range(sites))


def test_a_sites_result_does_not_depend_on_its_cohort() -> None:
    jobs = [TrainingJob(site, some_weights(), recipe()) for site in make_sites()]
    whole, pairs = assert_alike(jobs), assert_alike(jobs, size=2)
    for ours, theirs in zip(whole, pairs):
        for name, value in ours.weights.items():
            assert torch.allclose(value, theirs.weights[name], rtol=1e-9, atol=1e-12)


def test_channels_first_is_only_another_memory_order() -> None:
    jobs = [TrainingJob(site, some_weights(), recipe(momentum=0.5)) for site in make_sites()]
    assert_alike(jobs, size=cohort.ALONE)


def test_vectors_train_alike() -> None:
    generator = torch.Generator().manual_seed(2)
    sites = make_sites((7, 5, 12))
    pool = torch.randn(24, 6, generator=generator)
    for site in sites:
        site.facts = replace(site.facts, model="mlp")
        site.samples = Samples(pool, site.samples.rows)
    weights = initial_weights("mlp", (6,), CLASSES, 0)
    assert_alike([TrainingJob(site, weights, recipe(mixup=0.3)) for site in sites])


def test_sites_may_keep_their_samples_apart() -> None:
    sites = make_sites()
    for site in sites:
        own = site.samples.pool[site.samples.rows].clone()
        site.samples = Samples(own, torch.arange(len(own)))
    assert_alike([TrainingJob(site, some_weights(), recipe()) for site in sites])


def test_two_networks_in_one_round() -> None:
    sites = make_sites()
    for site in sites[::2]:
        site.facts = replace(site.facts, model="lenet5")
    jobs = [
        TrainingJob(site, initial_weights(site.facts.model, SHAPE, CLASSES, 0), recipe(momentum=0.5)) for site in sites
    ]
    assert_alike(jobs)


def test_a_network_that_cannot_be_stacked_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    cohort._warn_once.cache_clear()
    with caplog.at_level("INFO", logger="fedsift.training.cohort"):
        jobs = [TrainingJob(site, some_weights(model=BRANCHING), recipe()) for site in make_sites(model=BRANCHING)]
        assert_alike(jobs, tolerance=1e-12)
    assert sum("one site at a time" in line for line in caplog.messages) == 1


def test_a_failing_site_does_not_spoil_the_others() -> None:
    sites = make_sites()
    sites[2].samples = Samples(sites[2].samples.pool, torch.empty(0, dtype=torch.long))
    results = train_cohort([TrainingJob(site, some_weights(), recipe()) for site in sites])
    assert isinstance(results[2], Exception)
    assert "site 2" in str(results[2])
    assert sum(isinstance(result, TrainingResult) for result in results) == len(sites) - 1


class Explodes(Term):
    def value(self, view: View) -> Tensor:
        raise RuntimeError("this term cannot be computed")


def test_an_error_in_a_term_is_every_sites_error_and_not_the_runs() -> None:
    results = train_cohort([TrainingJob(site, some_weights(), recipe(Explodes())) for site in make_sites()])
    assert all(isinstance(result, RuntimeError) for result in results)


def test_labels_written_by_a_method_are_used() -> None:
    sites = make_sites((8, 8))
    for site in sites:
        site.keep_evidence("test", labels=(site.given + 1) % CLASSES)
    assert_alike([TrainingJob(site, some_weights(), recipe()) for site in sites])
