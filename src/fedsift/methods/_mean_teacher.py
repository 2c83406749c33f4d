"""A running average of a site's own model, its mean teacher: it lives in the notebook from visit to visit (RSCFed,
FedIRM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.protocol.messages import Reply
from fedsift.protocol.site import Site
from fedsift.training.extras import Extra, FollowerNetwork
from fedsift.training.job import TrainingResult
from fedsift.training.objective import AVERAGE
from fedsift.training.requests import Train, Trained

STEPS = "steps of the running average"
"""The notebook page that counts what the average, page `AVERAGE`, has followed."""


@dataclass(frozen=True)
class TrainWithAverage(Train):
    """Train, with a running average of the site's model beside it for terms that need one; it never leaves the site.

    In the first visit it begins with the model received; a visit whose objective does not look at it leaves it alone.
    """

    reply_type: ClassVar[type[Reply]] = Trained

    decay: float = 0.999
    """d: the average becomes d v + (1 - d) w after every step."""
    growing: bool = True
    """Average all models so far alike while they are fewer than 1 / (1 - d)."""

    def extras(self, site: Site) -> dict[str, Extra]:
        if AVERAGE not in self.recipe.objective.needs:
            return {}
        age = site.notebook.get(STEPS, 0)
        return {
            AVERAGE: FollowerNetwork(
                site.notebook.get(AVERAGE, self.weights), self.decay, age if self.growing else None
            )
        }

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        assert result is not None
        if AVERAGE in result.followers:
            site.notebook[AVERAGE] = result.followers[AVERAGE]
            site.notebook[STEPS] = site.notebook.get(STEPS, 0) + result.steps
        return super().reply(site, result)
