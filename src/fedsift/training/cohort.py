"""The cohort trainer: trains many sites at once, with the interface and the results of the one-site trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedsift.models.factory import build_model
from fedsift.protocol.messages import Weights
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import FollowerNetwork, Objective, PerSample, PerSite, View
from fedsift.training.plan import batch_bounds, steps
from fedsift.training.recipe import Recipe
from fedsift.training.stacked.batches import CohortBatches, CohortStep
from fedsift.training.stacked.extras import CohortExtras
from fedsift.training.stacked.network import StackedNetwork
from fedsift.training.stacked.operations import Unstackable
from fedsift.training.trainer import train_each

log = logging.getLogger(__name__)

ALONE = 0
COHORT = 10
"""Sites trained together: more no longer gain, and their activations leave the processor's cache."""


def train_cohort(
    jobs: Sequence[TrainingJob], size: int | Callable[[Sequence[TrainingJob]], int] = COHORT
) -> list[TrainingResult | Exception]:
    """Train all jobs, alike ones together; the order of the results is that of the jobs.

    size: about how many at once, or how to find it out for alike jobs; ALONE is one at a time with the channels of
    images first in memory, for networks that like it so. What cannot be stacked is trained by the one-site trainer.
    """
    results: list[TrainingResult | Exception | None] = [None] * len(jobs)
    alone: list[int] = []
    for group in _groups(jobs, alone):
        together = size if isinstance(size, int) else size([jobs[i] for i in group])
        if jobs[group[0]].twin is not None and together > 1:
            together = max(together // 2, 1)  # a site with two networks takes two places
        for part in _parts(group, max(together, 1)):
            try:
                trained = _train_stacked([jobs[i] for i in part], together != ALONE)
            except Exception as error:  # alone, each site has its own chance and its own error
                _warn_once(jobs[part[0]].site.facts.model, f"{type(error).__name__}: {error}")
                alone += part
            else:
                for index, result in zip(part, trained):
                    results[index] = result
    for index, outcome in zip(alone, train_each([jobs[i] for i in alone])):
        results[index] = outcome
    return [result for result in results if result is not None]


def can_stack(job: TrainingJob) -> bool:
    """Whether the job can be part of a cohort at all."""
    site = job.site
    if site.compute.device != "cpu" or len(site.samples) == 0:
        return False
    try:
        network = stacked_network(site.facts.model, site.samples.shape, site.n_classes)
    except Exception as reason:  # a network from elsewhere may raise anything; alone it may still train
        _warn_once(site.facts.model, str(reason))
        return False
    # A batch of one row trains with running statistics, row by row: the one-site trainer knows how.
    smallest = min(stop - start for start, stop in batch_bounds(len(site.samples), job.recipe.batch_size))
    return smallest * job.recipe.shown > 1 or not network.batch_norms


@lru_cache(maxsize=16)
def stacked_network(
    model: str, shape: tuple[int, ...], n_classes: int, slot: str = "main", channels_last: bool = True
) -> StackedNetwork:
    """The stacked form of a model; one is kept per `slot` and is loaded anew."""
    module = build_model(model, shape, n_classes)
    network = StackedNetwork(module, channels_last)
    x = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    if not network.agrees_with(module, x):
        raise Unstackable("its stacked form does not give the network's own logits")
    return network


@lru_cache(maxsize=64)
def _warn_once(model: str, reason: str) -> None:
    log.info("'%s' is trained one site at a time: %s", model, reason)


# Which jobs go together ------------------------------------------------------------------------------------


def _groups(jobs: Sequence[TrainingJob], alone: list[int]) -> list[list[int]]:
    """Indices of jobs that share network and recipe, longest training first; the others go to `alone`."""
    groups: list[list[int]] = []
    for index, job in enumerate(jobs):
        if not can_stack(job):
            alone.append(index)
            continue
        home = next((group for group in groups if _alike(jobs[group[0]], job)), None)
        if home is None:
            groups.append([index])
        else:
            home.append(index)
    for group in groups:
        group.sort(key=lambda i: -steps(len(jobs[i].site.samples), jobs[i].recipe))
    return groups


def _parts(group: list[int], size: int) -> list[list[int]]:
    """Cohorts of about `size`, as equal as they can be: one with a single site left over would cost a whole pass."""
    count = max(1, round(len(group) / size))
    bounds = [len(group) * number // count for number in range(count + 1)]
    return [group[start:stop] for start, stop in pairwise(bounds)]


def _alike(a: TrainingJob, b: TrainingJob) -> bool:
    """Whether two jobs can be one cohort: equal but for samples, weights and the sizes of their loss terms."""
    own, other = a.site, b.site
    if (own.facts.model, own.samples.shape, own.classes) != (
        other.facts.model,
        other.samples.shape,
        other.classes,
    ):
        return False
    if _kinds(a) != _kinds(b) or own.multilabel != other.multilabel:
        return False
    if a.recipe is b.recipe:
        return True
    try:
        return bool(_without_sizes(a.recipe) == _without_sizes(b.recipe))
    except (RuntimeError, ValueError, TypeError):  # a term that holds tensors cannot say whether it is equal
        return False


def _kinds(job: TrainingJob) -> dict[str, object]:
    """What the job brings for its loss terms: names, kinds, and the shape of rows."""
    kinds: dict[str, object] = {"a twin": None if job.twin is None else _kinds(job.twin)}
    for name, extra in job.extras.items():
        if isinstance(extra, PerSample):
            kinds[name] = PerSample, extra.rows.shape[1:], extra.rows.dtype
        elif isinstance(extra, PerSite):
            kinds[name] = PerSite, extra.tensor.shape, extra.lr
        elif isinstance(extra, FollowerNetwork):
            kinds[name] = FollowerNetwork, extra.decay, extra.age is None
        else:
            kinds[name] = type(extra)
    return kinds


def _without_sizes(recipe: Recipe) -> Recipe:
    """The recipe with every weight that is not 0 set to 1: the weights of a cohort's terms may differ by site."""
    terms = tuple((float(weight != 0), term) for weight, term in recipe.objective.terms)
    return replace(recipe, objective=Objective(terms))


# Training ----------------------------------------------------------------------------------------------------


def _train_stacked(jobs: Sequence[TrainingJob], channels_last: bool = True) -> list[TrainingResult]:
    """Train one cohort; jobs are alike and ordered longest first."""
    sides = [side for job in jobs for side in job.sides()]
    training = _CohortTraining(sides, channels_last)
    totals = torch.zeros(len(sides))
    for step in training.batches:
        totals[: step.sites] += training.step(step)
    written = training.written([len(side.site.samples) for side in sides])
    results = [
        TrainingResult(weights, float(total) / count, count, rows, learnt, followers)
        for weights, total, count, rows, learnt, followers in zip(
            training.network.weights(),
            totals,
            training.batches.steps,
            written,
            training.learnt(),
            training.followers(),
        )
    ]
    if len(sides) == len(jobs):
        return results
    return [replace(first, twin=second) for first, second in zip(results[::2], results[1::2])]


def try_steps(jobs: Sequence[TrainingJob], steps: int, channels_last: bool) -> Iterator[float]:
    """Make a few steps of a cohort for the clock's sake. Nothing is kept.

    Yields how many samples each would have trained on if it were as well filled as all steps are on average.
    """
    training = _CohortTraining([side for job in jobs for side in job.sides()], channels_last)
    for step in islice(training.batches, steps):
        training.step(step)
        yield step.present.numel() * training.batches.efficiency


class _CohortTraining:
    """A cohort in training: its network, optimiser and objective."""

    def __init__(self, jobs: Sequence[TrainingJob], channels_last: bool) -> None:
        site, recipe = jobs[0].site, jobs[0].recipe
        self.network = stacked_network(
            site.facts.model, site.samples.shape, site.n_classes, channels_last=channels_last
        )
        self.batches = CohortBatches(jobs, self.network.by_site)
        self.network.load([job.weights for job in jobs])
        self._optimiser = StackedOptimiser(
            self.network.parameters(),
            recipe.optimiser,
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self._look = _CohortView(jobs, self.network)
        self._generators = [job.dropout_generator() for job in jobs]
        self._clip = recipe.clip
        self._shown = recipe.shown / recipe.views

    def step(self, step: CohortStep) -> Tensor:
        """One update of the active sites; returns their losses `[k]`."""
        network, step = self.network, step.front(self._shown)
        if step.sites < network.sites:
            network.activate(step.sites)
            self._optimiser.narrow(network.parameters())
        present = None if step.full else step.present
        generators = self._generators[: step.sites]
        features, logits = network.forward_both(
            step.samples, present, train=True, generators=generators, features=self._look.reads_features
        )
        losses = self._look.losses(step, logits, features)
        learnt = self._look.extras.leaves
        every: Sequence[Tensor] = torch.autograd.grad(losses.sum(), [*network.parameters(), *learnt])
        gradients = every[: len(every) - len(learnt)]
        self._look.extras.learn(every[len(gradients) :])
        self._optimiser.step(clip_gradients(gradients, self._clip) if self._clip else gradients)
        self._look.extras.lead(network)
        return losses.detach()

    def written(self, sizes: list[int]) -> list[dict[str, Tensor]]:
        """Each site's per-sample extras that a term wrote to, `[n, *]` for n of `sizes`."""
        return self._look.extras.written(sizes)

    def learnt(self) -> list[dict[str, Tensor]]:
        """Each site's per-site extras that have learnt."""
        return self._look.extras.learnt()

    def followers(self) -> list[dict[str, Weights]]:
        """Each site's networks that followed the one in training."""
        return self._look.extras.followers()


class _CohortView:
    """What the objective sees of each step, for all sites of a cohort."""

    def __init__(self, jobs: Sequence[TrainingJob], network: StackedNetwork) -> None:
        self._network = network
        needs = jobs[0].recipe.objective.needs
        self.reads_features = "features" in needs
        self._pairs = "twin" in needs
        weights = torch.tensor([[weight for weight, _ in job.recipe.objective.terms] for job in jobs])
        self._terms = [
            (weights[:, i], term) for i, (weight, term) in enumerate(jobs[0].recipe.objective.terms) if weight != 0
        ]
        self._prior = torch.stack([job.log_prior() for job in jobs]) if {"prior", "known prior"} & needs else None
        site = jobs[0].site
        kind = site.facts.model, site.samples.shape, site.n_classes
        self.extras = CohortExtras(jobs, network, lambda slot: stacked_network(*kind, slot))

    def losses(self, step: CohortStep, logits: Tensor, features: Tensor | None) -> Tensor:
        """The objective of each active site, `[k]`."""
        k, extras = step.sites, self.extras.at(step)
        view = View(
            logits=logits,
            target=step.target,
            present=step.present,
            log_prior=None if self._prior is None else self._prior[:k],
            teacher=extras.get("teacher"),
            twin=_swapped(logits) if self._pairs else None,
            features=features,
            known=step.known,
            chance=step.chance,
            parameters=self._network.parameters(),
            anchors=extras.get("anchors", ()),
            first_batch=bool(step.first[0]),
            extras=extras,
        )
        values = self._value(view, k)
        for name, rows in view.kept.items():
            self.extras.write(name, step, rows)
        if bool((step.first == step.first[0]).all()):
            return values
        # sites open their epochs at different steps: evaluate both ways and let each take its own
        other = self._value(replace(view, first_batch=not view.first_batch), k)
        return torch.where(step.first == step.first[0], values, other)

    def _value(self, view: View, sites: int) -> Tensor:
        total = torch.zeros(sites)
        for weights, term in self._terms:
            total = total + weights[:sites] * term.value(view)
        return total


def _swapped(logits: Tensor) -> Tensor:
    """Each network's twin's logits: pairs lie side by side, `[k, B, K] -> [k, B, K]`."""
    return logits.detach().view(-1, 2, *logits.shape[1:]).flip(1).view_as(logits)


# Stacked optimisers
# ------------------------------------------------------------------------------


IN_ORDER = tuple(range(8))


class StackedOptimiser:
    """SGD, Adam or AdamW with torch's defaults, for a cohort that may shrink.

    Sites that have finished are neither updated nor decayed. All active sites have made the same number of steps.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        kind: Literal["sgd", "adam", "adamw"] = "sgd",
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        # the fused update copies whatever does not lie in the order of its axes
        self._orders = [_order_in_memory(value) for value in parameters]
        self._parameters = self._as_they_lie(parameters)
        self._update: Callable[[list[Tensor]], None] = self._sgd
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._buffers: list[Tensor | None] = [None] * len(self._parameters)
        if kind != "sgd":
            self._update = self._adam
            self._adam_form: Callable[..., None] = adam if kind == "adam" else adamw
            self._means = [torch.zeros_like(value) for value in self._parameters]
            self._squares = [torch.zeros_like(value) for value in self._parameters]
            self._steps = [torch.zeros((), dtype=torch.float32) for _ in self._parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update of all active sites by gradients `[C, ...]`."""
        self._update([gradient.contiguous() for gradient in self._as_they_lie(gradients)])

    def _as_they_lie(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Views of one tensor a parameter, with axes in the order of the parameter's memory."""
        pairs = zip(values, self._orders, strict=True)
        return [value.permute(order) if order != IN_ORDER[: len(order)] else value for value, order in pairs]

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Go on with fewer sites: `parameters` are the first sites' of those so far; their state stays."""
        sites = len(parameters[0])
        self._parameters = self._as_they_lie(parameters)
        self._means = [value[:sites] for value in self._means]
        self._squares = [value[:sites] for value in self._squares]
        self._buffers = [None if value is None else value[:sites] for value in self._buffers]

    def _sgd(self, gradients: list[Tensor]) -> None:
        sgd(
            self._parameters,
            gradients,
            self._buffers,
            fused=True,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adam(self, gradients: list[Tensor]) -> None:
        self._adam_form(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )


def _order_in_memory(parameter: Tensor) -> tuple[int, ...]:
    """The axes from the widest stride to the narrowest."""
    strides = parameter.stride()
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def clip_gradients(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale each site's gradients `[C, ...]` to at most this norm, as nn.utils.clip_grad_norm_ does."""
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]
