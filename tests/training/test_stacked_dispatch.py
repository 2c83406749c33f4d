"""The choice of a trainer: by force, by static facts, by measurement; it belongs to a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsift.protocol.site import ComputeSettings
from fedsift.training import cohort, dispatch
from fedsift.training import dispatch as measure
from fedsift.training.cohort import ALONE, COHORT
from fedsift.training.dispatch import cohort_size, kind_of, recipes_of, settle, suggested_size, train_many
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Evaluate, Train
from tests.training.test_stacked_cohort import make_sites
from tests.training.test_stacked_pixels import make_jobs


def with_trainer(jobs: list[TrainingJob], trainer: str, **settings: Any) -> ComputeSettings:
    """The settings that all jobs share from now on, as the sites of a run do."""
    compute = ComputeSettings(trainer=trainer, **settings)  # type: ignore[arg-type]
    for job in jobs:
        job.site.compute = compute
    return compute


def work_of(jobs: Sequence[TrainingJob]) -> list[tuple[Any, Any]]:
    return [(Train(job.weights, job.recipe), job.site) for job in jobs]


@pytest.mark.parametrize(("trainer", "stacked"), [("one", False), ("cohort", True)])
def test_a_trainer_can_be_forced(monkeypatch: pytest.MonkeyPatch, trainer: str, stacked: bool) -> None:
    called: list[int] = []
    train = cohort._train_stacked
    monkeypatch.setattr(cohort, "_train_stacked", lambda jobs, last: called.append(len(jobs)) or train(jobs, last))
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, trainer)
    settle(work_of(jobs))
    results = train_many(jobs)
    assert all(isinstance(result, TrainingResult) for result in results)
    assert called == ([3] if stacked else [])
    assert compute.cohorts == {}


# Static facts --------------------------------------------------------------------------------------------------


def test_no_clock_is_asked_unless_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds_a_sample", lambda *_: pytest.fail("timed"))
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, "auto")
    settle(work_of(jobs))
    assert list(compute.cohorts) == [kind_of(jobs[0].site, jobs[0].recipe)]
    assert all(isinstance(result, TrainingResult) for result in train_many(jobs))


@pytest.mark.parametrize(
    ("model", "shape", "batch", "size"),
    [
        ("mlp", (3, 32, 32), 64, COHORT),  # no convolution
        ("cnn", (3, 32, 32), 16, COHORT),  # 16,384 pixels a step
        ("cnn", (3, 32, 32), 64, COHORT // 2),  # 65,536
        ("lenet5", (3, 32, 32), 10, COHORT),
        ("cnn", (3, 64, 64), 64, 1),  # 262,144
        ("resnet8-cifar", (3, 32, 32), 16, 1),  # batch norm: 20,000 / 16,384
        ("resnet8-cifar", (3, 32, 32), 10, 2),  # 20,000 / 10,240
        ("resnet8-cifar", (3, 16, 16), 16, 5),  # 20,000 / 4,096
        ("resnet18-cifar", (3, 32, 32), 16, 1),  # 11 million parameters
    ],
)
def test_sizes_by_network_images_and_batch(model: str, shape: tuple[int, ...], batch: int, size: int) -> None:
    [site] = make_sites((6,), model=model)
    pool = torch.zeros(6, *shape, dtype=torch.uint8)
    site.samples = replace(site.samples, pool=pool)
    assert suggested_size(site, Recipe(batch_size=batch)) == size
    assert suggested_size(site, Recipe(batch_size=batch // 2, views=2)) == size
    site.compute = ComputeSettings(device="cuda")
    assert suggested_size(site, Recipe(batch_size=batch)) == 1


def test_a_network_that_cannot_be_built_is_left_to_the_training() -> None:
    [site] = make_sites((6,), model="nowhere:Nothing")
    assert suggested_size(site, Recipe()) == 1


def test_a_runs_choice_goes_before_the_suggestion() -> None:
    jobs = make_jobs(3, Augment())
    kind = kind_of(jobs[0].site, jobs[0].recipe)
    compute = with_trainer(jobs, "auto", cohorts={kind: 2})
    settle(work_of(jobs))
    assert compute.cohorts == {kind: 2}
    assert cohort_size(jobs) == 2
    assert cohort_size(jobs[:1]) == 1
    with_trainer(jobs, "auto", cohorts={kind: ALONE})
    assert cohort_size(jobs) == cohort_size(jobs[:1]) == ALONE


def test_recipes_are_found_wherever_a_request_carries_them() -> None:
    job = make_jobs(3, Augment())[0]
    inner, outer = replace(job.recipe, batch_size=7), job.recipe
    request = Train(job.weights, outer, then=(Train(job.weights, inner), Evaluate(None)))
    assert [recipe.batch_size for recipe in recipes_of(request)] == [outer.batch_size, 7]
    assert list(recipes_of(Evaluate(job.weights))) == []


def test_two_runs_in_one_process_know_nothing_of_each_other() -> None:
    first, second = make_jobs(3, Augment()), make_jobs(3, Augment())
    one, other = with_trainer(first, "auto"), with_trainer(second, "auto")
    settle(work_of(first))
    assert len(one.cohorts) == 1
    assert other.cohorts == {}


# Measurement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "size", "asked"),
    [
        ({1: 1.0, 4: 0.7, 10: 0.5}, COHORT, [1, 1, 4, 10]),
        ({1: 1.0, 4: 0.99, 10: 0.99}, 1, [1, 1, 4, 10]),
        ({1: 1.0, 4: 2.0}, 1, [1, 1, 4]),
        ({1: 2.0, 4: 1.01, 10: 1.0}, 4, [1, 1, 4, 10]),
    ],
)
def test_the_fastest_is_chosen_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float], size: int, asked: list[int]
) -> None:
    seen: list[int] = []

    def clock(jobs: Sequence[TrainingJob], channels_last: bool) -> float:
        seen.append(len(jobs))
        return times[len(jobs)]

    monkeypatch.setattr(measure, "seconds_a_sample", clock)
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, "measure")
    settle(work_of(jobs))
    settle(work_of(jobs))
    assert seen == asked
    assert compute.cohorts == {kind_of(jobs[0].site, jobs[0].recipe): size}


@pytest.mark.parametrize(("last", "first", "size"), [(1.0, 0.99, ALONE), (0.99, 1.0, 1)])
def test_alone_the_faster_memory_order_is_taken(
    monkeypatch: pytest.MonkeyPatch, last: float, first: float, size: int
) -> None:
    monkeypatch.setattr(
        measure,
        "seconds_a_sample",
        lambda jobs, channels_last: 2.0 if len(jobs) > 1 else last if channels_last else first,
    )
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, "measure")
    settle(work_of(jobs[:1]))  # a single job's kind is measured too
    assert list(compute.cohorts.values()) == [size]


def test_measuring_takes_a_few_steps_and_changes_nothing() -> None:
    jobs = make_jobs(3, Augment(flip=True, crop=2))
    compute = with_trainer(jobs, "measure")
    settle(work_of(jobs))
    [(kind, size)] = compute.cohorts.items()
    measured = train_many(jobs)
    with_trainer(jobs, "auto", cohorts={kind: size})
    for ours, theirs in zip(measured, train_many(jobs)):
        assert isinstance(ours, TrainingResult)
        assert isinstance(theirs, TrainingResult)
        assert all(torch.equal(value, theirs.weights[name]) for name, value in ours.weights.items())


def test_large_networks_are_never_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LARGE", 10)
    asked: list[tuple[int, bool]] = []

    def clock(jobs: Sequence[TrainingJob], channels_last: bool) -> float:
        asked.append((len(jobs), channels_last))
        return 2.0 if channels_last else 1.0

    monkeypatch.setattr(measure, "seconds_a_sample", clock)
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, "measure")
    settle(work_of(jobs))
    assert list(compute.cohorts.values()) == [ALONE]
    assert asked == [(1, True), (1, False)]
    assert suggested_size(jobs[0].site, jobs[0].recipe) == 1


def test_kinds_differ_by_what_changes_the_time() -> None:
    job = make_jobs(3, Augment())[0]
    other = replace(job.recipe, batch_size=32)
    again = make_jobs(3, Augment(flip=True))[1]
    assert kind_of(job.site, job.recipe) != kind_of(job.site, other)
    assert kind_of(job.site, job.recipe) == kind_of(again.site, again.recipe)


def test_an_error_while_measuring_is_left_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(jobs: Sequence[TrainingJob], channels_last: bool) -> float:
        raise RuntimeError("no clock today")

    monkeypatch.setattr(measure, "seconds_a_sample", clock)
    jobs = make_jobs(3, Augment())
    compute = with_trainer(jobs, "measure")
    settle(work_of(jobs))
    assert list(compute.cohorts.values()) == [1]
    assert all(isinstance(result, TrainingResult) for result in train_many(jobs))


def test_nothing_is_trained_for_nobody() -> None:
    assert train_many([]) == []
