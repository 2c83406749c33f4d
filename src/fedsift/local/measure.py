"""Finding the fastest cohort by the clock, for those who ask for it (`engine.trainer = "measure"`).

The outcome depends on what else the machine is doing, so it is never a default, and a run keeps what was found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from fedsift.local.cohort import ALONE, COHORT, try_steps
from fedsift.local.recipe import Recipe
from fedsift.local.site import Site
from fedsift.local.trainer import Job
from fedsift.models import initial_weights

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
            tried[size] = seconds_a_sample([Job(site, weights, recipe)] * max(size, 1), size != ALONE)
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


def seconds_a_sample(jobs: Sequence[Job], channels_last: bool) -> float:
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
