"""Worker processes: the same answers and notebooks, whoever gives them; a lost worker costs time, nothing else."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedsift.core.errors import DataError
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import Reply, Request, RequestMoment, SiteFacts, disclosed
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training import processes, workers
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite, Train, Trained
from fedsift.training.workers import answer_many, balance, predict

SHAPE, CLASSES = (3, 10, 10), 4


@pytest.fixture(scope="module")
def pool() -> Tensor:
    return torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_sites(pool: Tensor, count: int, threads: int = 1) -> list[Site]:
    sites = []
    for number, n in enumerate((9, 7, 12, 5)):
        generator = torch.Generator().manual_seed(number)
        sites.append(
            LocalSite(
                SiteFacts(f"site {number}", n, model="lenet5"),
                Samples(pool, torch.randperm(len(pool), generator=generator)[:n]),
                torch.randint(0, CLASSES, (n,), generator=generator),
                tuple("abcd"),
                RequestMoment(3, "train", 0, 0),
                compute=ComputeSettings(trainer="cohort", workers=count, threads=threads),
            )
        )
    return sites


@dataclass(frozen=True)
class Note(Reply):
    who: str = disclosed("the site's name", "setting")
    process: int = disclosed("the process that answered", "setting")


@dataclass(frozen=True)
class WriteNote(Request[Note]):
    """Writes to the notebook of most sites and fails at one."""

    reply_type: ClassVar[type[Reply]] = Note

    def answer(self, site: Site) -> Note:
        if site.name == "site 1":
            raise DataError(f"{site.name} has nothing to say")
        if site.name != "site 2":
            site.keep_evidence("test", labels=site.labels + 1)
            site.notebook["big"] = torch.arange(1000.0)
        return Note(site.name, os.getpid())


def test_training_is_the_same_in_workers(pool: Tensor) -> None:
    weights = initial_weights("lenet5", SHAPE, CLASSES, 0)
    request = Train(weights, Recipe(batch_size=4, lr=0.05, augment=Augment(flip=True, crop=2)))
    here = Train.answer_many([(request, site) for site in make_sites(pool, 0)])
    there = answer_many(Train, [(request, site) for site in make_sites(pool, 2)])
    assert processes._current is not None
    for ours, theirs in zip(there, here):
        assert isinstance(ours, Trained)
        assert ours.samples == theirs.samples
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        for name, value in theirs.weights.items():
            assert torch.allclose(ours.weights[name], value, rtol=1e-4, atol=1e-6)


def test_notebooks_errors_and_replies_come_back(pool: Tensor) -> None:
    sites = make_sites(pool, 2)
    given = [site.given.clone() for site in sites]
    outcomes = answer_many(WriteNote, [(WriteNote(), site) for site in sites])
    assert [getattr(outcome, "who", None) for outcome in outcomes] == ["site 0", None, "site 2", "site 3"]
    assert len({outcome.process for outcome in outcomes if isinstance(outcome, Note)} | {os.getpid()}) == 3
    assert isinstance(outcomes[1], DataError)
    assert "nothing to say" in str(outcomes[1])
    assert [site.notebook.written for site in sites] == [True, False, False, True]
    assert torch.equal(sites[0].labels, given[0] + 1)
    assert torch.equal(sites[3].notebook["big"], torch.arange(1000.0))
    assert torch.equal(sites[2].labels, given[2])


def test_a_notebook_travels_there_and_back(pool: Tensor) -> None:
    sites = make_sites(pool, 2)
    for _ in range(2):
        answer_many(WriteNote, [(WriteNote(), site) for site in sites])
    assert torch.equal(sites[0].labels, sites[0].given + 2)


def test_without_workers_nothing_is_started(pool: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "workers", lambda count: pytest.fail("started workers"))
    sites = make_sites(pool, 0)
    outcomes = answer_many(WriteNote, [(WriteNote(), site) for site in sites])
    assert outcomes[0].process == os.getpid()
    one = make_sites(pool, 2)[:1]
    assert answer_many(WriteNote, [(WriteNote(), one[0])])[0].process == os.getpid()


@dataclass(frozen=True)
class Threads(Reply):
    count: int = disclosed("the threads at work", "count")


@dataclass(frozen=True)
class CountThreads(Request[Threads]):
    reply_type: ClassVar[type[Reply]] = Threads

    def answer(self, site: Site) -> Threads:
        return Threads(torch.get_num_threads())


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_the_studys_whoever_answers(pool: Tensor, count: int, threads: int) -> None:
    before = torch.get_num_threads()
    work = [(CountThreads(), site) for site in make_sites(pool, count, threads)]
    assert [outcome.count for outcome in answer_many(CountThreads, work)] == [threads] * 4
    assert [outcome.count for outcome in answer_many(CountThreads, work[:1])] == [threads]
    assert torch.get_num_threads() == before


def test_a_killed_worker_is_replaced(pool: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    processes._warn_once.cache_clear()
    first = answer_many(WriteNote, [(WriteNote(), site) for site in make_sites(pool, 2)])
    os.kill(first[0].process, signal.SIGKILL)
    sites = make_sites(pool, 2)
    second = answer_many(WriteNote, [(WriteNote(), site) for site in sites])
    assert second[0].process == os.getpid()
    assert sites[0].notebook.written
    assert any("its part is done here" in line for line in caplog.messages)
    third = answer_many(WriteNote, [(WriteNote(), site) for site in make_sites(pool, 2)])
    assert third[0].process not in (os.getpid(), first[0].process)


def test_what_a_worker_cannot_load_is_done_here(pool: Tensor) -> None:
    @dataclass(frozen=True)
    class Local(WriteNote):
        pass

    outcomes: list[Any] = answer_many(Local, [(Local(), site) for site in make_sites(pool, 2)])
    assert outcomes[0].process == os.getpid()
    assert isinstance(outcomes[1], DataError)


def test_predictions_are_the_same_in_workers(pool: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FEWEST_ROWS", 10)
    monkeypatch.setattr(workers, "BATCH", 10)
    weights = initial_weights("lenet5", SHAPE, CLASSES, 1)
    samples = Samples(pool, torch.arange(len(pool)))
    here = predict("lenet5", weights, samples, CLASSES, ComputeSettings(workers=0))
    there = predict("lenet5", weights, samples, CLASSES, ComputeSettings(workers=2))
    assert here.shape == (60, CLASSES)
    assert torch.allclose(here, there, rtol=1e-5, atol=1e-6)  # other batches: BATCH is not the worker's


def test_another_studys_data_replaces_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_POOLS", 1)
    for seed in range(2):
        own = torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        outcomes = answer_many(WriteNote, [(WriteNote(), site) for site in make_sites(own, 2)])
        assert isinstance(outcomes[0], Note)
    assert processes._current is not None
    assert len(processes._current._pools) == 1


def test_work_is_spread_evenly_and_always_alike() -> None:
    assert balance([5, 5, 5, 5], 2) == [[0, 2], [1, 3]]
    assert balance([1, 9, 1, 1, 4], 2) == [[1], [0, 2, 3, 4]]
    assert balance([3], 4) == [[0]]
    assert balance([0, 0, 0], 2) == [[0, 2], [1]]
