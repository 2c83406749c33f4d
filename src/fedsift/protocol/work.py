"""How much a request asks of a site: samples that it sends through a network, each counted as often as it goes.

A site's policy holds this against a limit of its own before anything is computed, so it is worked out from what the
request says and from the site's sizes alone. It is an upper bound: what is asked twice at most counts twice.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fedsift.protocol.messages import SiteFacts

STEP = 8
"""A step, or a batch that is looked at, counts as so many samples at least: most of its time is the same for one."""


class HasCost:
    """Base of what a request holds and a site has to work for: the request itself, a recipe, a lesson."""

    def work(self, facts: SiteFacts) -> float:
        """Samples through a network at a site of these sizes."""
        raise TypeError(f"{type(self).__name__} does not say how much it asks")


def asked_by(value: Any, facts: SiteFacts) -> float:
    """What a field's value asks: as it says itself; a model looks at everything once; others as their parts do."""
    if isinstance(value, HasCost):
        return max(value.work(facts), 0.0)  # or one part could pay for another
    if isinstance(value, dict):
        return float(facts.seen) if any(isinstance(item, Tensor) for item in value.values()) else 0.0
    if isinstance(value, tuple | list):
        return sum(asked_by(item, facts) for item in value)
    return asked_by_fields(value, facts) if dataclasses.is_dataclass(value) else 0.0


def asked_by_fields(value: Any, facts: SiteFacts) -> float:
    return sum(asked_by(getattr(value, field.name), facts) for field in dataclasses.fields(value))


def passed(samples: int, batch_size: int) -> float:
    """One pass over so many samples in batches of this size, with what small batches cost."""
    return float(max(samples, STEP * -(-samples // max(batch_size, 1)), 0))
