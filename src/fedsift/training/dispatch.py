"""Chooses the trainer for a set of jobs. The choice changes the last bits of a result, so it never depends on a clock.

Small networks and small batches are fastest stacked, large ones one site at a time. `auto` follows from what is known
of a job before it runs: its network's layers and parameters, its images and its batch. `measure` times a few steps
once for each kind of job. Either way the choice belongs to the run (`Compute.cohorts`), which can be repeated by it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from fedsift.models.factory import build_model, initial_weights
from fedsift.protocol.messages import Request
from fedsift.protocol.site import Site
from fedsift.training.cohort import ALONE, COHORT, train_cohort, try_steps
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.recipe import Recipe
from fedsift.training.trainer import train_each

# Finding the fastest cohort by the clock, for those who ask for it (`engine.trainer = "measure"`)
# ------------------------------------------------------------------------------

log = logging.getLogger(__name__)

TRIAL_STEPS = 6
"""Timed steps of each way; the first is not counted."""
TRIAL_SECONDS = 1.0
"""No further step is tried after this."""
SIZES = (1, ALONE, 4, COHORT)
"""Cohorts that are tried: large networks fill the processor alone, small ones need company."""
NEARLY = 1.02
"""The smallest cohort that takes at most so many times the best time is chosen: it needs the least memory."""


def fastest_size(kind: str, site: Site, recipe: Recipe, most: int = COHORT) -> int:
    """The cohort of this site's like that takes the least time a sample; 1 where none can be tried."""
    tried: dict[int, float] = {}
    try:
        weights = initial_weights(site.facts.model, site.samples.shape, site.n_classes, 0)
        for size in (size for size in SIZES if size <= most):
            tried[size] = seconds_a_sample([TrainingJob(site, weights, recipe)] * max(size, 1), size != ALONE)
            if size > 1 and tried[size] > min(tried.values()):
                break  # more of them will not be faster either
    except Exception:  # training itself will say what is wrong, site by site
        return 1
    best = min(tried.values())
    near = [size for size, seconds in tried.items() if seconds <= NEARLY * best]
    fewest = min(max(size, 1) for size in near)
    size = min((size for size in near if max(size, 1) == fewest), key=lambda size: tried[size])
    times = ", ".join(f"{_words(size)} {1e6 * seconds:.0f} us a sample" for size, seconds in tried.items())
    log.info("%s: %s (%s)", kind, _words(size), times)
    return size


def _words(size: int) -> str:
    if size > 1:
        return f"cohorts of {size}"
    return "one site at a time" if size == 1 else "one site at a time, channels first"


def seconds_a_sample(jobs: Sequence[TrainingJob], channels_last: bool) -> float:
    """The fastest of a few steps, divided by the samples that it trained on."""
    times: list[tuple[float, float]] = []
    began = started = time.perf_counter()
    for samples in try_steps(jobs, TRIAL_STEPS, channels_last):
        now = time.perf_counter()
        times.append((now - started, samples))
        if len(times) > 1 and now - began > TRIAL_SECONDS:
            break
        started = now
    counted = times[1:] or times
    return min(seconds / samples for seconds, samples in counted)


LARGE = 3_000_000
"""Networks with more parameters are trained one by one: one site's work already fills a core."""
NORM_PIXELS = 20_000
"""Pixels of a step, over all sites of a cohort, that networks with batch norm pass through the cache at once."""
SMALL_STEP, LARGE_STEP = 20_000, 100_000
"""Pixels of one site's step: up to the first, other convolutional networks train in whole cohorts, up to the second in
half ones."""


def train_many(jobs: Sequence[TrainingJob]) -> list[TrainingResult | Exception]:
    """Train all jobs, in the order given."""
    if not jobs:
        return []
    trainer = jobs[0].site.compute.trainer
    if trainer == "one":
        return train_each(jobs)
    return train_cohort(jobs, COHORT if trainer == "cohort" else cohort_size)


def cohort_size(jobs: Sequence[TrainingJob]) -> int:
    """How many of these alike jobs to train together: as the run has settled, else as their kind suggests."""
    site, recipe = jobs[0].site, jobs[0].recipe
    size = site.compute.cohorts.get(kind_of(site, recipe))
    if size is None:
        size = suggested_size(site, recipe)
    return ALONE if size == ALONE else min(size, len(jobs))


def settle(work: Sequence[tuple[Any, Site]]) -> None:
    """Decide about every kind of training in this work and write it into the run's `Compute.cohorts`.

    Done before the work is shared out, so that every worker finds the choice made.
    """
    for request, site in work:
        compute = site.compute
        if compute.trainer not in ("auto", "measure"):
            continue
        for recipe in recipes_of(request):
            kind = kind_of(site, recipe)
            if kind in compute.cohorts or len(site.samples) == 0:
                continue
            compute.cohorts[kind] = (
                fastest_size(kind, site, recipe, COHORT if not is_large(site) else 1)
                if compute.trainer == "measure"
                else suggested_size(site, recipe)
            )


def recipes_of(request: Any) -> Iterator[Recipe]:
    """The recipes that a request carries, those of the requests inside it too."""
    if isinstance(request, Recipe):
        yield request
    elif isinstance(request, Request):
        for field in dataclasses.fields(request):
            yield from recipes_of(getattr(request, field.name))
    elif isinstance(request, tuple):
        for part in request:
            yield from recipes_of(part)


def kind_of(site: Site, recipe: Recipe) -> str:
    """What a choice holds for, in words that fit a study's file."""
    shape = "x".join(str(side) for side in site.samples.shape)
    terms = "+".join(sorted(type(term).__name__ for weight, term in recipe.objective.terms if weight != 0))
    return f"{site.facts.model} {shape} batch {recipe.batch_size * recipe.views} {recipe.optimiser} {terms}"


def suggested_size(site: Site, recipe: Recipe) -> int:
    """A cohort's size by static facts alone. The figures behind it: benchmarks/speed/results/sizes.csv."""
    if site.compute.device != "cpu":
        return 1
    facts = _facts(site.facts.model, site.samples.shape, site.n_classes)
    if facts is None:
        return 1  # training itself will say what is wrong, site by site
    if facts.parameters > LARGE:
        return 1
    if not facts.convolutions:
        return COHORT
    height, width = site.samples.shape[-2:]
    pixels = recipe.batch_size * recipe.views * height * width
    if facts.batch_norms:
        return min(max(round(NORM_PIXELS / pixels), 1), COHORT)
    return COHORT if pixels <= SMALL_STEP else COHORT // 2 if pixels <= LARGE_STEP else 1


def is_large(site: Site) -> bool:
    """Whether one site's network alone fills the processor."""
    facts = _facts(site.facts.model, site.samples.shape, site.n_classes)
    return facts is not None and facts.parameters > LARGE


@dataclasses.dataclass(frozen=True)
class _Facts:
    """What a network's cost depends on."""

    parameters: int
    convolutions: bool
    batch_norms: bool


@lru_cache(maxsize=16)
def _facts(model: str, shape: tuple[int, ...], n_classes: int) -> _Facts | None:
    try:
        network = build_model(model, shape, n_classes)
    except Exception:  # whatever a network from elsewhere raises; training meets it again
        return None
    parts = list(network.modules())
    return _Facts(
        parameters=sum(value.numel() for value in network.parameters()),
        convolutions=any(isinstance(part, nn.modules.conv._ConvNd) for part in parts),
        batch_norms=any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts),
    )
