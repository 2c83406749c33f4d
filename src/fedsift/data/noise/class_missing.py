"""Noise model `class-missing` (FedMLP): each site annotates some of the classes only; the others read as absent.

Sun et al.: FedMLP, MICCAI 2024, sec. 2.1 and 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, noises


@noises.register("class-missing")
@dataclass(frozen=True)
class ClassMissing(Noise):
    """Each site annotates C - m classes; labels of the m others are 0. Every class is annotated somewhere.

    The masks are `Spread.annotated`. A site's level is the share of its classes that it does not annotate;
    how many labels this makes wrong (positives that read 0) is the effective rate.
    """

    summary: ClassVar[str] = "every site annotates C - missing classes, the others read 0 (FedMLP)"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    missing: int = 1
    """m: classes that a site does not annotate."""
    hot: tuple[str, ...] = ()
    """Classes that every site annotates ("hot classes")."""
    cool: tuple[str, ...] = ()
    """Classes that only one site annotates ("cool classes"), as far as the counts allow."""

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        names = scene.dataset.classes if scene.dataset is not None else tuple(map(str, range(scene.n_classes)))
        unknown = [name for name in (*self.hot, *self.cool) if name not in names]
        if unknown:
            raise ConfigError(f"noise 'class-missing': there is no class '{unknown[0]}'; there are {', '.join(names)}")
        masks = draw_masks(
            len(scene.sites),
            scene.n_classes,
            self.missing,
            scene.generator("all sites", "annotated"),
            hot=[names.index(name) for name in self.hot],
            cool=[names.index(name) for name in self.cool],
        )
        annotated = dict(zip(scene.sites, masks))
        return NoisyLabels(
            given={site: scene.clean[site] * annotated[site] for site in scene.sites},
            level=dict.fromkeys(scene.sites, self.missing / scene.n_classes),
            noisy=tuple(scene.sites) if self.missing else (),
            annotated=annotated,
        )


def draw_masks(
    sites: int,
    n_classes: int,
    missing: int,
    rng: np.random.Generator,
    *,
    hot: Sequence[int] = (),
    cool: Sequence[int] = (),
) -> NDArray[np.bool_]:
    """Boolean `[sites, n_classes]`: exactly C - m classes a site, every class at least once.

    Classes are dealt out like cards: first every class once (each to a site that still has room), then hot
    classes to all, then the rest at random; cool classes get a second site only when nothing else is left
    to give.
    """
    kept = n_classes - missing
    if not 0 <= missing < n_classes:
        raise ConfigError(
            f"noise 'class-missing': missing = {missing} of {n_classes} classes leaves nothing to annotate"
        )
    if sites * kept < n_classes:
        raise ConfigError(
            f"noise 'class-missing': {sites} sites with {kept} classes each cannot cover {n_classes}: "
            f"use at least {-(-n_classes // kept)} sites or missing <= {n_classes - -(-n_classes // sites)}"
        )
    if len(hot) > kept or set(hot) & set(cool):
        raise ConfigError(
            f"noise 'class-missing': {len(hot)} hot classes, {kept} annotated a site; none may be cool too"
        )
    masks = np.zeros((sites, n_classes), np.bool_)
    masks[:, list(hot)] = True
    room = np.full(sites, kept - len(hot))
    rest = [int(c) for c in rng.permutation(n_classes) if c not in hot]
    if int(room.sum()) < len(rest):
        raise ConfigError(
            "noise 'class-missing': with these hot classes some class is annotated nowhere: fewer hot ones"
        )
    for c in rest:
        # The roomiest site, at random among equals: rooms stay level, so every class finds a place.
        site = int(rng.choice(np.flatnonzero(room == room.max())))
        masks[site, c] = True
        room[site] -= 1
    for site in range(sites):
        for group in ([c for c in rest if c not in cool], list(cool)):
            free = [c for c in group if not masks[site, c]]
            take = rng.permutation(np.array(free, np.int64))[: room[site]]
            masks[site, take] = True
            room[site] -= len(take)
    return masks
