"""Distributes a round's work among worker processes; the answers do not depend on how many there are.

What is computed together follows from the round's sites and the study alone: they are cut into parts, each part is
answered as a whole (`Request.answer_many`), and workers receive parts. Without workers, or when one is lost, this
process answers the same parts, with the same number of threads. Sums over other sites' company, over another number
of threads or over other batches would have other last bits, and last bits have turned verdicts.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fedsift.models.factory import build_model
from fedsift.protocol.messages import Weights
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training.cohort import COHORT
from fedsift.training.dispatch import is_large, settle
from fedsift.training.predict import BATCH, logits_of
from fedsift.training.processes import close_workers, start_workers, threads_of, workers

__all__ = ["answer_many", "balance", "close_workers", "cut", "predict", "start_workers"]

PARTS = 2
"""Parts of a round at least: as many processes have something to do, and cohorts stay as large as can be."""


# Requests --------------------------------------------------------------------------------------------------


def answer_many(kind: type, work: Sequence[tuple[Any, Site]]) -> list[Any]:
    """`kind.answer_many` of each part of `work`, by the worker processes that the sites ask for if there are any.

    Afterwards each site of `work` has the notebook that answering left.
    """
    if not work:
        return []
    compute = work[0][1].compute
    with threads_of(compute.threads):
        settle(work)
    parts = cut(work, compute.parts)
    outcomes: list[Any] = [None] * len(work)
    if not _elsewhere(compute, len(parts)):
        for part in parts:
            with threads_of(compute.threads):
                answers = kind.answer_many([work[index] for index in part])  # type: ignore[attr-defined]
            for index, outcome in zip(part, answers):
                outcomes[index] = outcome
        return outcomes
    loads = balance([sum(len(work[index][1].samples) for index in part) for part in parts], compute.workers)
    calls = [(kind, [[work[index] for index in parts[p]] for p in own]) for own in loads]
    answered = workers(compute.workers).map(_answer_parts, calls, _pools(work), compute.threads)
    for own, answers in zip(loads, answered):
        for index, (outcome, pages) in zip((index for p in own for index in parts[p]), answers):
            outcomes[index] = outcome
            if pages is not None:
                site = work[index][1]
                site.notebook = Notebook(pages)
                site.notebook.written = True
    return outcomes


def cut(work: Sequence[tuple[Any, Site]], parts: int = 0) -> list[list[int]]:
    """Indices of the sites that are answered together, by their sizes and networks alone.

    parts: how many; 0 is an even number that leaves each with at most a cohort, and sites with large networks alone.
    """
    if all(is_large(site) for _, site in work):
        return [[index] for index in range(len(work))]
    count = parts or PARTS * math.ceil(len(work) / (PARTS * COHORT))
    return balance([len(site.samples) for _, site in work], count)


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices in `count` groups (none empty): the largest first, always to the least loaded."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(shares)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(index)
        loads[lightest] += max(sizes[index], 1)
    return [sorted(own) for own in shares]


def _elsewhere(compute: ComputeSettings, parts: int) -> bool:
    """Whether worker processes answer."""
    return compute.workers > 1 and parts > 1 and compute.device == "cpu"


def _answer_parts(kind: type, parts: list[list[tuple[Any, Site]]]) -> list[tuple[Any, dict[str, Any] | None]]:
    """In a worker: answers, and the pages of notebooks that were written to."""
    return [
        (_portable(outcome), site.notebook.pages() if site.notebook.written else None)
        for work in parts
        for outcome, (_, site) in zip(kind.answer_many(work), work)  # type: ignore[attr-defined]
    ]


def _portable(outcome: Any) -> Any:
    """Errors keep their class where that can travel."""
    if not isinstance(outcome, Exception):
        return outcome
    try:
        pickle.loads(pickle.dumps(outcome))
    except Exception:
        return RuntimeError(f"{type(outcome).__name__}: {outcome}")
    return outcome


def _pools(work: Sequence[tuple[Any, Site]]) -> list[Tensor]:
    """The distinct pools of images that these sites look into."""
    found: dict[int, Tensor] = {}
    for _, site in work:
        for samples in (site.samples, site.held_out, site.public, site.test):
            if isinstance(samples, Samples):
                found.setdefault(id(samples.pool), samples.pool)
    return list(found.values())


# Predictions -----------------------------------------------------------------------------------------------

FEWEST_ROWS = 1000
"""A worker is not worth asking for less."""


def predict(model: str, weights: Weights, samples: Samples, n_classes: int, compute: ComputeSettings) -> Tensor:
    """Logits `[n, K]` of all samples under these weights; batches do not depend on the number of workers."""
    count = min(compute.workers, len(samples) // FEWEST_ROWS)
    if not _elsewhere(compute, count):
        with threads_of(compute.threads):
            return _predict_part(model, weights, samples, n_classes, compute.device)
    rows = BATCH * math.ceil(len(samples) / BATCH / count)
    calls = [
        (model, weights, replace(samples, rows=part), n_classes, "cpu") for part in torch.split(samples.rows, rows)
    ]
    return torch.cat(workers(compute.workers).map(_predict_part, calls, [samples.pool], compute.threads))


def _predict_part(model: str, weights: Weights, samples: Samples, n_classes: int, device: str) -> Tensor:
    network = _network(model, samples.shape, n_classes, device)
    network.load_state_dict(weights)
    return logits_of(network, samples)


@lru_cache(maxsize=4)
def _network(model: str, shape: tuple[int, ...], n_classes: int, device: str) -> nn.Module:
    return build_model(model, shape, n_classes).to(device)
