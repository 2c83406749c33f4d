"""A training plan: all random choices of a site's local training, drawn before it starts.

Both trainers, one site at a time and the stacked cohort, follow the same plan: that is why they agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsift.training import augment
from fedsift.training.recipe import Recipe


@dataclass(frozen=True)
class Batch:
    """One step: which samples, how they are augmented, with whom they are mixed."""

    positions: Tensor
    """int64 `[B]`; with several views, all samples of the first view, then all of the second, and so on."""
    draws: augment.AugmentationDraws
    mix_share: float
    """lambda of mixup; 1.0 when it is off."""
    mix_with: Tensor | None
    """int64 `[B]`: the partner of each sample within the batch."""
    first: bool
    """Whether it opens a local epoch."""
    chance: Tensor | None = None
    """float64 `[B]`, uniform in [0, 1): for terms that draw something for each sample."""

    def front(self, rows: int) -> Batch:
        """The batch without the rows behind; only for batches that are not mixed."""
        if rows == len(self.positions):
            return self
        chance = None if self.chance is None else self.chance[:rows]
        return replace(self, positions=self.positions[:rows], chance=chance)


def batch_bounds(n: int, batch_size: int) -> list[tuple[int, int]]:
    """Batches in order; a last batch of one sample joins its neighbour (batch norm cannot use a single row)."""
    bounds = [(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        bounds[-2:] = [(bounds[-2][0], n)]
    return bounds


@dataclass(frozen=True)
class Epoch:
    """One epoch of a site of n samples, everything in the order in which it visits them."""

    order: Tensor
    """int64 `[n]`"""
    draws: list[augment.AugmentationDraws]
    """One for each view."""
    chance: Tensor | None
    """float64 `[views, n]`"""
    bounds: list[tuple[int, int]]
    """Where each batch starts and stops."""
    mixing: list[tuple[float, Tensor | None]]
    """For each batch: lambda of mixup, and each row's partner among the rows of all views."""


def epochs(n: int, recipe: Recipe, generator: torch.Generator) -> Iterator[Epoch]:
    """All epochs of a site of n samples, drawn one after the other, lazily."""
    bounds = batch_bounds(n, recipe.batch_size)
    for _ in range(recipe.epochs):
        yield Epoch(
            order=torch.randperm(n, generator=generator),
            draws=[_look(view, n, recipe, generator) for view in range(recipe.views)],
            chance=_chance(n, recipe, generator),
            bounds=bounds,
            mixing=[_mixing(recipe.views * (stop - start), recipe.mixup, generator) for start, stop in bounds],
        )


def _look(view: int, n: int, recipe: Recipe, generator: torch.Generator) -> augment.AugmentationDraws:
    """An epoch's choices for one view."""
    if view < recipe.plain_views:
        return augment.still(recipe.augment, n)
    return augment.draw(recipe.augment, n, generator)


def plan(n: int, recipe: Recipe, generator: torch.Generator) -> Iterator[Batch]:
    """All steps of all epochs for a site of n samples."""
    for epoch in epochs(n, recipe, generator):
        for (start, stop), (share, partner) in zip(epoch.bounds, epoch.mixing):
            chance = None if epoch.chance is None else epoch.chance[:, start:stop].reshape(-1)
            yield Batch(
                positions=epoch.order[start:stop].repeat(recipe.views),
                draws=augment.AugmentationDraws.together([draws.part(start, stop) for draws in epoch.draws]),
                mix_share=share,
                mix_with=partner,
                first=start == 0,
                chance=chance,
            )


def steps(n: int, recipe: Recipe) -> int:
    """Number of optimisation steps of a site of n samples: as many as `batch_bounds` has batches, in each epoch."""
    count = -(-n // recipe.batch_size)
    joined = count > 1 and n - (count - 1) * recipe.batch_size == 1
    return recipe.epochs * (count - joined)


def reach(n: int, recipe: Recipe) -> float:
    """How far n samples can carry a network, in first steps: the way of all steps if their gradients were equal.

    Step i of SGD with momentum m moves by (1 - m^i) / (1 - m) of the first one, so s of them by
    (s - m (1 - m^s) / (1 - m)) / (1 - m). Every step of Adam is as long as the first.
    """
    count = max(1, steps(n, recipe))
    m = recipe.momentum if recipe.optimiser == "sgd" else 0.0
    return (count - m * (1 - m**count) / (1 - m)) / (1 - m)


def _chance(n: int, recipe: Recipe, generator: torch.Generator) -> Tensor | None:
    """`[views, n]`, in the order in which the epoch visits the samples; only for objectives that need it."""
    if "chance" not in recipe.objective.needs:
        return None
    return torch.rand((recipe.views, n), generator=generator, dtype=torch.float64)


def _mixing(size: int, alpha: float, generator: torch.Generator) -> tuple[float, Tensor | None]:
    if alpha <= 0:
        return 1.0, None
    # Beta(a, a) from two Gamma(a) draws; torch's Gamma sampler takes no generator but _standard_gamma does
    gammas = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator)
    total = float(gammas.sum())
    share = float(gammas[0]) / total if total > 0 else 0.5
    return share, torch.randperm(size, generator=generator)
