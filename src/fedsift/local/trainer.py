"""Local training: jobs in, results out. This is the one-site trainer; the stacked cohort has the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift.contract.errors import ConfigError, DataError
from fedsift.contract.messages import Weights
from fedsift.local import augment, losses
from fedsift.local.extras import PREPARED, Extra, Frozen, PerParameter, PerSample, PerSite
from fedsift.local.objective import View
from fedsift.local.plan import Batch, plan
from fedsift.local.recipe import Recipe
from fedsift.local.site import Site


@dataclass(frozen=True)
class Job:
    """One site's training: from these weights, by this recipe."""

    site: Site
    weights: Weights
    recipe: Recipe
    purpose: str = "train"
    """Names the randomness, so that two trainings of one request differ."""
    extras: Mapping[str, Extra] = field(default_factory=dict)
    """What loss terms need beyond what the trainer knows. "teacher" and "anchors" put other networks in the place of
    the received one (FedDyn moves the anchor at each site)."""
    twin: Job | None = None
    """A second network that trains in step with this one: the same site, recipe and batches, but weights and extras of
    its own. Each sees the other's logits as `View.twin`."""
    dropout: str = "dropout"
    """Names the randomness inside the network; a twin has another."""

    @property
    def paired(self) -> bool:
        """Whether this is one of two networks."""
        return self.twin is not None or self.dropout != "dropout"

    def sides(self) -> list[Job]:
        """This network and its twin, if it has one."""
        if self.twin is None:
            return [self]
        return [
            self,
            replace(
                self.twin, site=self.site, recipe=self.recipe, purpose=self.purpose, dropout="twin dropout"
            ),
        ]

    def targets(self) -> Tensor:
        """The site's working labels as dense rows, float32 `[n, K]`."""
        labels = self.site.labels
        if self.site.multilabel:
            return labels.to(torch.float32)
        return F.one_hot(labels, self.site.n_classes).to(torch.float32)

    def log_prior(self) -> Tensor:
        """What logit adjustment adds, `[1, K]`: log frequencies, or log-odds of positives (multi-label)."""
        counts = self.site.label_counts().to(torch.float32)
        if not self.site.multilabel:
            return losses.log_prior(counts)[None, :]
        known = self.known() if "known prior" in self.recipe.objective.needs else None
        among = torch.full_like(counts, len(self.site.samples)) if known is None else known.sum(0)
        return losses.multilabel_logit_shift(counts, among.clamp(min=1))[None, :]

    def known(self) -> Tensor | None:
        """1 where a label is annotated or supplied, float32 `[n, K]`; None: all are."""
        return self.site.known_entries

    def needed(self) -> dict[str, Extra]:
        """The extras that the objective's terms ask for; teacher and anchors are the received model by default."""
        received: dict[str, Extra] = {"teacher": Frozen(self.weights), "anchors": PerParameter(self.weights)}
        found = {**received, **self.remembered(), **self.extras}
        names = sorted(self.recipe.objective.needs - PREPARED)
        if "twin" in self.recipe.objective.needs and not self.paired:
            raise DataError(
                f"site '{self.site.name}': a loss term needs a second network in training; give the job a twin"
            )
        for name in names:
            extra = found.get(name)
            if extra is None:
                raise DataError(
                    f"site '{self.site.name}': a loss term needs '{name}', which the request did not bring; "
                    "put it into the job's extras"
                )
            if isinstance(extra, PerSample) and len(extra.rows) != len(self.site.samples):
                raise DataError(
                    f"site '{self.site.name}': '{name}' has {len(extra.rows)} rows for "
                    f"{len(self.site.samples)} samples"
                )
        return {name: found[name] for name in names}

    def remembered(self) -> dict[str, Extra]:
        """What the terms remember of this site's samples; zeros before the first visit."""
        memory = self.recipe.objective.memory(self.site.n_classes)
        if memory and self.recipe.mixup > 0:
            raise ConfigError(
                f"train.mixup = {self.recipe.mixup}: a loss that remembers every sample ({', '.join(memory)}) cannot "
                "be computed on mixed ones; set train.mixup = 0"
            )
        rows: dict[str, Extra] = {}
        for name, shape in memory.items():
            kept: Tensor | None = self.site.notebook.get(self._page(name))
            fits = kept is not None and kept.shape == (len(self.site.samples), *shape)
            rows[name] = PerSample(
                kept if kept is not None and fits else torch.zeros(len(self.site.samples), *shape)
            )
        return rows

    def remember(self, result: Result) -> None:
        """Keep in the notebook what the terms wrote."""
        for side, own in zip(self.sides(), (result, result.twin)):
            memory = side.recipe.objective.memory(side.site.n_classes)
            for name in memory.keys() - side.extras.keys():
                if own is not None and name in own.rows:
                    side.site.notebook[side._page(name)] = own.rows[name].cpu()

    def _page(self, name: str) -> str:
        """Where the notebook holds what a term remembers; a twin has memories of its own."""
        return name if self.dropout == "dropout" else f"{name} of the twin"

    def generator(self) -> torch.Generator:
        return self.site.random(self.purpose)

    def dropout_generator(self) -> torch.Generator:
        return self.site.random(f"{self.purpose}: {self.dropout}")


@dataclass(frozen=True)
class Result:
    """What training made: new weights, and the mean objective over all steps."""

    weights: Weights
    loss: float
    steps: int
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-sample extras that a term wrote to, `[n, *]` as training left them."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-site extras with a step of their own, as training left them."""
    twin: Result | None = None
    """What became of the second network."""


def train_one(job: Job) -> Result:
    """Train one site from start to end on its own."""
    site, recipe = job.site, job.recipe
    n = len(site.samples)
    if n == 0:
        raise DataError(f"site '{site.name}' has no training sample")
    sides = [_Side(side, slot) for side, slot in zip(job.sides(), ("main", "twin"))]
    count = 0
    with torch.random.fork_rng(devices=[]):
        for batch in plan(n, recipe, job.generator()):
            images, target = prepare(site, batch, recipe, sides[0].look.targets)
            logits = [side.forward(images) for side in sides]
            for side, own, other in zip(sides, logits, reversed(logits)):
                side.step(batch, images, target, own, other.detach() if len(sides) > 1 else None)
            count += 1
    results = [side.result(count) for side in sides]
    return results[0] if len(results) == 1 else replace(results[0], twin=results[1])


class _Side:
    """One network in training: the site's only one, or one of two."""

    def __init__(self, job: Job, slot: str) -> None:
        self.network = job.site.network(job.weights, slot=slot)
        self.network.train()
        self.look = _Look(job, self.network)
        self._parameters = [p for p in self.network.parameters() if p.requires_grad]
        self._optimiser = make_optimiser(self._parameters, job.recipe)
        self._clip = job.recipe.clip
        self._total = torch.zeros((), device=self.look.device)
        # dropout inside a network draws from torch's own stream: each network gets one of its own
        self._stream = job.dropout_generator().get_state()

    def forward(self, images: Tensor) -> Tensor:
        torch.set_rng_state(self._stream)
        _single_row_norms(self.network, len(images))
        logits: Tensor = self.network(images)
        self._stream = torch.get_rng_state()
        return logits

    def step(self, batch: Batch, images: Tensor, target: Tensor, logits: Tensor, peer: Tensor | None) -> None:
        loss = self.look.loss(batch, images, target, logits, peer)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimiser.step()
        self.look.learn()
        self._total += loss.detach()

    def result(self, count: int) -> Result:
        learnt = {name: tensor.detach().cpu() for name, (tensor, _) in self.look.learnt.items()}
        return Result(weights_of(self.network), float(self._total) / count, count, self.look.written, learnt)


class _Look:
    """What the objective sees of each step of one site."""

    def __init__(self, job: Job, network: nn.Module) -> None:
        self.device = torch.device(job.site.compute.device)
        self.targets = job.targets().to(self.device)
        self.written: dict[str, Tensor] = {}
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
            if isinstance(extra, Frozen)
        }

    def loss(
        self, batch: Batch, images: Tensor, target: Tensor, logits: Tensor, peer: Tensor | None
    ) -> Tensor:
        """The objective, `[]`; rows that a term writes are in their table afterwards."""
        extras: dict[str, Any] = {**self._per_parameter, **self._constants}
        extras |= {name: tensor for name, (tensor, _) in self.learnt.items()}
        extras |= {name: _judge(network, images) for name, network in self._networks.items()}
        extras |= {name: rows_in(batch, table) for name, table in self._tables.items()}
        view = View(
            logits=logits,
            target=target,
            present=torch.ones(target.shape[:-1], device=self.device),
            log_prior=self._prior,
            teacher=extras.get("teacher"),
            twin=peer,
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

    def _write(self, name: str, positions: Tensor, rows: Tensor) -> None:
        """Put the rows of the first view back; the site's own table is copied before it is first written to."""
        if name not in self.written:
            self.written[name] = self._tables[name] = self._tables[name].clone()
        first = len(positions) // self._recipe.views
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


def train_each(jobs: Sequence[Job]) -> list[Result | Exception]:
    """Train the sites one after the other; one site's failure is its own."""
    results: list[Result | Exception] = []
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


def _judge(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(images)
    return logits


def _single_row_norms(network: nn.Module, rows: int) -> None:
    """Batch norm cannot take statistics of a single row: a site with one sample uses the running ones instead."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(rows > 1)
