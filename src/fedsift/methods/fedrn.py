"""FedRN: Kim et al., FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning, CIKM 2022."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import derive
from fedsift.core.ranges import AtLeastOne, Count, Rate, Share
from fedsift.methods._base import Averaging, ask_to_train, methods
from fedsift.methods.divide_mix import clean_votes
from fedsift.methods.fedmlp import cosine
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.crossfit import part_of
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import CrossEntropy
from fedsift.training.plan import batch_bounds
from fedsift.training.predict import features_of, site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained, count_refusal
from fedsift.training.trainer import PlainOptimiser

# FedRN's choice of neighbours: sites that fit their own labels well, and whose models answer alike
# ------------------------------------------------------------------------------


def scaled(values: ArrayLike) -> NDArray[np.float64]:
    """(v - min) / (max - min), `[n] -> [n]`; all 1 where all are alike, since nothing speaks against any of them."""
    v = np.asarray(values, dtype=np.float64)
    spread = np.ptp(v) if len(v) else 0.0
    return np.asarray((v - v.min()) / spread if spread > 0 else np.ones(len(v)))


def reliability(expertise: ArrayLike, outputs: ArrayLike, own: int, alpha: float) -> NDArray[np.float64]:
    """alpha e_j + (1 - alpha) s_j of every site j for one site, `[n], [n, D] -> [n]`.

    e: expertise, s: cosine between the sites' outputs and the site's own, both scaled to 0..1 over all sites; the own s
    is 1.
    """
    rows = np.asarray(outputs, dtype=np.float64)
    similarity = scaled(cosine(rows[own], rows))
    similarity[own] = 1.0
    return np.asarray(alpha * scaled(expertise) + (1 - alpha) * similarity)


def reliable(scores: ArrayLike, own: int, k: int) -> list[int]:
    """The k other sites with the largest scores, largest first; ties go to the earlier one."""
    values = np.asarray(scores, dtype=np.float64)
    order = [int(j) for j in np.argsort(-values, kind="stable") if j != own]
    return order[:k]


# FedRN at a site: report how well the model fits, let neighbours' models vote on the labels, train on
# clean ones
# ------------------------------------------------------------------------------

NAME = "fedrn"
CLEAN = "clean"
"""Where the workbench holds the samples of this visit, a mask `[n]`."""
ITERATIONS = 100
"""Of the mixture, as released."""

# What a site reports of its model ------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelProfile(Reply):
    """What a site reports so that others can choose it as a neighbour."""

    expertise: float = disclosed("share of its own labels that its trained model agrees with", "share", least=0, most=1)
    output: Tensor = disclosed("the trained model's prediction for one picture of random noise, [K]", "features")

    def refusal(self, request: DescribeModel, facts: SiteFacts) -> str | None:
        if self.output.shape != (request.classes,) or not self.output.is_floating_point():
            return f"the prediction has shape {tuple(self.output.shape)}, asked were ({request.classes},)"
        return None


@dataclass(frozen=True)
class DescribeModel(Request[ModelProfile]):
    """Expertise on the own labels, and the answer to the picture of noise that all sites are shown."""

    reply_type: ClassVar[type[Reply]] = ModelProfile

    weights: Weights | None
    classes: int

    def answer(self, site: Site) -> ModelProfile:
        weights = site.weights_for(self.weights)
        agreed = (site_logits(site, weights).argmax(-1) == site.labels).double().mean()
        picture = noise_picture(site).to(site.compute.device)
        with torch.inference_mode():
            answer = F.softmax(site.network(weights).eval()(picture)[0], dim=-1)
        return ModelProfile(float(agreed), answer.cpu().clone())


def noise_picture(site: Site) -> Tensor:
    """One sample of standard normal noise, `[1, *shape]`: the same at every site and in every round."""
    generator = torch.Generator().manual_seed(derive(site.moment.seed, "fedrn picture") % 2**63)
    return torch.randn((1, *site.samples.shape), generator=generator)


# Training ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeighbourModel(Trained):
    """A model that other sites get to see."""

    weights: Weights = disclosed(
        "the site's model after local training; the server SHOWS IT TO OTHER SITES that choose it as a neighbour",
        "model",
        update="weights",
    )
    samples: int = disclosed("how many samples it has", "count")
    clean: int = disclosed("how many of them it trained on: those whose labels looked right", "count", default=0)

    def refusal(self, request: Train, facts: SiteFacts) -> str | None:
        return super().refusal(request, facts) or count_refusal("clean", self.clean, facts.samples)


@dataclass(frozen=True)
class TrainNeighbourModel(Train):
    """Plain training of a model that other sites will see."""

    reply_type: ClassVar[type[Reply]] = NeighbourModel

    def reply(self, site: Site, result: TrainingResult | None) -> NeighbourModel:
        trained = super().reply(site, result)
        mask: Tensor | None = site.workbench.get(CLEAN)
        used = len(site.samples) if mask is None else int(mask.sum())
        if used < site.min_count:
            raise DataError(
                f"site '{site.name}' trained on {used} samples, fewer than its minimum count {site.min_count}"
            )
        return NeighbourModel(trained.weights, trained.samples, trained.loss, trained.then, used)


@dataclass(frozen=True)
class TrainAmongNeighbours(TrainNeighbourModel):
    """Let the received model and the neighbours' vote on every label, then train on those that look clean."""

    reply_type: ClassVar[type[Reply]] = NeighbourModel

    neighbours: tuple[Weights, ...] = ()
    """Models of other sites."""
    scores: tuple[float, ...] = (1.0,)
    """How much each vote counts: the received model's, then the neighbours'."""
    least: float = 0.5
    """A label whose mean vote is larger is clean."""
    guarded: bool = True
    balanced: bool = True
    """See `clean_votes`."""

    def job(self, site: Site) -> TrainingJob:
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


@dataclass(frozen=True)
class FedRNState(State):
    """The global model, and of each site that was visited its last model and what describes it."""

    models: dict[str, Weights] = field(default_factory=dict)
    expertise: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, list[float]] = field(default_factory=dict)
    level: dict[str, float] = field(default_factory=dict)
    """Share of a site's labels that looked wrong at its last visit."""


@methods.register("fedrn")
@dataclass(frozen=True)
class FedRN(Averaging):
    """Each site asks the k most reliable others which of its labels are clean, and trains on those alone.

    The server SHOWS MODELS OF SITES TO OTHER SITES. What one can learn of a site's samples from its model, the
    neighbours can learn.
    """

    summary: ClassVar[str] = "Sites train on labels that neighbours' models find clean; shows sites each other's models"
    paper: ClassVar[str] = "Kim et al. 2022 (CIKM)"

    rounds: AtLeastOne = 100
    """T: communication rounds, warm-up included."""
    warm_up: Count | None = None
    """Rounds of FedAvg before neighbours are asked; by itself a fifth of all (100 of 500 in the paper), but
    no fewer than 10, or half: a model that knows nothing yet finds no clean label."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""
    neighbours: Count = 2
    """k: other sites whose models vote; 0 leaves the vote to the received model."""
    alpha: Rate = 0.6
    """w_alpha: how much expertise counts beside similarity (0.5 by default in the code, 0.6 in its scripts)."""
    least: Rate = 0.5
    """A label whose mean vote is larger is clean."""

    guarded: bool = True
    """Never doubt a label that the voting model itself would give: the mixture finds two groups of losses in clean
    labels too. Off is as released."""
    balanced: bool = True
    """Judge a label beside its class's share of the site's labels: a mixture over plain losses takes all labels of a
    rare class for wrong. Off is as released."""

    local: Recipe = field(default_factory=lambda: Recipe(epochs=5, batch_size=50, lr=0.01, momentum=0.5), kw_only=True)

    def __post_init__(self) -> None:
        if self.t_w > self.rounds:
            raise ConfigError(f"method.warm_up = {self.t_w}: it must not exceed method.rounds = {self.rounds}")

    @property
    def t_w(self) -> int:
        """Rounds of the warm-up."""
        return max(self.rounds // 5, min(10, self.rounds // 2)) if self.warm_up is None else self.warm_up

    def completed(self, facts: FederationFacts) -> FedRN:
        return replace(self, warm_up=self.t_w)

    def begin(self, federation: Federation, weights: Weights) -> FedRNState:
        return FedRNState(weights)

    def stages(self) -> list[Stage]:
        neighbours = (TrainAmongNeighbours, DescribeModel)
        return [
            Stage("warm up", self.t_w, self.train_plainly, asks=(TrainNeighbourModel, DescribeModel)),
            Stage("reliable neighbours", self.rounds - self.t_w, self.train_among_neighbours, asks=neighbours),
        ]

    def train_plainly(self, state: FedRNState, federation: Federation) -> FedRNState:
        """FedAvg; each trained model is described in the same visit."""
        recipe, describe = self.recipe(CrossEntropy()), DescribeModel(None, len(federation.classes))
        request = TrainNeighbourModel(state.weights, recipe, then=(describe,))
        chosen = federation.choose(self.fraction)
        return self.take_in(state, ask_to_train(federation, request, chosen))

    def train_among_neighbours(self, state: FedRNState, federation: Federation) -> FedRNState:
        """Every chosen site gets the global model and those of its k most reliable neighbours."""
        recipe, describe = self.recipe(CrossEntropy()), DescribeModel(None, len(federation.classes))
        requests, asked = {}, {}
        for site in federation.choose(self.fraction):
            names, scores = self.neighbours_of(site, state)
            asked[site] = names
            requests[site] = TrainAmongNeighbours(
                state.weights,
                recipe,
                then=(describe,),
                neighbours=tuple(state.models[name] for name in names),
                scores=scores,
                least=self.least,
                guarded=self.guarded,
                balanced=self.balanced,
            )
        replies = ask_to_train(federation, requests)
        federation.record(neighbours=asked)
        state = self.take_in(state, replies)
        level = {**state.level, **levels_of(replies, federation)}
        federation.find(Findings(noisy=(), level=level))
        return replace(state, level=level)

    def neighbours_of(self, site: str, state: FedRNState) -> tuple[list[str], tuple[float, ...]]:
        """The k most reliable of the sites that have a model, and the scores: the site's own first.

        A site that was never visited has no description: the received model alone judges its labels.
        """
        known = list(state.models)
        if site not in known:
            return [], (1.0,)
        own = known.index(site)
        outputs = np.array([state.outputs[name] for name in known])
        scores = reliability([state.expertise[name] for name in known], outputs, own, self.alpha)
        chosen = reliable(scores, own, self.neighbours)
        return [known[j] for j in chosen], (float(scores[own]), *(float(scores[j]) for j in chosen))

    def take_in(self, state: FedRNState, replies: Replies[Trained]) -> FedRNState:
        """Average by size; keep every model with what describes it."""
        profiles = {site: reply.then[0] for site, reply in replies.items()}
        described = {site: profile for site, profile in profiles.items() if isinstance(profile, ModelProfile)}
        return replace(
            state,
            weights=self.merged(replies, state.weights),
            models={**state.models, **{site: reply.weights for site, reply in replies.items()}},
            expertise={**state.expertise, **{site: own.expertise for site, own in described.items()}},
            outputs={**state.outputs, **{site: own.output.tolist() for site, own in described.items()}},
        )

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        if facts.sites is not None and 1 < facts.sites <= self.neighbours:
            yield Incompatibility(
                f"{facts.sites} sites have fewer than method.neighbours = {self.neighbours} others each"
            )

    def tiny(self) -> FedRN:
        return replace(self, rounds=3, warm_up=1, fraction=0.6)


def levels_of(replies: Replies[Trained], federation: Federation) -> dict[str, float]:
    """Share of each site's labels that looked wrong."""
    return {
        site: 1 - reply.clean / federation.facts[site].samples
        for site, reply in replies.items()
        if isinstance(reply, NeighbourModel)
    }
