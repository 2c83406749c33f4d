"""The sides of the comparison. Each is prepared once and then trains one round whenever it is told to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from benchmarks.speed.plain import State, average, train_plain
from benchmarks.speed.research import Pictures, train_research
from benchmarks.speed.workload import CLASSES, MEAN, PADDING, SHAPE, STD, Workload, make_pool
from torch import Tensor

from fedsift.formulas.aggregation import shares_of, weighted_average
from fedsift.models.factory import build_model, initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training.processes import start_workers
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite, Train
from fedsift.training.workers import answer_many

Round = Callable[[int], None]
"""Train and average the sites of the numbered round."""
CORES = 2


def research(work: Workload, threads: int) -> Round:
    """Released research code: nothing prepared, everything image by image."""
    torch.set_num_threads(threads)
    dataset = Pictures(*make_pool())
    network = build_model(work.model, SHAPE, CLASSES)

    def run(number: int) -> None:
        rows = [work.rows(site).tolist() for site in work.sites_of(number)]
        states = [train_research(network, dataset, own, work) for own in rows]
        network.load_state_dict(average(states))

    return run


def plain(work: Workload, threads: int, channels_last: bool = True) -> Round:
    """A plain loop over the sites in one process."""
    torch.set_num_threads(threads)
    images, labels = make_pool()
    state = initial_weights(work.model, SHAPE, CLASSES, 0)

    def run(number: int) -> None:
        nonlocal state
        chosen = work.sites_of(number)
        parts = [work.rows(site) for site in chosen]
        state = average(
            [
                train_plain(state, images[rows], labels[rows], work, 1000 * number + site, channels_last)
                for site, rows in zip(chosen, parts)
            ]
        )

    return run


_pool: tuple[Tensor, Tensor] | None = None


def _prepare_worker() -> None:
    global _pool
    torch.set_num_threads(1)
    _pool = make_pool()


def _train_part(state: State, work: Workload, sites: list[int], number: int) -> list[State]:
    assert _pool is not None
    images, labels = _pool
    parts = [work.rows(site) for site in sites]
    return [
        train_plain(state, images[rows], labels[rows], work, 1000 * number + site, True)
        for site, rows in zip(sites, parts)
    ]


def plain_workers(work: Workload) -> Round:
    """The same loop in two processes of one thread each: the best that plain PyTorch does on two cores."""
    executor = ProcessPoolExecutor(CORES, mp_context=get_context("spawn"), initializer=_prepare_worker)
    state = initial_weights(work.model, SHAPE, CLASSES, 0)

    def run(number: int) -> None:
        nonlocal state
        chosen = work.sites_of(number)
        halves = [chosen[start::CORES] for start in range(CORES)]
        futures = [executor.submit(_train_part, state, work, half, number) for half in halves]
        state = average([own for future in futures for own in future.result()])

    return run


def ours(work: Workload, workers: int, trainer: str = "auto") -> Round:
    """fedsift's own round: a `Train` request answered by all chosen sites, then averaged."""
    torch.set_num_threads(1)
    compute = ComputeSettings(trainer=trainer, workers=workers)  # type: ignore[arg-type]
    start_workers(compute)
    images, labels = make_pool()
    weights = initial_weights(work.model, SHAPE, CLASSES, 0)
    recipe = Recipe(batch_size=work.batch, lr=work.lr, momentum=work.momentum, augment=Augment(flip=True, crop=PADDING))

    def site_of(number: int, site: int) -> Site:
        rows = work.rows(site)
        return LocalSite(
            facts=SiteFacts(f"site {site}", len(rows), model=work.model),
            samples=Samples(images, rows, MEAN, STD),
            given=labels[rows],
            classes=tuple(str(k) for k in range(CLASSES)),
            moment=RequestMoment(0, "train", number, 0),
            compute=compute,
        )

    def run(number: int) -> None:
        nonlocal weights
        request = Train(weights, recipe)
        replies = answer_many(Train, [(request, site_of(number, site)) for site in work.sites_of(number)])
        shares = shares_of([reply.samples for reply in replies])
        weights = weighted_average([reply.weights for reply in replies], shares)

    return run


SIDES: dict[str, Callable[[Workload], Round]] = {
    "research, 1 thread": lambda work: research(work, 1),
    "research, 2 threads": lambda work: research(work, CORES),
    "plain, 1 thread": lambda work: plain(work, 1),
    "plain, 2 threads": lambda work: plain(work, CORES, channels_last=False),
    "plain, 2 threads, channels last": lambda work: plain(work, CORES),
    "plain, 2 processes": plain_workers,
    "fedsift, 1 process": lambda work: ours(work, 0),
    "fedsift, 2 processes": lambda work: ours(work, CORES),
}
