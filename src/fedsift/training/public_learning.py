"""Requests for sites that learn from each other's predictions on public samples: learn, train, measure, predict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedsift.core.codec import WireFormat
from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import derive, torch_generator
from fedsift.formulas import losses
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import HasCost, Reply, SiteFacts, Weights, disclosed, passed
from fedsift.protocol.site import Samples, Site
from fedsift.training import augment as augmentation
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import Objective
from fedsift.training.own_models import MeasuredOn, keep_model, mean_objective, own_model
from fedsift.training.plan import batch_bounds
from fedsift.training.predict import BATCH
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import TrainingRequest, count_refusal
from fedsift.training.trainer import make_optimiser, weights_of

# Public samples: which of them, in which order, how augmented; the same at every site
# ------------------------------------------------------------------------------


def public_size(federation: Federation) -> int:
    """N_0, after making sure that every site has the same public samples in the same order."""
    without = [site for site, facts in federation.facts.items() if not facts.public]
    if without:
        raise ConfigError(f"site '{without[0]}' has no public samples: give it the set that [public] names")
    first = federation.facts[federation.sites[0]]
    for site, facts in federation.facts.items():
        if (facts.public, facts.public_digest) != (first.public, first.public_digest):
            raise ConfigError(
                f"site '{site}' has other public samples than '{first.name}' "
                f"({facts.public} and {first.public}, fingerprints {facts.public_digest[:8]} and "
                f"{first.public_digest[:8]}): copy one set to all sites"
            )
    return first.public


@dataclass(frozen=True)
class PublicPart(WireFormat):
    """Samples `start` to `stop` of one shuffle of the public set."""

    shuffle: int
    """Number of the shuffle: every communication epoch has its own."""
    start: int
    stop: int
    augment: Augment = field(default_factory=Augment)
    """Drawn alike at every site, so that teacher and student see the same image."""

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """As `len`, of any part that a message may name: of one that ends before it starts, 0."""
        return max(self.stop - self.start, 0)

    def positions(self, seed: int, total: int) -> Tensor:
        """int64 `[n]` into the public set."""
        return torch.randperm(total, generator=torch_generator(seed, "public order", self.shuffle))[
            self.start : self.stop
        ]

    def images(self, site: Site, order: Tensor) -> Tensor:
        """The samples at these places of the part, normalised and augmented: `[B, *shape]`."""
        public, seed = public_of(site), site.moment.seed
        positions = self.positions(seed, len(public))[order]
        generator = torch_generator(seed, "public augmentation", self.shuffle)
        draws = _at(augmentation.draw(self.augment, len(public), generator), self.start + order)
        return augmentation.apply(public.take(positions), self.augment, draws).to(site.compute.device)


def _at(draws: augmentation.AugmentationDraws, places: Tensor) -> augmentation.AugmentationDraws:
    columns = (draws.flip, draws.shift, draws.angle, draws.move)
    return augmentation.AugmentationDraws(*(None if column is None else column[places] for column in columns))


def public_of(site: Site) -> Samples:
    if site.public is None:
        raise DataError(f"site '{site.name}' has no public samples: give it the set that [public] names")
    return site.public


class shared_dropout:
    """Dropout draws from torch's own stream: lend it one that all sites share, then put torch's back.

    Sites that learn the same lesson from the same weights must end with the same weights (FedDF).
    """

    def __init__(self, site: Site, purpose: str, shuffle: int) -> None:
        self._seed = derive(site.moment.seed, "public dropout", purpose, shuffle)
        self._fork = torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *problem: Any) -> None:
        self._fork.__exit__(*problem)


# Learning: a site's model approaches what the others predict for public samples
# ------------------------------------------------------------------------------

OPTIMISER = "public optimiser"
"""The notebook's page with the moments of an optimiser that outlives its visit."""


@dataclass(frozen=True)
class PublicLesson(WireFormat, HasCost):
    """What a site is to learn from the others' predictions for some public samples."""

    part: PublicPart
    target: Tensor
    """`[n, K]` in the part's order: what the loss below measures against."""
    loss: Literal["mixture", "l1", "mse", "kl"]
    """"mixture": -sum_c target_c log p_c, where target is sum_i a_i p_i of the teachers. It differs from
    sum_i a_i KL(p_i || p) by a constant, so one mixture stands for all teachers (RHFL).
    "l1", "mse", "kl": distance of the logits, or divergence of the softmax, to logits (FedMD, FedDF)."""
    recipe: Recipe
    """Its optimiser, step, batch size, clipping and epochs; the objective is the loss above."""
    optimiser: Literal["batch", "visit", "run"] = "batch"
    """How long an optimiser is kept: a new one for every batch, for every visit, or one for the whole run."""

    def value(self, logits: Tensor, target: Tensor) -> Tensor:
        """`[B, K], [B, K] -> []`"""
        if self.loss == "mixture":
            return losses.mixture_loss(logits, target).mean()
        if self.loss == "l1":
            return losses.score_distance(logits, target).mean()
        if self.loss == "mse":
            return (logits - target).square().mean()
        return losses.ensemble_distillation(logits, target).mean()

    def work(self, facts: SiteFacts) -> float:
        return self.recipe.epochs * passed(self.part.size, self.recipe.batch_size)


def learn(site: Site, weights: Weights, lesson: PublicLesson) -> Weights:
    """The weights after the lesson: one step for each batch of public samples."""
    network = site.network(weights).train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    recipe = lesson.recipe
    target = lesson.target.to(site.compute.device)
    optimiser = make_optimiser(parameters, recipe)
    if lesson.optimiser == "run":
        _recall(site, optimiser)
    with shared_dropout(site, "learn", lesson.part.shuffle):
        for order in _orders(lesson.part, recipe, site.moment.seed):
            if lesson.optimiser == "batch":
                optimiser = make_optimiser(parameters, recipe)
            loss = lesson.value(network(lesson.part.images(site, order)), target[order])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if recipe.clip:
                nn.utils.clip_grad_norm_(parameters, recipe.clip)
            optimiser.step()
    if lesson.optimiser == "run":
        site.notebook[OPTIMISER] = _copied(optimiser.state_dict()["state"])
    return weights_of(network)


def _orders(part: PublicPart, recipe: Recipe, seed: int) -> Iterator[Tensor]:
    """Places within the part, batch by batch: the first pass in the part's order, later ones shuffled."""
    for number in range(recipe.epochs):
        order = torch.arange(len(part))
        if number:
            order = torch.randperm(
                len(part), generator=torch_generator(seed, "public pass", part.shuffle, part.start, number)
            )
        for start, stop in batch_bounds(len(part), recipe.batch_size):
            yield order[start:stop]


def _recall(site: Site, optimiser: torch.optim.Optimizer) -> None:
    """Give a new optimiser the moments of the last visit; copies, since a notebook's never change."""
    kept = site.notebook.get(OPTIMISER)
    if kept is not None:
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": _copied(kept), "param_groups": groups})


def _copied(state: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        number: {key: item.clone() if isinstance(item, Tensor) else item for key, item in moments.items()}
        for number, moments in state.items()
    }


# Showing: a site's predictions for public samples
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicPredictions(WireFormat, HasCost):
    """Which predictions a site shows."""

    part: PublicPart
    classes: int
    kind: Literal["probabilities", "logits"] = "probabilities"
    mode: Literal["eval", "train"] = "eval"
    """Batch norm by its running statistics, or by those of each batch (as when the release takes a step)."""
    batch_size: int = BATCH
    """Of the batches in mode "train"; in mode "eval" it makes no difference."""

    def outputs(self, site: Site, weights: Weights) -> Tensor:
        """float32 `[n, K]`, in the part's order."""
        network = site.network(weights).train(self.mode == "train")
        parts: list[Tensor] = []
        size = self.batch_size if self.mode == "train" else BATCH
        with torch.no_grad(), shared_dropout(site, "show", self.part.shuffle):
            for start, stop in batch_bounds(len(self.part), size):
                parts.append(network(self.part.images(site, torch.arange(start, stop))).cpu())
        logits = torch.cat(parts)
        return torch.softmax(logits, -1) if self.kind == "probabilities" else logits

    def work(self, facts: SiteFacts) -> float:
        return passed(self.part.size, self.batch_size)

    def refusal(self, outputs: Any) -> str | None:
        """Why these cannot be the predictions that were asked for."""
        wanted = (len(self.part), self.classes)
        if not isinstance(outputs, Tensor):
            return "the predictions for the public samples are missing"
        if tuple(outputs.shape) != wanted:
            return f"the public predictions have shape {tuple(outputs.shape)}, asked were {wanted}"
        if outputs.dtype != torch.float32:
            return f"the public predictions are {outputs.dtype}, not torch.float32"
        if self.kind == "probabilities" and not _distributions(outputs):
            return "the public predictions are no probabilities: they are negative or do not sum to 1"
        return None


def _distributions(rows: Tensor) -> bool:
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all())


@dataclass(frozen=True)
class PublicReply(Reply):
    """What leaves a site that keeps its model: predictions for public samples, and scalars."""

    outputs: Tensor | None = disclosed("the site's predictions for the public, unlabelled samples, [N0, K]", "features")
    private_loss: float | None = disclosed(
        "mean loss of the site's model over its own samples and labels", "loss", least=0.0
    )
    loss: float = disclosed("mean training loss over the local steps (0 without training)", "loss")
    samples: int = disclosed("how many samples the site has", "count")

    def refusal(self, request: Collaborate, facts: SiteFacts) -> str | None:
        problem = count_refusal("samples", self.samples, facts.samples)
        if problem is None and request.show is not None:
            problem = request.show.refusal(self.outputs)
        if problem is None and request.show is None and self.outputs is not None:
            problem = "the reply holds public predictions that were not asked for"
        if problem is None and request.measure is not None:
            problem = _loss_refusal(self.private_loss)
        return problem


def _loss_refusal(value: Any) -> str | None:
    if not isinstance(value, float):
        return f"the private loss is {value!r}, not a number"
    return f"the private loss is {value:.3g}: it cannot be negative" if value < 0 else None


@dataclass(frozen=True)
class Collaborate(TrainingRequest[PublicReply]):
    """One visit, in this order, each part optional: learn from the others, train privately, measure, show."""

    reply_type: ClassVar[type[Reply]] = PublicReply

    learn: PublicLesson | None = None
    train: Recipe | None = None
    measure: Objective | None = None
    """Tell the mean of this objective over the private samples."""
    measure_augment: Augment | None = None
    """Measure on augmented images, as released code does; None measures on the images themselves."""
    measure_on: MeasuredOn = "own"
    show: PublicPredictions | None = None

    def job(self, site: Site) -> TrainingJob | None:
        weights = own_model(site)
        if self.learn is not None:
            weights = learn(site, weights, self.learn)
        site.workbench["trained"] = weights
        return None if self.train is None else TrainingJob(site, weights, self.train)

    def reply(self, site: Site, result: TrainingResult | None) -> PublicReply:
        weights = site.workbench["trained"] if result is None else result.weights
        if self.learn is not None or self.train is not None:
            keep_model(site, weights)
        private_loss = None
        if self.measure is not None:
            private_loss = mean_objective(site, weights, self.measure, self.measure_augment, self.measure_on)
        outputs = None if self.show is None else self.show.outputs(site, weights)
        loss = 0.0 if result is None else result.loss
        return PublicReply(outputs, private_loss, loss, len(site.samples))
