"""Labels that are not touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, noises


@noises.register("clean")
@dataclass(frozen=True)
class Clean(Noise):
    """Every site believes the labels of the source, and they are taken for the truth."""

    summary: ClassVar[str] = "labels as they are, taken for the truth"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    @property
    def before_partition(self) -> bool:
        return True

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        known = scene.dataset is None or scene.dataset.trusted
        return NoisyLabels(
            given={site: labels.copy() for site, labels in scene.clean.items()},
            level=dict.fromkeys(scene.sites, 0.0),
            noisy=(),
            known=known,
        )


@noises.register("as-given")
@dataclass(frozen=True)
class AsGivenLabels(Noise):
    """Labels as the annotators gave them.

    The truth is known only if the source brings true labels beside the given ones; otherwise nothing is
    measured against it. This is the model for a person's own data.
    """

    summary: ClassVar[str] = "labels as annotated; the truth is unknown unless the source brings it"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    @property
    def before_partition(self) -> bool:
        return True

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        annotations = None if scene.dataset is None else scene.dataset.given
        if annotations is None:
            given = {site: labels.copy() for site, labels in scene.clean.items()}
        else:
            given = {site: annotations[scene.rows[site]].copy() for site in scene.sites}
        wrong = {site: float((given[site] != scene.clean[site]).mean()) for site in scene.sites}
        return NoisyLabels(
            given=given,
            level=wrong,
            noisy=tuple(site for site in scene.sites if wrong[site] > 0),
            known=annotations is not None,
        )
