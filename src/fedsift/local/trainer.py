"""Local training: jobs in, results out. This is the one-site trainer; the stacked cohort has the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift.contract.errors import DataError
from fedsift.contract.messages import Weights
from fedsift.local import augment, losses
from fedsift.local.extras import PREPARED, Extra, Frozen, PerParameter, PerSample
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
        found = {**received, **self.extras}
        names = sorted(self.recipe.objective.needs - PREPARED)
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

    def generator(self) -> torch.Generator:
        return self.site.random(self.purpose)


@dataclass(frozen=True)
class Result:
    """What training made: new weights, and the mean objective over all steps."""

    weights: Weights
    loss: float
    steps: int
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-sample extras that a term wrote to, `[n, *]` as training left them."""


def train_one(job: Job) -> Result:
    """Train one site from start to end on its own."""
    site, recipe = job.site, job.recipe
    n = len(site.samples)
    if n == 0:
        raise DataError(f"site '{site.name}' has no training sample")
    network = site.network(job.weights)
    parameters = [p for p in network.parameters() if p.requires_grad]
    look = _Look(job, network)
    optimiser = make_optimiser(parameters, recipe)
    total = torch.zeros((), device=look.device)
    count = 0
    network.train()
    with torch.random.fork_rng(devices=[]):
        # dropout inside a network draws from torch's own stream: give it this site's, and put it back after
        torch.manual_seed(site.random(f"{job.purpose}: dropout").initial_seed())
        for batch in plan(n, recipe, job.generator()):
            images, target = prepare(site, batch, recipe, look.targets)
            _single_row_norms(network, len(batch.positions))
            loss = look.loss(batch, images, target, network(images))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if recipe.clip:
                nn.utils.clip_grad_norm_(parameters, recipe.clip)
            optimiser.step()
            total += loss.detach()
            count += 1
    return Result(weights_of(network), float(total) / count, count, look.written)


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
        self._networks = {
            key: job.site.network(extra.weights, slot=f"frozen {key}").eval().requires_grad_(False)
            for key, extra in extras.items()
            if isinstance(extra, Frozen)
        }

    def loss(self, batch: Batch, images: Tensor, target: Tensor, logits: Tensor) -> Tensor:
        """The objective, `[]`; rows that a term writes are in their table afterwards."""
        extras: dict[str, Any] = {**self._per_parameter}
        extras |= {name: _judge(network, images) for name, network in self._networks.items()}
        extras |= {name: rows_in(batch, table) for name, table in self._tables.items()}
        view = View(
            logits=logits,
            target=target,
            present=torch.ones(target.shape[:-1], device=self.device),
            log_prior=self._prior,
            teacher=extras.get("teacher"),
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
