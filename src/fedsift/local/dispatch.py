"""Which trainer serves a set of jobs. Results do not depend on the choice; time does."""

from __future__ import annotations

from collections.abc import Sequence

from fedsift.local.trainer import Job, Result, train_each


def train_many(jobs: Sequence[Job]) -> list[Result | Exception]:
    """Train all jobs, in the order given."""
    return train_each(jobs)
