"""Noise model `fedcorr`: some sites are noisy at random, each with a uniform level, and their labels are redrawn.

Xu, Chen, Quek, Chong: FedCorr, CVPR 2022, eq. 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.core.numbers import floor_count
from fedsift.data.dataset import Labels
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, need_rate, noises


@noises.register("fedcorr")
@dataclass(frozen=True)
class FedCorrNoise(Noise):
    """A site is noisy with probability ρ; its level μ ~ U(τ, 1); a share μ of its labels is drawn anew.

    The new label is uniform over all M classes, the true one included, so a share μ(1 - 1/M) ends up wrong.
    """

    summary: ClassVar[str] = "noisy site with probability rho, level U(tau, 1), labels redrawn uniformly (FedCorr)"

    rho: float = 0.6
    """Probability that a site is noisy."""
    tau: float = 0.5
    """Lower bound of a noisy site's level."""
    upper: float = 1.0
    """Upper bound of a noisy site's level (FedNoRo's "random" noise has (η_l, η_u) for (tau, upper))."""
    drawn_classes: int = 0
    """New labels come from the first so many classes (0: all; FedCorr's released code always uses 10)."""
    sites: Literal["bernoulli", "exact"] = "bernoulli"
    """"bernoulli": every site tosses a coin; "exact": ⌊ρN⌋ sites are drawn."""
    samples: Literal["bernoulli", "exact"] = "bernoulli"
    """"bernoulli": every sample tosses a coin; "exact": ⌊μn⌋ samples of the site are drawn."""

    def __post_init__(self) -> None:
        need_rate("fedcorr", "rho", self.rho)
        need_rate("fedcorr", "tau", self.tau)
        need_rate("fedcorr", "upper", self.upper)
        if self.upper < self.tau:
            raise ConfigError(f"noise 'fedcorr': upper = {self.upper} is below tau = {self.tau}")

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        noisy = choose_noisy_sites(scene, self.rho, exact=self.sites == "exact")
        level = draw_levels(scene, noisy, self.tau, self.upper)
        given = {}
        for site in scene.sites:
            rng = scene.generator(site, "labels")
            chosen = choose_samples(len(scene.clean[site]), level[site], rng, exact=self.samples == "exact")
            given[site] = redraw(scene.clean[site], chosen, self.drawn_classes or scene.n_classes, rng)
        return NoisyLabels(given=given, level=level, noisy=noisy)


def choose_noisy_sites(scene: NoiseInput, rho: float, *, exact: bool, forgiving: bool = True) -> tuple[str, ...]:
    """Noisy sites in the scene's order: ⌊ρN⌋ of them, or each by its own coin."""
    if exact:
        names = sorted(scene.sites)
        order = scene.generator("all sites", "noisy").permutation(len(names))
        chosen = {names[k] for k in order[: floor_count(rho * len(names), forgiving=forgiving)]}
        return tuple(site for site in scene.sites if site in chosen)
    return tuple(site for site in scene.sites if scene.generator(site, "noisy").random() < rho)


def draw_levels(scene: NoiseInput, noisy: tuple[str, ...], low: float, high: float) -> dict[str, float]:
    """μ ~ U(low, high) for noisy sites, 0 for the others."""
    return {
        site: low + (high - low) * float(scene.generator(site, "level").random()) if site in noisy else 0.0
        for site in scene.sites
    }


def choose_samples(n: int, level: float, rng: np.random.Generator, *, exact: bool) -> NDArray[np.bool_]:
    """Which of n samples are corrupted: ⌊level·n⌋ of them, or each by its own coin."""
    if not exact:
        return rng.random(n) < level
    chosen = np.zeros(n, np.bool_)
    chosen[rng.permutation(n)[: floor_count(level * n)]] = True
    return chosen


def redraw(labels: Labels, chosen: NDArray[np.bool_], classes: int, rng: np.random.Generator) -> Labels:
    """Chosen labels drawn anew, uniformly from the first `classes` classes."""
    return np.where(chosen, rng.integers(classes, size=len(labels)), labels).astype(np.int64)
