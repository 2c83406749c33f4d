"""Noise model `freeloader`: some sites have random labels throughout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import Labels
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, noises


@noises.register("freeloader")
@dataclass(frozen=True)
class Freeloader(Noise):
    """Some sites give labels that have nothing to do with their images; the others are clean."""

    summary: ClassVar[str] = "some sites give random labels only, the others are clean"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    count: int = 1
    """How many freeloaders, drawn at random."""
    sites: tuple[str, ...] = ()
    """Instead: their names."""
    labels: Literal["uniform", "shuffled"] = "uniform"
    """"uniform" over all classes, or the site's own labels "shuffled", so that frequencies look right."""

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        noisy = self._chosen(scene)
        given = {
            site: self._random(scene.clean[site], scene.n_classes, scene.generator(site, "labels"))
            if site in noisy
            else scene.clean[site].copy()
            for site in scene.sites
        }
        return NoisyLabels(given=given, level={site: float(site in noisy) for site in scene.sites}, noisy=noisy)

    def _chosen(self, scene: NoiseInput) -> tuple[str, ...]:
        unknown = set(self.sites) - set(scene.sites)
        if unknown:
            known = ", ".join(scene.sites[:6])
            raise ConfigError(f"noise 'freeloader': there is no site '{min(unknown)}'; there are {known}, ...")
        if self.sites:
            return tuple(site for site in scene.sites if site in self.sites)
        if not 0 <= self.count <= len(scene.sites):
            raise ConfigError(f"noise 'freeloader': count = {self.count} of {len(scene.sites)} sites")
        names = sorted(scene.sites)
        order = scene.generator("all sites", "noisy").permutation(len(names))
        chosen = {names[k] for k in order[: self.count]}
        return tuple(site for site in scene.sites if site in chosen)

    def _random(self, labels: Labels, n_classes: int, rng: np.random.Generator) -> Labels:
        if self.labels == "shuffled":
            return labels[rng.permutation(len(labels))]
        return rng.integers(2 if labels.ndim == 2 else n_classes, size=labels.shape, dtype=np.int64)
