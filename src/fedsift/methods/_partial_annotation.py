"""Base class of the multi-label methods for partly annotated sites, and a mean teacher (EMA).

The forms are those of FedMLP's comparison (Sun et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from fedsift.core.errors import ConfigError
from fedsift.methods._base import OneStage, for_missing_classes
from fedsift.protocol.federation import FederationFacts, Incompatibility
from fedsift.protocol.messages import Reply
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import AVERAGE, Extra, FollowerNetwork
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained


def published_recipe() -> Recipe:
    """Adam as in FedMLP's section 3.1, for all of its comparison."""
    return Recipe(optimiser="adam", lr=3e-5, weight_decay=5e-4)


@dataclass(frozen=True)
class PartlyAnnotated(OneStage):
    """A method of repeated rounds for sites that annotate some classes only."""

    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)
    compares_views: ClassVar[bool] = False
    """Whether it sees a sample twice in a step."""

    local: Recipe = field(default_factory=published_recipe, kw_only=True)

    def __post_init__(self) -> None:
        if self.compares_views and self.local.mixup > 0:
            raise ConfigError(
                f"train.mixup = {self.local.mixup}: this method compares two views of one sample, so samples cannot be "
                "mixed besides; set train.mixup = 0"
            )

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from for_missing_classes(facts)


# A mean teacher: a running average of a site's own model
# ------------------------------------------------------------------------------


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
