"""What the methods share that learn beside FedAvg from classes that a site does not annotate, in the forms in which
FedMLP's comparison (Sun et al. 2024) ran them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from fedsift.core.errors import ConfigError
from fedsift.methods._base import OneStage, for_missing_classes
from fedsift.protocol.facts import FederationFacts, Incompatibility
from fedsift.training.recipe import Recipe


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
