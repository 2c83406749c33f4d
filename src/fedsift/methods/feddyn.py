"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from fedsift.core.codec import WireFormat
from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastZero, Share
from fedsift.formulas.aggregation import Merge, each_tensor, relative_sizes
from fedsift.methods._base import AnyLoss, Averaging, methods, record_loss
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, Weights
from fedsift.protocol.method import Asks, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, Objective, PerParameter, Proximal, Term, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained


def feddyn_anchor(cloud: Weights, memory: Weights) -> Weights:
    """Where a site's proximal term pulls to: w - h_k. With (alpha_k / 2) ||v - (w - h_k)||^2 in its loss, the gradient
    gains alpha_k (v - w + h_k), with alpha_k = alpha / s_k."""
    return each_tensor(lambda h, w: w - h, memory, cloud)


def feddyn_memory(memory: Weights, end: Weights, cloud: Weights) -> Weights:
    """A site's memory after training: h_k + v - w."""
    return each_tensor(lambda h, v, w: h + v - w, memory, end, cloud)


def feddyn_cloud(averaged: Weights, memories: Sequence[Weights], n_sites: int) -> Weights:
    """The model that the next round starts from: average of the round's models + mean of h over all sites.

    memories: of the sites that have one; the others' are 0 and count in `n_sites`.
    """
    cloud: Weights = {}
    for name, tensor in averaged.items():
        total = torch.zeros_like(tensor)
        for memory in memories:
            total += memory[name]
        cloud[name] = tensor + total / n_sites
    return cloud


MEMORY = "feddyn memory"
"""The notebook page that holds h_k; it never leaves the site."""


@dataclass(frozen=True)
class TrainDynamically(Train):
    """Train against the site's own memory h_k: the proximal term pulls to w - h_k, then h_k grows by w_k - w.

    The gradient of (alpha_k / 2) ||v - (w - h_k)||^2 is alpha_k (v - w + h_k), FedDyn's correction of a local
    step.
    """

    reply_type: ClassVar[type[Reply]] = Trained

    trained_names: tuple[str, ...] = ()
    """The parameters that have a memory: all of the model but its running statistics."""

    def memory(self, site: Site) -> Weights:
        """h_k, zero before the first visit."""
        kept: Weights | None = site.notebook.get(MEMORY)
        return kept or {name: torch.zeros_like(self.weights[name]) for name in self.trained_names}

    def extras(self, site: Site) -> dict[str, Extra]:
        return {"anchors": PerParameter(feddyn_anchor(self.weights, self.memory(site)))}

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        trained = super().reply(site, result)
        site.notebook[MEMORY] = feddyn_memory(self.memory(site), trained.weights, self.weights)
        return trained


@dataclass(frozen=True)
class DynState(WireFormat):
    """What FedDyn keeps on the server: the model that sites start from, and the sum of their memories."""

    cloud: Weights
    """w: the start of the next round; the model to use is the plain average of the last one."""
    memory: Weights
    """sum_k h_k over all sites, by the name of each trained parameter."""


def begin_dynamics(weights: Weights, buffers: Sequence[str]) -> DynState:
    """Before the first round: start from these weights, no memories."""
    memory = {name: torch.zeros_like(value) for name, value in weights.items() if name not in buffers}
    return DynState(cloud=weights, memory=memory)


@dataclass(frozen=True)
class DynamicRound:
    """One round of FedDyn."""

    alpha: float
    by_size: bool = True
    merge: Merge = field(default_factory=lambda: Averaging().merge)
    """How the sites' models become one; all count alike."""

    def objective(self, loss: Term | Objective, alpha_k: float) -> Objective:
        """Loss + (alpha_k / 2) ||v - anchor||^2."""
        return as_objective(loss) + alpha_k * Proximal(power=2)

    def __call__(
        self, federation: Federation, dynamics: DynState, recipe: Recipe, chosen: Sequence[str]
    ) -> tuple[Weights, DynState]:
        """The average of the chosen sites' models, and the dynamics of the next round.

        The server derives the change of h_k from the model that it receives anyway: no memory travels.
        """
        sizes = [float(size) for size in federation.sizes().values()] if self.by_size else None
        relative = dict(zip(federation.sites, relative_sizes(sizes, len(federation.sites))))
        names = tuple(dynamics.memory)
        requests = {
            site: TrainDynamically(
                dynamics.cloud,
                replace(recipe, objective=self.objective(recipe.objective, self.alpha / relative[site])),
                trained_names=names,
            )
            for site in chosen
        }
        replies = federation.ask(requests)
        record_loss(federation, replies)
        models = [reply.weights for reply in replies.values()]
        averaged = self.merge(models, [1.0] * len(models), dynamics.cloud)
        memory = dynamics.memory
        for reply in replies.values():
            memory = feddyn_memory(memory, reply.weights, dynamics.cloud)
        moved = feddyn_cloud({name: averaged[name] for name in names}, [memory], len(federation.sites))
        return averaged, DynState(cloud={**averaged, **moved}, memory=memory)


@dataclass(frozen=True)
class FedDynState(State):
    """`weights` is the average of the last round's models, the one to evaluate and use."""

    dynamics: DynState = field(default_factory=lambda: DynState({}, {}))


@methods.register("feddyn")
@dataclass(frozen=True)
class FedDyn(AnyLoss):
    """Each site remembers how far its optimum lies from the others', and is pulled against it."""

    summary: ClassVar[str] = "Dynamic regularisation: each site remembers its drift and is pulled against it"
    paper: ClassVar[str] = "Acar et al. 2021"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    alpha: AtLeastZero = 0.01
    """alpha: strength of the regulariser."""
    by_size: bool = True
    """alpha_k = alpha / (n_k N / sum n), as released; false uses alpha at every site, as printed."""
    decay: Share = 0.998
    """The learning rate of round t is lr * decay^t."""
    clip: AtLeastZero = 10.0
    """Largest gradient norm of a local step; 0 is off."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"method.alpha = {self.alpha}: it must be positive; without it use fedavg")

    @property
    def asks(self) -> Asks:
        return (TrainDynamically,)

    def begin(self, federation: Federation, weights: Weights) -> FedDynState:
        return FedDynState(weights, begin_dynamics(weights, federation.model_buffers()))

    def train(self, state: FedDynState, federation: Federation) -> FedDynState:
        recipe = self.recipe(
            self.objective(federation), lr=self.local.lr * self.decay**federation.round.index, clip=self.clip
        )
        one_round = DynamicRound(self.alpha, self.by_size, self.merge)
        weights, dynamics = one_round(federation, state.dynamics, recipe, federation.choose(self.fraction))
        return replace(state, weights=weights, dynamics=dynamics)

    def tiny(self) -> FedDyn:
        return replace(self, rounds=3, fraction=0.6)
