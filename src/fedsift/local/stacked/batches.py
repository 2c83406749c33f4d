"""The steps of a cohort: every site's own plan, laid side by side in padded tables before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsift.local import augment
from fedsift.local.plan import Epoch, epochs
from fedsift.local.stacked.layout import empty_samples
from fedsift.local.stacked.pixels import PixelSource
from fedsift.local.trainer import Job


@dataclass(frozen=True)
class CohortStep:
    """One optimisation step of the k sites that are still training; B counts all views of the longest batch."""

    sites: int
    samples: Tensor
    """`[k, B, *shape]`, augmented and mixed, in the cohort's memory order."""
    target: Tensor
    """`[k, B, K]`"""
    present: Tensor
    """`[k, B]`, 1 for real rows."""
    full: bool
    """Whether every row is real."""
    known: Tensor | None
    """`[k, B, K]`"""
    chance: Tensor | None
    """`[k, B]`"""
    first: Tensor
    """bool `[k]`: whether the step opens a local epoch of the site."""


class CohortBatches:
    """All steps of a cohort. Jobs must be ordered by their number of steps, longest first, and share a recipe.

    What a row needs is looked up by its sample's place among all samples of the cohort (`_places`) and by its own place
    among all that the site will ever visit (`_visits`); both are tables `[steps, sites, rows]`, padded to the longest
    batch by repeating a sample of the site, whose loss is finite: finite times 0 is 0.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._recipe = jobs[0].recipe
        self._targets = torch.cat([job.targets() for job in jobs])
        self._known = _stack_known(jobs)
        samples = [job.site.samples for job in jobs]
        fits = PixelSource.fits(samples, self._recipe.augment)
        self._pixels = PixelSource(samples, self._recipe.augment) if fits else None
        self._lay_out([list(epochs(len(job.site.samples), job.recipe, job.generator())) for job in jobs])

    def _lay_out(self, plans: list[list[Epoch]]) -> None:
        bounds = [[bound for epoch in own for bound in epoch.bounds] for own in plans]
        self.steps = [len(own) for own in bounds]
        longest, sites = max(self.steps), len(plans)
        self._rows = torch.zeros(longest, sites, dtype=torch.long)
        self._first = torch.zeros(longest, sites, dtype=torch.bool)
        for site, own in enumerate(bounds):
            starts, stops = torch.tensor(own).unbind(1)
            self._rows[: len(own), site] = stops - starts
            self._first[: len(own), site] = starts == 0
        self._width = int(self._rows.max())
        self._visits = torch.zeros(longest, sites, self._width, dtype=torch.long)
        visited = 0
        for site, own_plan in enumerate(plans):
            rows = self._rows[: self.steps[site], site]
            ends = rows.cumsum(0)
            own_visits = (
                torch.arange(self._width).minimum(rows[:, None] - 1) + (ends - rows)[:, None] + visited
            )
            self._visits[: self.steps[site], site] = own_visits
            visited += sum(len(epoch.order) for epoch in own_plan)
        self._keep_draws(plans)

    def _keep_draws(self, plans: list[list[Epoch]]) -> None:
        """Everything drawn, one entry for each visit of each sample, sites one after the other."""
        sizes = [len(own[0].order) for own in plans]
        self._offsets = [sum(sizes[:site]) for site in range(len(sizes))]
        self._samples_visited = torch.cat(
            [epoch.order + offset for own, offset in zip(plans, self._offsets) for epoch in own]
        )
        every = [epoch for own in plans for epoch in own]
        views = range(self._recipe.views)
        self._draws = [augment.Draws.together([epoch.draws[view] for epoch in every]) for view in views]
        chances = [epoch.chance for epoch in every if epoch.chance is not None]
        self._chance = torch.cat(chances, dim=1) if chances else None
        self._mixing = [[part for epoch in own for part in epoch.mixing] for own in plans]

    @property
    def efficiency(self) -> float:
        """Share of all computed rows that are real: unequal batches are padded to the longest of their step."""
        active = self._rows > 0
        padded = (active * self._rows.max(1, keepdim=True).values).sum()
        return float(self._rows.sum() / padded)

    def __iter__(self) -> Iterator[CohortStep]:
        rows = self._rows.tolist()
        for step in range(len(rows)):
            sites = sum(count > step for count in self.steps)
            yield self._step(step, sites, rows[step][:sites])

    def _step(self, step: int, sites: int, rows: list[int]) -> CohortStep:
        width, views = max(rows), self._recipe.views
        visits = self._visits[step, :sites, :width]
        at = self._samples_visited[visits].repeat(1, views)  # [k, B]
        mix = self._mix(step, sites, width) if self._recipe.mixup > 0 else None
        target = self._targets[at]
        known = None if self._known is None else self._known[at]
        if mix is not None:
            partner, share = mix[0], mix[1].view(-1, 1, 1)
            target = share * target + (1 - share) * _partners_of(target, partner)
            known = None if known is None else torch.minimum(known, _partners_of(known, partner))
        chance = None if self._chance is None else self._chance[:, visits].transpose(0, 1).flatten(1)
        present = torch.arange(width) < self._rows[step, :sites, None]
        return CohortStep(
            sites=sites,
            samples=self._samples(at, visits, mix),
            target=target,
            present=present.to(target.dtype).repeat(1, views),
            full=min(rows) == width,
            known=known,
            chance=chance,
            first=self._first[step, :sites],
        )

    def _mix(self, step: int, sites: int, width: int) -> tuple[Tensor, Tensor]:
        """Each row's partner in `[k * B]`, and each site's share `[k]`; padding is its own partner's first row."""
        batch = self._recipe.views * width
        partners = torch.arange(sites)[:, None].expand(sites, batch).clone().mul_(batch)
        shares = torch.ones(sites)
        for site in range(sites):
            share, partner = self._mixing[site][step]
            assert partner is not None
            own = int(self._rows[step, site])
            # rows of all views are counted without gaps in the plan, with gaps here
            real = (torch.arange(self._recipe.views)[:, None] * width + torch.arange(own)).flatten()
            partners[site, real] += real[partner]
            shares[site] = share
        return partners.flatten(), shares

    def _samples(self, at: Tensor, visits: Tensor, mix: tuple[Tensor, Tensor] | None) -> Tensor:
        """Augmented, mixed samples of one step, `[k, B, *shape]` in the cohort's memory order."""
        sites = len(at)
        draws = _at_visits(self._draws, visits)
        if self._pixels is not None:
            return self._pixels.take(at.flatten(), draws, sites, mix)
        raw = [self._jobs[site].site.samples.take(at[site] - self._offsets[site]) for site in range(sites)]
        samples = augment.apply(torch.cat(raw), self._recipe.augment, draws)
        if mix is not None:
            share = mix[1].repeat_interleave(at.shape[1]).view(-1, *[1] * (samples.dim() - 1))
            samples = share * samples + (1 - share) * samples.index_select(0, mix[0])
        return _in_cohort_order(samples, sites)


def _partners_of(values: Tensor, partner: Tensor) -> Tensor:
    """Values `[k, B, K]` of each row's partner."""
    return values.flatten(0, 1).index_select(0, partner).view_as(values)


def _at_visits(draws: list[augment.Draws], visits: Tensor) -> augment.Draws:
    """The choices of one step for `[k, views, rows]`, flattened."""
    columns = {}
    for name in ("flip", "shift", "angle", "move"):
        own = [getattr(view, name) for view in draws]
        columns[name] = (
            None if own[0] is None else torch.stack([view[visits] for view in own], 1).flatten(0, 2)
        )
    return augment.Draws(**columns)


def _stack_known(jobs: Sequence[Job]) -> Tensor | None:
    """`[sum n, K]`, None when every label of every site is known."""
    masks = [job.known() for job in jobs]
    if all(mask is None for mask in masks):
        return None
    return torch.cat(
        [
            torch.ones(len(job.site.samples), job.site.n_classes) if mask is None else mask
            for job, mask in zip(jobs, masks)
        ]
    )


def _in_cohort_order(samples: Tensor, sites: int) -> Tensor:
    """`[sites * B, *shape] -> [sites, B, *shape]` in the memory order that the network wants."""
    plain = samples.view(sites, -1, *samples.shape[1:])
    if plain.dim() != 5:
        return plain
    return empty_samples(sites, plain.shape[1], tuple(plain.shape[2:])).copy_(plain)
