"""The steps of a cohort: every site's own plan, laid side by side in padded tables before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsift.local import augment
from fedsift.local.plan import Batch, plan
from fedsift.local.stacked.layout import empty_samples
from fedsift.local.trainer import Job

VIEW_STRIDE = 1 << 20
"""More than any batch has rows: a partner is kept as `view * VIEW_STRIDE + row`."""


@dataclass(frozen=True)
class CohortStep:
    """One optimisation step of the k sites that are still training; B counts all views of the longest batch."""

    sites: int
    samples: Tensor
    """`[k, B, *shape]`, augmented and mixed, in the cohort's memory order."""
    by_site: Tensor
    """The same values in plain order, `[k * B, *shape]`: for a teacher that all sites share."""
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


@dataclass
class _Table:
    """A padded table `[steps, sites, views, rows, ...]` that sites fill one after the other."""

    values: Tensor

    def fill(self, site: int, where: Tensor, entries: Tensor, padding: Tensor | int) -> None:
        own = self.values[:, site]
        flat = torch.full_like(own, int(padding), memory_format=torch.contiguous_format).flatten(0, 2)
        flat[where] = entries
        own.copy_(flat.view(own.shape))

    def at(self, step: int, sites: int, rows: int) -> Tensor:
        """`[sites * views * rows, ...]` of one step."""
        return self.values[step, :sites, :, :rows].flatten(0, 2)


class CohortBatches:
    """All steps of a cohort. Jobs must be ordered by their number of steps, longest first, and share a recipe."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._recipe = jobs[0].recipe
        plans = [list(plan(len(job.site.samples), job.recipe, job.generator())) for job in jobs]
        self.steps = [len(own) for own in plans]
        views = self._recipe.views
        self._rows = torch.zeros(max(self.steps), len(jobs), dtype=torch.long)
        self._first = torch.zeros(max(self.steps), len(jobs), dtype=torch.bool)
        for site, own in enumerate(plans):
            self._rows[: len(own), site] = torch.tensor([len(batch.positions) // views for batch in own])
            self._first[: len(own), site] = torch.tensor([batch.first for batch in own])
        self._shape = (max(self.steps), len(jobs), views, int(self._rows.max()))
        self._fill(plans)
        self._targets = torch.cat([job.targets() for job in jobs])
        self._known = _stack_known(jobs)
        pools = {id(job.site.samples.pool) for job in jobs}
        norms = {(job.site.samples.mean, job.site.samples.std) for job in jobs}
        self._shared_pool = len(pools) == 1 and len(norms) == 1

    def _fill(self, plans: list[list[Batch]]) -> None:
        sample = plans[0][0]
        self._pool_rows, self._positions = self._table(torch.long), self._table(torch.long)
        self._partner = None if sample.mix_with is None else self._table(torch.long)
        self._share = torch.ones(self._shape[:2])
        self._chance = None if sample.chance is None else self._table(torch.float64)
        draws = {name: getattr(sample.draws, name) for name in ("flip", "shift", "angle", "move")}
        self._draws = {
            name: None if value is None else self._table(value.dtype, value.shape[1:])
            for name, value in draws.items()
        }
        offset = 0
        for site, (job, own) in enumerate(zip(self._jobs, plans)):
            where, within = self._places(site, len(own))
            positions = torch.cat([batch.positions for batch in own])
            # padding repeats a sample of the site: its loss is finite, and finite times 0 is 0
            self._pool_rows.fill(site, where, job.site.samples.rows[positions], job.site.samples.rows[0])
            self._positions.fill(site, where, positions + offset, offset)
            offset += len(job.site.samples)
            for name, table in self._draws.items():
                if table is not None:
                    table.fill(site, where, torch.cat([getattr(batch.draws, name) for batch in own]), 0)
            if self._chance is not None:
                self._chance.fill(site, where, torch.cat([b.chance for b in own if b.chance is not None]), 0)
            if self._partner is not None:
                partners = torch.cat([batch.mix_with for batch in own if batch.mix_with is not None])
                self._partner.fill(site, where, _code(partners, within), 0)
                self._share[: len(own), site] = torch.tensor([batch.mix_share for batch in own])

    def _table(self, dtype: torch.dtype, extra: torch.Size | tuple[int, ...] = ()) -> _Table:
        return _Table(torch.zeros(*self._shape, *extra, dtype=dtype))

    def _places(self, site: int, steps: int) -> tuple[Tensor, Tensor]:
        """Where a site's rows go in its part of a table, and the number of rows a view of each row's batch."""
        _, _, views, width = self._shape
        rows = self._rows[:steps, site]
        real = torch.arange(width) < rows[:, None]  # [steps, width]
        places = real[:, None, :].expand(steps, views, width).reshape(-1).nonzero().flatten()
        return places, rows.repeat_interleave(rows * views)

    def __iter__(self) -> Iterator[CohortStep]:
        views = self._recipe.views
        rows = self._rows.tolist()
        for step in range(max(self.steps)):
            sites = sum(count > step for count in self.steps)
            width = max(rows[step][:sites])
            full = min(rows[step][:sites]) == width
            samples = self._samples(step, sites, width)
            at = self._positions.at(step, sites, width)
            target = self._targets.index_select(0, at).view(sites, views * width, -1)
            known = None if self._known is None else self._known.index_select(0, at).view_as(target)
            if self._partner is not None:
                partner = self._partners(step, sites, width)
                share = self._share[step, :sites].view(sites, 1, 1)
                other = target.flatten(0, 1).index_select(0, partner).view_as(target)
                target = share * target + (1 - share) * other
                if known is not None:
                    known = torch.minimum(known, known.flatten(0, 1).index_select(0, partner).view_as(known))
            real = torch.arange(width) < self._rows[step, :sites, None]
            yield CohortStep(
                sites=sites,
                samples=_in_cohort_order(samples, sites),
                by_site=samples,
                target=target,
                present=real.to(target.dtype).repeat(1, views),
                full=full,
                known=known,
                chance=None if self._chance is None else self._chance.at(step, sites, width).view(sites, -1),
                first=self._first[step, :sites],
            )

    def _samples(self, step: int, sites: int, width: int) -> Tensor:
        """Augmented, mixed samples of one step, `[sites * B, *shape]`."""
        rows = self._pool_rows.at(step, sites, width)
        parts = (
            [self._jobs[0].site.samples.normalise(self._jobs[0].site.samples.pool.index_select(0, rows))]
            if self._shared_pool
            else [
                job.site.samples.normalise(job.site.samples.pool.index_select(0, own))
                for job, own in zip(self._jobs, rows.chunk(sites))
            ]
        )
        draws = augment.Draws(
            **{
                name: None if table is None else table.at(step, sites, width)
                for name, table in self._draws.items()
            }
        )
        samples = augment.apply(
            parts[0] if len(parts) == 1 else torch.cat(parts), self._recipe.augment, draws
        )
        if self._partner is None:
            return samples
        share = self._share[step, :sites].repeat_interleave(len(samples) // sites)
        share = share.view(-1, *[1] * (samples.dim() - 1))
        return share * samples + (1 - share) * samples.index_select(0, self._partners(step, sites, width))

    def _partners(self, step: int, sites: int, width: int) -> Tensor:
        """Row numbers in `[sites * B]` of each row's partner."""
        assert self._partner is not None
        batch = self._recipe.views * width
        code = self._partner.at(step, sites, width)
        own = (code // VIEW_STRIDE) * width + code % VIEW_STRIDE
        return own + torch.arange(sites).repeat_interleave(batch) * batch


def _code(partners: Tensor, rows_a_view: Tensor) -> Tensor:
    """A partner's number in its batch as view and row, which do not depend on how far the batch is padded."""
    return (partners // rows_a_view) * VIEW_STRIDE + partners % rows_a_view


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
