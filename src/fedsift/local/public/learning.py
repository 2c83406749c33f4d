"""Learning: a site's model approaches what the others predict for public samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedsift.contract.codec import Wire
from fedsift.contract.messages import SiteFacts, Weights
from fedsift.contract.randomness import torch_generator
from fedsift.contract.work import Costly, passed
from fedsift.local import losses
from fedsift.local.plan import batch_bounds
from fedsift.local.public.samples import PublicPart, shared_dropout
from fedsift.local.recipe import Recipe
from fedsift.local.site import Site
from fedsift.local.trainer import make_optimiser, weights_of

OPTIMISER = "public optimiser"
"""The notebook's page with the moments of an optimiser that outlives its visit."""


@dataclass(frozen=True)
class Lesson(Wire, Costly):
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
    """How long an optimiser lives: a new one for every batch, for every visit, or one for the whole run."""

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


def learn(site: Site, weights: Weights, lesson: Lesson) -> Weights:
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
