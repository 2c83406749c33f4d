"""Local training: jobs in, results out. This is the one-site trainer; the stacked cohort has the same interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift.contract.errors import DataError
from fedsift.contract.messages import Weights
from fedsift.local import augment, losses
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
    teacher: Weights | None = None
    """The frozen teacher of distillation terms; the received weights by default."""
    purpose: str = "train"
    """Names the randomness, so that two trainings of one request differ."""
    anchor: Weights | None = None
    """Where proximal terms pull to; the received weights by default (FedDyn moves it at each site)."""

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

    def anchors(self, network: nn.Module) -> list[Tensor]:
        """What proximal terms measure from, one tensor for each trained parameter of the loaded network."""
        trained = [
            (name, value.detach()) for name, value in network.named_parameters() if value.requires_grad
        ]
        if self.anchor is None:
            return [value.clone() for _, value in trained]
        return [self.anchor[name].to(value.device) for name, value in trained]

    def generator(self) -> torch.Generator:
        return self.site.random(self.purpose)


@dataclass(frozen=True)
class Result:
    """What training made: new weights, and the mean objective over all steps."""

    weights: Weights
    loss: float
    steps: int


def train_one(job: Job) -> Result:
    """Train one site from start to end on its own."""
    site, recipe = job.site, job.recipe
    n = len(site.samples)
    if n == 0:
        raise DataError(f"site '{site.name}' has no training sample")
    device = torch.device(site.compute.device)
    network = site.network(job.weights)
    parameters = [p for p in network.parameters() if p.requires_grad]
    anchors = job.anchors(network) if "anchors" in recipe.objective.needs else []
    teacher = _frozen(job) if "teacher" in recipe.objective.needs else None
    prior = job.log_prior().to(device) if {"prior", "known prior"} & recipe.objective.needs else None
    targets = job.targets().to(device)
    optimiser = make_optimiser(parameters, recipe)
    known = job.known()
    known = None if known is None else known.to(device)
    generator = job.generator()
    total = torch.zeros((), device=device)
    count = 0
    network.train()
    with torch.random.fork_rng(devices=[]):
        # dropout inside a network draws from torch's own stream: give it this site's, and put it back after
        torch.manual_seed(site.random(f"{job.purpose}: dropout").initial_seed())
        for batch in plan(n, recipe, generator):
            images, target = prepare(site, batch, recipe, targets)
            _single_row_norms(network, len(batch.positions))
            view = View(
                logits=network(images),
                target=target,
                present=torch.ones(target.shape[:-1], device=device),
                log_prior=prior,
                teacher=_teach(teacher, images),
                known=known_in(batch, known),
                chance=None if batch.chance is None else batch.chance.to(device),
                parameters=parameters,
                anchors=anchors,
                first_batch=batch.first,
            )
            loss = recipe.objective.value(view)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if recipe.clip:
                nn.utils.clip_grad_norm_(parameters, recipe.clip)
            optimiser.step()
            total += loss.detach()
            count += 1
    return Result(weights_of(network), float(total) / count, count)


def prepare(site: Site, batch: Batch, recipe: Recipe, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Augmented, mixed images `[B, *shape]` and targets `[B, K]` of one step."""
    images = augment.apply(site.samples.take(batch.positions), recipe.augment, batch.draws)
    target = targets[batch.positions.to(targets.device)]
    if batch.mix_with is not None:
        images, target = losses.mixup(images, target, batch.mix_with.to(images.device), batch.mix_share)
    return images, target


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


def _frozen(job: Job) -> nn.Module:
    teacher = job.site.network(job.teacher or job.weights, slot="teacher")
    return teacher.eval().requires_grad_(False)


def _teach(teacher: nn.Module | None, images: Tensor) -> Tensor | None:
    if teacher is None:
        return None
    with torch.no_grad():
        logits: Tensor = teacher(images)
    return logits


def _single_row_norms(network: nn.Module, rows: int) -> None:
    """Batch norm cannot take statistics of a single row: a site with one sample uses the running ones instead."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(rows > 1)
