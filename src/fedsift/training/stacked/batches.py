"""Batches of a cohort: every site's plan in padded tables, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsift.formulas import losses
from fedsift.training import augment
from fedsift.training.job import TrainingJob
from fedsift.training.plan import Epoch, epochs
from fedsift.training.stacked.layout import empty_samples
from fedsift.training.stacked.pixels import pixels_of

ROWS_AT_ONCE = 16_384
"""Rows whose targets, draws and places are looked up in one call; images are made step by step."""


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
    places: Tensor
    """int64 `[k, B]`: each row's sample among all samples of the cohort, sites one after the other."""
    mix: tuple[Tensor, Tensor] | None = None
    """Each row's partner in `[k * B]` and each site's share `[k]`, with mixup."""
    aside: Tensor | None = None
    """`[k, B', *shape]`: rows that are not trained on, only shown to followers."""

    def front(self, share: float) -> CohortStep:
        """The step with the rows behind the first `share` of all held back; 1: the step as it is."""
        if share == 1:
            return self
        rows = round(self.places.shape[1] * share)
        return replace(
            self,
            samples=_rows_of(self.samples, slice(0, rows)),
            aside=_rows_of(self.samples, slice(rows, None)),
            target=self.target[:, :rows],
            present=self.present[:, :rows],
            known=None if self.known is None else self.known[:, :rows],
            chance=None if self.chance is None else self.chance[:, :rows],
            places=self.places[:, :rows],
        )

    def mixed(self, values: Tensor) -> Tensor:
        """Values `[k, B, *]` of the rows, blended with their partners' as targets are."""
        if self.mix is None:
            return values
        partner, share = self.mix
        return losses.blend(values, _partners_of(values, partner), share.view(-1, *[1] * (values.dim() - 1)))


class CohortBatches:
    """All steps of a cohort. Jobs must be ordered by their number of steps, longest first, and share a recipe.

    What a row needs is looked up by its sample's place among all samples of the cohort (`_places`) and by its own place
    among all that the site will ever visit (`_visits`); both are tables `[steps, sites, rows]`, padded to the longest
    batch by repeating a sample of the site, whose loss is finite: finite times 0 is 0.

    by_site: whether images lie site by site in memory or all sites side by side.
    """

    def __init__(self, jobs: Sequence[TrainingJob], by_site: bool = False) -> None:
        self._jobs = jobs
        self._recipe = jobs[0].recipe
        self._targets = torch.cat([job.targets() for job in jobs])
        self._known = _stack_known(jobs)
        self._pixels = pixels_of([job.site.samples for job in jobs], self._recipe.augment, by_site)
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
            own_visits = torch.arange(self._width).minimum(rows[:, None] - 1) + (ends - rows)[:, None] + visited
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
        self._draws = [augment.AugmentationDraws.together([epoch.draws[view] for epoch in every]) for view in views]
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
        for start, stop, sites, width in self._blocks():
            yield from self._block(start, stop, sites, width)

    def _blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """Runs of steps with the same active sites and the same width, each short enough to be looked up at once."""
        widths = self._rows.max(1).values.tolist()
        sites = (self._rows > 0).sum(1).tolist()
        start = 0
        for step in range(1, len(widths) + 1):
            rows = (step - start) * sites[start] * widths[start] * self._recipe.views
            ends = step == len(widths) or (sites[step], widths[step]) != (sites[start], widths[start])
            if ends or rows >= ROWS_AT_ONCE:
                yield start, step, sites[start], widths[start]
                start = step

    def _block(self, start: int, stop: int, sites: int, width: int) -> Iterator[CohortStep]:
        """Steps `start` to `stop`, S of them: small tables `[S, k, ...]` are looked up in one call for all."""
        views, nothing = self._recipe.views, [None] * (stop - start)
        visits = self._visits[start:stop, :sites, :width]
        at = self._samples_visited[visits].repeat(1, 1, views)
        real = torch.arange(width) < self._rows[start:stop, :sites, None]
        draws = _at_visits(self._draws, visits)
        columns = zip(
            at.unbind(),
            self._targets[at].unbind(),
            real.to(self._targets.dtype).repeat(1, 1, views).unbind(),
            real.flatten(1).all(1).tolist(),
            nothing if self._known is None else self._known[at].unbind(),
            nothing if self._chance is None else self._chance_at(visits).unbind(),
            self._first[start:stop, :sites].unbind(),
            nothing if self._pixels is None else self._pixels.windows(at.flatten(1), draws),
        )
        for number, (own, target, present, full, known, chance, first, window) in enumerate(columns):
            mix = self._mix(start + number, sites, width) if self._recipe.mixup > 0 else None
            if mix is not None:
                partner, share = mix[0], mix[1].view(-1, 1, 1)
                target = losses.blend(target, _partners_of(target, partner), share)
                known = None if known is None else torch.minimum(known, _partners_of(known, partner))
            if window is not None and self._pixels is not None:
                samples = self._pixels.take(window, sites, mix)
            else:
                samples = self._samples(own, draws.at(number), mix)
            yield CohortStep(sites, samples, target, present, full, known, chance, first, own, mix)

    def _chance_at(self, visits: Tensor) -> Tensor:
        """`[S, k, B]`, all rows of the first view, then of the second."""
        assert self._chance is not None
        return self._chance[:, visits].permute(1, 2, 0, 3).flatten(2)

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

    def _samples(self, at: Tensor, draws: augment.AugmentationDraws, mix: tuple[Tensor, Tensor] | None) -> Tensor:
        """Augmented, mixed samples of one step, `[k, B, *shape]` in the cohort's memory order."""
        sites = len(at)
        raw = [self._jobs[site].site.samples.take(at[site] - self._offsets[site]) for site in range(sites)]
        samples = augment.apply(torch.cat(raw), self._recipe.augment, draws)
        if mix is not None:
            share = mix[1].repeat_interleave(at.shape[1]).view(-1, *[1] * (samples.dim() - 1))
            samples = losses.blend(samples, samples.index_select(0, mix[0]), share)
        return _in_cohort_order(samples, sites)


def _rows_of(samples: Tensor, rows: slice) -> Tensor:
    """Some rows of `[k, B, *shape]` in the memory order that all of them have."""
    part = samples[:, rows]
    return part.contiguous() if samples.is_contiguous() else part


def _partners_of(values: Tensor, partner: Tensor) -> Tensor:
    """Values `[k, B, *]` of each row's partner."""
    return values.flatten(0, 1).index_select(0, partner).view_as(values)


def _at_visits(draws: list[augment.AugmentationDraws], visits: Tensor) -> augment.AugmentationDraws:
    """The choices of S steps, `[S, k * views * rows]` each."""
    columns = {}
    for name in ("flip", "shift", "angle", "move"):
        own = [getattr(view, name) for view in draws]
        columns[name] = None if own[0] is None else torch.stack([view[visits] for view in own], 2).flatten(1, 3)
    return augment.AugmentationDraws(**columns)


def _stack_known(jobs: Sequence[TrainingJob]) -> Tensor | None:
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
