"""FedRN at a site: tell how well the model fits, let neighbours' models vote on the labels, train on clean ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedsift.contract.errors import DataError
from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.contract.randomness import derive
from fedsift.local.belief import clean_votes
from fedsift.local.crossfit import part_of
from fedsift.local.plain_optimiser import PlainOptimiser
from fedsift.local.plan import batch_bounds
from fedsift.local.predict import features_of, site_logits
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train, Trained, count_refusal
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result

NAME = "fedrn"
CLEAN = "clean"
"""Where the workbench holds the samples of this visit, a mask `[n]`."""
ITERATIONS = 100
"""Of the mixture, as released."""

# What a site tells of its model ------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile(Reply):
    """By what a site is chosen as a neighbour."""

    expertise: float = disclosed(
        "share of its own labels that its trained model agrees with", least=0, most=1
    )
    output: Tensor = disclosed("the trained model's prediction for one picture of random noise, [K]")

    def refusal(self, request: DescribeModel, facts: SiteFacts) -> str | None:
        if self.output.shape != (request.classes,) or not self.output.is_floating_point():
            return f"the prediction has shape {tuple(self.output.shape)}, asked were ({request.classes},)"
        return None


@dataclass(frozen=True)
class DescribeModel(Request[Profile]):
    """Expertise on the own labels, and the answer to the picture of noise that all sites are shown."""

    reply_type: ClassVar[type[Reply]] = Profile

    weights: Weights | None
    classes: int

    def answer(self, site: Site) -> Profile:
        weights = site.weights_for(self.weights)
        agreed = (site_logits(site, weights).argmax(-1) == site.labels).double().mean()
        picture = noise_picture(site).to(site.compute.device)
        with torch.inference_mode():
            answer = F.softmax(site.network(weights).eval()(picture)[0], dim=-1)
        return Profile(float(agreed), answer.cpu().clone())


def noise_picture(site: Site) -> Tensor:
    """One sample of standard normal noise, `[1, *shape]`: the same at every site and in every round."""
    generator = torch.Generator().manual_seed(derive(site.moment.seed, "fedrn picture") % 2**63)
    return torch.randn((1, *site.samples.shape), generator=generator)


# Training ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown(Trained):
    """A model that other sites get to see."""

    weights: Weights = disclosed(
        "the site's model after local training; the server SHOWS IT TO OTHER SITES that choose it as a neighbour",
        update="weights",
    )
    samples: int = disclosed("how many samples it has")
    clean: int = disclosed("how many of them it trained on: those whose labels looked right", default=0)

    def refusal(self, request: Train, facts: SiteFacts) -> str | None:
        return super().refusal(request, facts) or count_refusal("clean", self.clean, facts.samples)


@dataclass(frozen=True)
class TrainShown(Train):
    """Plain training of a model that other sites will see."""

    reply_type: ClassVar[type[Reply]] = Shown

    def reply(self, site: Site, result: Result | None) -> Shown:
        trained = super().reply(site, result)
        mask: Tensor | None = site.workbench.get(CLEAN)
        used = len(site.samples) if mask is None else int(mask.sum())
        if used < site.smallest:
            raise DataError(
                f"site '{site.name}' trained on {used} samples, fewer than its floor {site.smallest}: nothing is told"
            )
        return Shown(trained.weights, trained.samples, trained.loss, trained.then, used)


@dataclass(frozen=True)
class TrainAmongNeighbours(TrainShown):
    """Let the received model and the neighbours' vote on every label, then train on those that look clean."""

    reply_type: ClassVar[type[Reply]] = Shown

    neighbours: tuple[Weights, ...] = ()
    """Models of other sites."""
    scores: tuple[float, ...] = (1.0,)
    """How much each vote counts: the received model's, then the neighbours'."""
    least: float = 0.5
    """A label whose mean vote is larger is clean."""
    guarded: bool = True
    balanced: bool = True
    """See `clean_votes`."""

    def job(self, site: Site) -> Job:
        votes = self.votes(site)
        mean = np.average(votes, axis=0, weights=self.shares)
        clean = torch.from_numpy(mean > self.least)
        site.keep_evidence(NAME, flagged=~clean, suspicion=torch.from_numpy(1 - mean))
        if not bool(clean.any()):
            clean = torch.ones_like(clean)  # nobody is believed: train as if nothing was known
        site.workbench[CLEAN] = clean
        return replace(super().job(site), site=part_of(site, clean.nonzero().squeeze(-1)))

    @property
    def shares(self) -> NDArray[np.float64]:
        """Scores that sum to 1; all alike where all are 0."""
        values = np.asarray(self.scores, dtype=np.float64)
        return values / values.sum() if values.sum() > 0 else np.full(len(values), 1 / len(values))

    def votes(self, site: Site) -> NDArray[np.float64]:
        """P(clean) of every sample by the received model and by each neighbour's, `[1 + k, n]`.

        A neighbour's head is first tuned on what the received model holds for clean: sites' classes differ.
        """
        own = self.vote(site, site_logits(site, self.weights))
        trusted = torch.from_numpy(own > self.least).nonzero().squeeze(-1)
        votes = [own]
        for number, weights in enumerate(self.neighbours, 1):
            features, _ = features_of(site.network(weights, slot="neighbour"), site.samples)
            head = tuned_head(
                features[trusted],
                site.labels[trusted],
                (weights["head.weight"], weights["head.bias"]),
                self.recipe,
                site.random(f"head of neighbour {number}"),
            )
            votes.append(self.vote(site, F.linear(features, *head)))
        return np.stack(votes)

    def vote(self, site: Site, logits: Tensor) -> NDArray[np.float64]:
        return clean_votes(logits, site.labels, self.guarded, self.balanced, ITERATIONS)


def tuned_head(
    features: Tensor, labels: Tensor, head: tuple[Tensor, Tensor], recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One epoch of cross-entropy on a linear head over frozen features `[n, F]`; batch norm does not move.

    The gradient of one layer is written out, (p - y) phi^T and p - y, means over the batch: the steps are so small that
    autograd would cost several times what they do.
    """
    weight, bias = (part.detach().clone() for part in head)
    if len(features):
        optimiser = PlainOptimiser([weight, bias], recipe)
        order = torch.randperm(len(features), generator=generator)
        phi, given = features[order], F.one_hot(labels[order], len(bias)).to(features.dtype)
        for start, stop in batch_bounds(len(features), recipe.batch_size):
            rows = phi[start:stop]
            error = (F.softmax(F.linear(rows, weight, bias), dim=-1) - given[start:stop]) / (stop - start)
            weight.grad, bias.grad = error.T @ rows, error.sum(0)
            optimiser.step()
    return weight, bias
