"""Which trainer serves a set of jobs. Results do not depend on the choice; time does.

Small networks and small batches are fastest stacked, large ones one site at a time. Where the line runs is a matter of
the machine, so the first jobs of a kind are timed for a few steps in cohorts of several sizes, and the winner is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedsift.local.cohort import ALONE, COHORT, train_cohort, try_steps
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result, train_each
from fedsift.models import build_model

log = logging.getLogger(__name__)

TRIAL_STEPS = 6
"""Timed steps of each way; the first is not counted."""
TRIAL_SECONDS = 1.0
"""No further step is tried after this."""
SIZES = (1, ALONE, 4, COHORT)
"""Cohorts that are tried: large networks fill the processor alone, small ones need company."""
NEARLY = 1.02
"""The smallest cohort that takes at most so many times the best time is chosen: it needs the least memory."""
LARGE = 3_000_000
"""Networks with more parameters are trained one by one: one site's work already fills a core."""

_sizes: dict[str, int] = {}


def train_many(jobs: Sequence[Job]) -> list[Result | Exception]:
    """Train all jobs, in the order given."""
    if not jobs:
        return []
    trainer = jobs[0].site.compute.trainer
    if trainer == "one":
        return train_each(jobs)
    return train_cohort(jobs, COHORT if trainer == "cohort" else cohort_size)


def cohort_size(jobs: Sequence[Job]) -> int:
    """How many of these alike jobs to train together; measured once for each kind of job, then remembered."""
    kind = _kind(jobs[0])
    if len(jobs) == 1:
        return ALONE if _sizes.get(kind) == ALONE else 1
    if kind not in _sizes:
        try:
            _sizes[kind] = _measure(kind, jobs[:COHORT])
        except Exception:  # training itself will say what is wrong, site by site
            return 1
    return _sizes[kind]


def decisions() -> dict[str, int]:
    """Cohort sizes chosen so far, by kind of job: kept with a run, they make a resumed run choose alike."""
    return dict(_sizes)


def recall(decided: Mapping[str, int]) -> None:
    """Take over choices made earlier."""
    _sizes.update(decided)


def _kind(job: Job) -> str:
    site, recipe = job.site, job.recipe
    shape = "x".join(str(side) for side in site.samples.shape)
    terms = "+".join(sorted(type(term).__name__ for weight, term in recipe.objective.terms if weight != 0))
    return f"{site.facts.model} {shape} batch {recipe.batch_size * recipe.views} {recipe.optimiser} {terms}"


def is_large(site: Site) -> bool:
    """Whether one site's network alone fills the processor."""
    try:
        return _parameters(site.facts.model, site.samples.shape, site.n_classes) > LARGE
    except Exception:  # training itself will say what is wrong, site by site
        return False


def _measure(kind: str, jobs: Sequence[Job]) -> int:
    large = is_large(jobs[0].site)
    tried: dict[int, float] = {}
    for size in SIZES:
        if (size > 1 and large) or (size > len(jobs) and size != COHORT):
            continue
        tried[size] = _seconds_a_sample(jobs[: max(size, 1)], size != ALONE)
        if size > 1 and tried[size] > min(tried.values()):
            break  # more of them will not be faster either
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


def _seconds_a_sample(jobs: Sequence[Job], channels_last: bool) -> float:
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


@lru_cache(maxsize=16)
def _parameters(model: str, shape: tuple[int, ...], n_classes: int) -> int:
    return sum(value.numel() for value in build_model(model, shape, n_classes).parameters())
