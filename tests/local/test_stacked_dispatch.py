"""The choice of a trainer: by force, by measurement, remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsift.local import cohort, dispatch
from fedsift.local.dispatch import cohort_size, decisions, recall, train_many
from fedsift.local.recipe import Augment
from fedsift.local.site import Compute
from fedsift.local.trainer import Job, Result

from .test_stacked_pixels import make_jobs


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_sizes", {})


def with_trainer(jobs: list[Job], trainer: str) -> list[Job]:
    for job in jobs:
        job.site.compute = Compute(trainer=trainer)  # type: ignore[arg-type]
    return jobs


@pytest.mark.parametrize(("trainer", "stacked"), [("one", False), ("cohort", True)])
def test_a_trainer_can_be_forced(monkeypatch: pytest.MonkeyPatch, trainer: str, stacked: bool) -> None:
    called: list[int] = []
    train = cohort._train_stacked
    monkeypatch.setattr(
        cohort, "_train_stacked", lambda jobs, last: called.append(len(jobs)) or train(jobs, last)
    )
    results = train_many(with_trainer(make_jobs(3, Augment()), trainer))
    assert all(isinstance(result, Result) for result in results)
    assert called == ([3] if stacked else [])
    assert decisions() == {}


@pytest.mark.parametrize(("times", "size"), [((1.0, 0.5), cohort.COHORT), ((1.0, 0.99), 1), ((1.0, 2.0), 1)])
def test_the_faster_way_is_chosen_and_remembered(
    monkeypatch: pytest.MonkeyPatch, times: tuple[float, float], size: int
) -> None:
    asked: list[int] = []

    def clock(jobs: list[Job], channels_last: bool) -> float:
        asked.append(len(jobs))
        return times[len(jobs) > 1]

    monkeypatch.setattr(dispatch, "_seconds_a_sample", clock)
    jobs = make_jobs(3, Augment())
    assert cohort_size(jobs) == size
    assert cohort_size(jobs) == size
    assert asked == [1, 1, 3]
    assert list(decisions().values()) == [size]


def test_the_smallest_of_nearly_equal_cohorts_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 2.0, 4: 1.01, 10: 1.0}
    monkeypatch.setattr(dispatch, "_seconds_a_sample", lambda jobs, last: times[len(jobs)])
    assert cohort_size(4 * make_jobs(3, Augment())) == 4


@pytest.mark.parametrize(("last", "first", "size"), [(1.0, 0.99, cohort.ALONE), (0.99, 1.0, 1)])
def test_alone_the_faster_memory_order_is_taken(
    monkeypatch: pytest.MonkeyPatch, last: float, first: float, size: int
) -> None:
    monkeypatch.setattr(
        dispatch,
        "_seconds_a_sample",
        lambda jobs, channels_last: 2.0 if len(jobs) > 1 else last if channels_last else first,
    )
    assert cohort_size(make_jobs(3, Augment())) == size


def test_choices_can_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = make_jobs(3, Augment())
    monkeypatch.setattr(dispatch, "_seconds_a_sample", lambda *_: pytest.fail("measured again"))
    recall({dispatch._kind(jobs[0]): 7})
    assert cohort_size(jobs) == 7


def test_measuring_takes_a_few_steps_and_changes_nothing() -> None:
    jobs = with_trainer(make_jobs(3, Augment(flip=True, crop=2)), "auto")
    before = {name: value.clone() for name, value in jobs[0].weights.items()}
    measured = train_many(jobs)
    assert len(decisions()) == 1
    assert all(torch.equal(value, before[name]) for name, value in jobs[0].weights.items())
    again = train_many(jobs)
    for ours, theirs in zip(measured, again):
        assert isinstance(ours, Result)
        assert isinstance(theirs, Result)
        assert all(torch.equal(value, theirs.weights[name]) for name, value in ours.weights.items())


def test_a_single_job_is_not_measured() -> None:
    assert len(train_many(make_jobs(3, Augment())[:1])) == 1
    assert decisions() == {}
    assert train_many([]) == []


def test_large_networks_are_never_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LARGE", 10)
    asked: list[tuple[int, bool]] = []

    def clock(jobs: list[Job], channels_last: bool) -> float:
        asked.append((len(jobs), channels_last))
        return 2.0 if channels_last else 1.0

    monkeypatch.setattr(dispatch, "_seconds_a_sample", clock)
    assert cohort_size(make_jobs(3, Augment())) == cohort.ALONE
    assert asked == [(1, True), (1, False)]


def test_kinds_differ_by_what_changes_the_time() -> None:
    job = make_jobs(3, Augment())[0]
    other = replace(job, recipe=replace(job.recipe, batch_size=32))
    assert dispatch._kind(job) != dispatch._kind(other)
    assert dispatch._kind(job) == dispatch._kind(make_jobs(3, Augment(flip=True))[1])


def test_an_error_while_measuring_is_left_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(jobs: list[Job], channels_last: bool) -> float:
        raise RuntimeError("no clock today")

    monkeypatch.setattr(dispatch, "_seconds_a_sample", clock)
    results = train_many(with_trainer(make_jobs(3, Augment()), "auto"))
    assert all(isinstance(result, Result) for result in results)
    assert decisions() == {}
