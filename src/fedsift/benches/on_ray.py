"""The same jobs on a Ray cluster: every machine of it needs this version of fedsift and the data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsift.benches.crew import Job, News, do
from fedsift.benches.version import source_digest
from fedsift.contract.errors import ConfigError


def carry_out_on_ray(jobs: Sequence[Job], address: str) -> Iterator[News]:
    """All jobs, as many at a time as the cluster has cores; "local" starts a cluster on this machine."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'fedsift[flower]', which brings it") from None
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # a cluster of one's own: not behind everything else here
    # Ray gives a task of one core one thread by itself, and a run asks for one besides
    ray.init(
        address=None if address == "local" else address,
        log_to_driver=False,
        include_dashboard=False if address == "local" else None,
    )
    try:
        task = ray.remote(num_cpus=1, max_retries=0)(_there)
        waiting: dict[Any, Job] = {task.remote(job, source_digest()): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                job = waiting.pop(reference)
                try:
                    news: News = ray.get(reference)
                except ray.exceptions.RayError as error:
                    news = News(job.number, failure=f"{type(error).__name__}: {str(error).splitlines()[0]}")
                yield news
    finally:
        ray.shutdown()


def _there(job: Job, digest: str) -> News:
    """One job on a machine of the cluster, in a folder of its own; another version is refused."""
    if source_digest() != digest:
        return News(
            job.number, failure="this machine of the cluster has another version of fedsift: install the same"
        )
    with tempfile.TemporaryDirectory(prefix="fedsift-") as place:
        return do(replace(job, folder=Path(place) / "run", keep=False))
