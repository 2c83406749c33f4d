"""The one-site trainer: jobs in, results out; the cohort trainer has the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedsift.core.errors import DataError
from fedsift.formulas import losses
from fedsift.models.network import require_features
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import Site
from fedsift.training import augment
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import FollowerNetwork, FrozenNetwork, PerParameter, PerSample, PerSite, View
from fedsift.training.plan import Batch, plan
from fedsift.training.recipe import Recipe

# torch.optim's SGD, Adam and AdamW for one site's network, without the classes
# ------------------------------------------------------------------------------


class PlainOptimiser:
    """Parameters without a gradient are left as they are, as torch leaves them."""

    def __init__(self, parameters: Sequence[Tensor], recipe: Recipe) -> None:
        self._parameters = list(parameters)
        self._recipe = recipe
        self._buffers: dict[int, Tensor | None] = {}
        self._moments: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One update by the parameters' gradients."""
        live = [number for number, value in enumerate(self._parameters) if value.grad is not None]
        values = [self._parameters[number] for number in live]
        gradients = [value.grad for value in values if value.grad is not None]
        if self._recipe.optimiser == "sgd":
            self._sgd(live, values, gradients)
        else:
            self._adam(live, values, gradients)

    def _sgd(self, live: list[int], values: list[Tensor], gradients: list[Tensor]) -> None:
        buffers = [self._buffers.get(number) for number in live]
        sgd(
            values,
            gradients,
            buffers,
            foreach=True,
            weight_decay=self._recipe.weight_decay,
            momentum=self._recipe.momentum,
            lr=self._recipe.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers.update(zip(live, buffers, strict=True))

    def _adam(self, live: list[int], values: list[Tensor], gradients: list[Tensor]) -> None:
        for number, value in zip(live, values, strict=True):
            if number not in self._moments:
                self._moments[number] = (torch.zeros_like(value), torch.zeros_like(value), torch.zeros(()))
        means, squares, steps = (list(each) for each in zip(*(self._moments[n] for n in live), strict=True))
        form = adam if self._recipe.optimiser == "adam" else adamw
        form(
            values,
            gradients,
            means,
            squares,
            [],
            steps,
            foreach=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._recipe.lr,
            weight_decay=self._recipe.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def train_one(job: TrainingJob) -> TrainingResult:
    """Train one site from start to end on its own."""
    site, recipe = job.site, job.recipe
    n = len(site.samples)
    if n == 0:
        raise DataError(f"site '{site.name}' has no training sample")
    sides = [_NetworkInTraining(side, slot) for side, slot in zip(job.sides(), ("main", "twin"))]
    count = 0
    with torch.random.fork_rng(devices=[]):
        for batch in plan(n, recipe, job.generator()):
            images, target = prepare(site, batch, recipe, sides[0].look.targets)
            rows = len(images) // recipe.views * recipe.shown
            images, aside = images[:rows], images[rows:]
            logits = [side.forward(images) for side in sides]
            for side, own, other in zip(sides, logits, reversed(logits)):
                peer = other.detach() if len(sides) > 1 else None
                side.step(batch.front(rows), images, target[:rows], own, peer, aside)
            count += 1
    results = [side.result(count) for side in sides]
    return results[0] if len(results) == 1 else replace(results[0], twin=results[1])


class _NetworkInTraining:
    """One network in training: the site's only one, or one of two."""

    def __init__(self, job: TrainingJob, slot: str) -> None:
        self.network = job.site.network(job.weights, slot=slot)
        self.network.train()
        self.look = _SiteView(job, self.network)
        self._parameters = [p for p in self.network.parameters() if p.requires_grad]
        self._optimiser = PlainOptimiser(self._parameters, job.recipe)
        self._clip = job.recipe.clip
        self._features: Tensor | None = None
        self._reads_features = "features" in job.recipe.objective.needs
        if self._reads_features:
            require_features(self.network, "a loss term that reads features")
        self._total = torch.zeros((), device=self.look.device)
        # dropout inside a network draws from torch's own stream: each network gets one of its own
        self._stream = job.dropout_generator().get_state()

    def forward(self, images: Tensor) -> Tensor:
        torch.set_rng_state(self._stream)
        _single_row_norms(self.network, len(images))
        logits: Tensor
        if self._reads_features:
            self._features = self.network.features(images)  # type: ignore[operator]
            logits = self.network.head(self._features)  # type: ignore[operator]
        else:
            logits = self.network(images)
        self._stream = torch.get_rng_state()
        return logits

    def step(
        self,
        batch: Batch,
        images: Tensor,
        target: Tensor,
        logits: Tensor,
        peer: Tensor | None,
        aside: Tensor,
    ) -> None:
        loss = self.look.loss(batch, images, target, logits, peer, self._features, aside)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimiser.step()
        self.look.learn()
        self.look.lead(self.network)
        self._total += loss.detach()

    def result(self, count: int) -> TrainingResult:
        learnt = {name: tensor.detach().cpu() for name, (tensor, _) in self.look.learnt.items()}
        learnt |= {name: tensor.cpu() for name, tensor in self.look.replaced.items()}
        followers = {name: weights_of(network) for name, (network, _) in self.look.followers.items()}
        loss = float(self._total) / count
        return TrainingResult(weights_of(self.network), loss, count, self.look.written, learnt, followers)


class _SiteView:
    """What the objective sees of each step of one site."""

    def __init__(self, job: TrainingJob, network: nn.Module) -> None:
        self.device = torch.device(job.site.compute.device)
        self.targets = job.targets().to(self.device)
        self.written: dict[str, Tensor] = {}
        self.replaced: dict[str, Tensor] = {}
        self._recipe = job.recipe
        trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
        self._parameters = list(trained.values())
        needs, extras = job.recipe.objective.needs, job.needed()
        self._prior = job.log_prior().to(self.device) if {"prior", "known prior"} & needs else None
        known = job.known()
        self._known = None if known is None else known.to(self.device)
        self._per_parameter = {
            key: [extra.tensors[name].to(self.device) for name in trained]
            for key, extra in extras.items()
            if isinstance(extra, PerParameter)
        }
        self._tables = {
            key: extra.rows.to(self.device) for key, extra in extras.items() if isinstance(extra, PerSample)
        }
        self._constants = {
            key: extra.tensor.to(self.device) for key, extra in extras.items() if isinstance(extra, PerSite)
        }
        self.learnt = {
            key: (self._constants[key].clone().requires_grad_(), extra.lr)
            for key, extra in extras.items()
            if isinstance(extra, PerSite) and extra.lr > 0
        }
        self._networks = {
            key: job.site.network(extra.weights, slot=f"frozen {key}").eval().requires_grad_(False)
            for key, extra in extras.items()
            if isinstance(extra, FrozenNetwork)
        }
        self.followers = {
            key: (
                job.site.network(extra.weights, f"{job.dropout}: {key}").eval().requires_grad_(False),
                extra,
            )
            for key, extra in extras.items()
            if isinstance(extra, FollowerNetwork)
        }
        self._steps = 0

    def loss(
        self,
        batch: Batch,
        images: Tensor,
        target: Tensor,
        logits: Tensor,
        peer: Tensor | None = None,
        features: Tensor | None = None,
        aside: Tensor | None = None,
    ) -> Tensor:
        """The objective, `[]`; rows that a term writes are in their table afterwards.

        aside: the view that followers see instead of the one in training; empty or None: none.
        """
        spare = images if aside is None or not len(aside) else aside
        extras: dict[str, Any] = {**self._per_parameter, **self._constants}
        extras |= {name: tensor for name, (tensor, _) in self.learnt.items()}
        extras |= {name: _judge(network, images) for name, network in self._networks.items()}
        extras |= {name: _judge(network, spare) for name, (network, _) in self.followers.items()}
        extras |= {name: rows_in(batch, table) for name, table in self._tables.items()}
        view = View(
            logits=logits,
            target=target,
            present=torch.ones(target.shape[:-1], device=self.device),
            log_prior=self._prior,
            teacher=extras.get("teacher"),
            twin=peer,
            features=features,
            known=known_in(batch, self._known),
            chance=None if batch.chance is None else batch.chance.to(self.device),
            parameters=self._parameters,
            anchors=extras.get("anchors", ()),
            first_batch=batch.first,
            extras=extras,
        )
        value = self._recipe.objective.value(view)
        for name, rows in view.kept.items():
            self._write(name, batch.positions, rows)
        return value

    def learn(self) -> None:
        """One step of every learnt extra, by the gradient of the step just made."""
        for tensor, lr in self.learnt.values():
            if tensor.grad is not None:
                with torch.no_grad():
                    tensor -= lr * tensor.grad
                tensor.grad = None

    def lead(self, network: nn.Module) -> None:
        """Let the followers follow the step just made."""
        self._steps += 1
        for follower, extra in self.followers.values():
            follow(follower.state_dict(), network.state_dict(), 1 - extra.decay_at(self._steps))

    def _write(self, name: str, positions: Tensor, rows: Tensor) -> None:
        """Put the rows of the first view back; the site's own table is copied before it is first written to.

        A per-site tensor is replaced as a whole.
        """
        if name in self._constants:
            self.replaced[name] = self._constants[name] = rows
            return
        if name not in self.written:
            self.written[name] = self._tables[name] = self._tables[name].clone()
        first = len(positions) // self._recipe.shown
        self._tables[name][positions[:first].to(self.device)] = rows[:first]


def prepare(site: Site, batch: Batch, recipe: Recipe, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Augmented, mixed images `[B, *shape]` and targets `[B, K]` of one step."""
    images = augment.apply(site.samples.take(batch.positions), recipe.augment, batch.draws)
    target = targets[batch.positions.to(targets.device)]
    if batch.mix_with is not None:
        images, target = losses.mixup(images, target, batch.mix_with.to(images.device), batch.mix_share)
    return images, target


def rows_in(batch: Batch, table: Tensor) -> Tensor:
    """Rows of a per-sample table `[n, *]` for one step, `[B, *]`, mixed as targets are."""
    rows = table[batch.positions.to(table.device)]
    if batch.mix_with is None:
        return rows
    return losses.blend(rows, rows[batch.mix_with.to(rows.device)], batch.mix_share)


def known_in(batch: Batch, known: Tensor | None) -> Tensor | None:
    """The mask `[n, K]` for one step, `[B, K]`; a mixed label is known where both its parts are."""
    if known is None:
        return None
    mask = known[batch.positions.to(known.device)]
    if batch.mix_with is None:
        return mask
    return torch.minimum(mask, mask[batch.mix_with.to(mask.device)])


def train_each(jobs: Sequence[TrainingJob]) -> list[TrainingResult | Exception]:
    """Train the sites one after the other; one site's failure is its own."""
    results: list[TrainingResult | Exception] = []
    for job in jobs:
        try:
            results.append(train_one(job))
        except Exception as error:
            results.append(error)
    return results


def make_optimiser(parameters: Sequence[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, foreach=True
        )
    kind = torch.optim.Adam if recipe.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, recipe.lr, weight_decay=recipe.weight_decay, foreach=True)


def weights_of(network: nn.Module) -> Weights:
    """A copy of the network's state on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


def follow(average: Mapping[str, Tensor], latest: Mapping[str, Tensor], step: float | Tensor) -> None:
    """v <- v + step (w - v) in place, for every floating tensor; the others are copied.

    step: one number, or `[C]` for tensors with a cohort axis in front.
    """
    with torch.no_grad():
        for name, value in average.items():
            if not value.is_floating_point():
                value.copy_(latest[name])
            elif isinstance(step, Tensor):
                value.lerp_(latest[name], step.to(value.dtype).view(-1, *[1] * (value.dim() - 1)))
            else:
                value.lerp_(latest[name], step)


def _judge(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(images)
    return logits


def _single_row_norms(network: nn.Module, rows: int) -> None:
    """Batch norm cannot take statistics of a single row: a site with one sample uses the running ones instead."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(rows > 1)
