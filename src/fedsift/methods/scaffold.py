"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Positive, Share
from fedsift.formulas import losses
from fedsift.formulas.aggregation import each_tensor, relative_sizes, server_step
from fedsift.methods._base import Averaging, methods, plain_loss, record_loss
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, Objective, PerParameter, Term, View, as_objective
from fedsift.training.plan import steps
from fedsift.training.predict import BATCH
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained, weights_refusal


def scaffold_correction(own: Weights, server: Weights, relative_size: float = 1.0) -> Weights:
    """What a site adds to its gradient: c / s_k - c_k."""
    return each_tensor(lambda c_k, c: c / relative_size - c_k, own, server)


def scaffold_change(server: Weights, start: Weights, end: Weights, steps: float, lr: float) -> Weights:
    """How a site's control variate changes (option II): (w - y) / (steps lr) - c, w its start, y its end."""
    return each_tensor(lambda c, w, y: (w - y) / (steps * lr) - c, server, start, end)


def scaffold_variate(own: Weights, change: Weights) -> Weights:
    """A site's new control variate: c_k + change."""
    return each_tensor(lambda c_k, delta: c_k + delta, own, change)


def scaffold_server_variate(
    server: Weights, changes: Sequence[Weights], relative: Sequence[float], n_sites: int
) -> Weights:
    """c + (1 / N) sum over the round's sites of s_k (c_k+ - c_k); N counts all sites, in the round or not."""
    updated: Weights = {}
    for name, variate in server.items():
        total = torch.zeros_like(variate)
        for size, change in zip(relative, changes, strict=True):
            total += size * change[name]
        updated[name] = variate + total / n_sites
    return updated


# The gradient of an objective over all of a site's samples at once
# ------------------------------------------------------------------------------


def mean_gradient(site: Site, weights: Weights, objective: Objective) -> Weights:
    """The gradient of the mean objective at these weights, by the name of each trained parameter.

    In inference mode and without augmentation; for objectives of terms that look at logits and labels alone.
    """
    network = site.network(weights).eval()
    parameters = {name: value for name, value in network.named_parameters() if value.requires_grad}
    n, labels = len(site.samples), site.labels
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for start in range(0, n, BATCH):
        places = torch.arange(start, min(start + BATCH, n))
        logits = network(site.samples.take(places))
        own = labels[places].to(logits.device)
        target = (own if site.multilabel else F.one_hot(own, site.n_classes)).to(logits.dtype)
        present = torch.ones(len(places), dtype=logits.dtype, device=logits.device)
        value = objective.value(View(logits=logits, target=target, present=present))
        gradients = torch.autograd.grad(value, list(parameters.values()))
        for name, gradient in zip(parameters, gradients):
            total[name] += gradient * (len(places) / n)
    return {name: value.cpu() for name, value in total.items()}


VARIATE = "scaffold variate"
"""The notebook page that holds c_k; it never leaves the site."""
CORRECTION = "scaffold correction"
"""What the term below needs: c / s_k - c_k, for each parameter."""

Option = Literal["I", "II"]


@dataclass(frozen=True)
class DriftTerm(Term):
    """<w, c - c_k>, whose gradient c - c_k is what SCAFFOLD adds to every local gradient (Alg. 1 line 10)."""

    needs: ClassVar[frozenset[str]] = frozenset({CORRECTION})

    def value(self, view: View) -> Tensor:
        return losses.inner_product(view.parameters, view.tensors(CORRECTION), lead=view.lead)


def mean_steps(count: int, momentum: float) -> float:
    """How many plain steps against one and the same gradient lead as far as `count` steps with momentum.

    sum_{t=1}^{K} (1 - m^t) / (1 - m), K without momentum: so (w - y) / (this * lr) is a mean of the local gradients.
    """
    return sum((1 - momentum**step) / (1 - momentum) for step in range(1, count + 1))


# At a site ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Controlled(Trained):
    """A model trained against its drift."""

    change: Weights | None = disclosed(
        "how the site's control variate changed (option I alone; with II it follows from the model)",
        "model",
        update="",
        default=None,
    )

    def refusal(self, request: TrainControlled, facts: SiteFacts) -> str | None:  # type: ignore[override]
        if (self.change is None) == (request.option == "I"):
            return f"the change of the control variate does not fit option {request.option}"
        problem = super().refusal(request, facts)
        if problem is None and self.change is not None:
            problem = weights_refusal(self.change, request.variate)
        return problem

    def moves(self, request: TrainControlled) -> tuple[tuple[Weights, Weights], ...]:  # type: ignore[override]
        """With option I the change moves the server's variate, so it is judged as well."""
        found = super().moves(request)
        if self.change is None:
            return found
        return (
            *found,
            (self.change, {name: torch.zeros_like(tensor) for name, tensor in self.change.items()}),
        )


@dataclass(frozen=True)
class TrainControlled(Train):
    """Train with the correction c / s_k - c_k, then renew c_k."""

    reply_type: ClassVar[type[Reply]] = Controlled

    variate: Weights = field(default_factory=dict)
    """c, for every parameter of the model; running statistics have none."""
    relative_size: float = 1.0
    """s_k"""
    option: Option = "II"
    loss: Objective | None = None
    """What option I takes the gradient of."""

    def own(self, site: Site) -> Weights:
        """c_k, zero before the first visit."""
        kept: Weights | None = site.notebook.get(VARIATE)
        return kept or {name: torch.zeros_like(value) for name, value in self.variate.items()}

    def extras(self, site: Site) -> dict[str, Extra]:
        correction = scaffold_correction(self.own(site), self.variate, self.relative_size)
        return {CORRECTION: PerParameter(correction)}

    def reply(self, site: Site, result: TrainingResult | None) -> Controlled:
        trained = super().reply(site, result)
        change = self.change(site, trained)
        site.notebook[VARIATE] = scaffold_variate(self.own(site), change)
        sent = change if self.option == "I" else None
        return Controlled(trained.weights, trained.samples, trained.loss, trained.then, sent)

    def change(self, site: Site, trained: Trained) -> Weights:
        """c_k+ - c_k."""
        if self.option == "II":
            return self.change_by_steps(trained)
        assert self.loss is not None
        own, gradient = self.own(site), mean_gradient(site, self.weights, self.loss)
        return {name: gradient[name] - own[name] for name in own}

    def change_by_steps(self, trained: Trained) -> Weights:
        """Option II: (w - y) / (K lr) - c, from what the site and the server both know."""
        count = mean_steps(steps(trained.samples, self.recipe), self.recipe.momentum)
        return scaffold_change(self.variate, self.weights, trained.weights, count, self.recipe.lr)


# At the server -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaffoldState(State):
    """The global model x and the server's control variate c."""

    variate: Weights = field(default_factory=dict)


@methods.register("scaffold")
@dataclass(frozen=True)
class Scaffold(Averaging):
    """Each site corrects its steps by how its gradient differs from everyone's, so that its data pull it less."""

    summary: ClassVar[str] = "Control variates: every local step is corrected by the site's known drift"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """R: communication rounds."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""
    option: Option = "II"
    """How a site renews c_k: from the way it went (II), or by a pass over its samples at the received model (I)."""
    server_lr: Positive = 1.0
    """eta_g: the server's step towards the mean of the sites' models."""
    by_size: bool = True
    """s_k = n_k N / sum n weighs c at a site and its change at the server, as FedDyn's authors released it; false:
    s_k = 1, as printed."""
    clip: AtLeastZero = 10.0
    """Largest gradient norm of a local step; 0 is off."""

    def __post_init__(self) -> None:
        if self.option == "II" and (self.local.optimiser != "sgd" or not 0 <= self.local.momentum < 1):
            raise ConfigError(
                f"train.optimiser = '{self.local.optimiser}' with momentum {self.local.momentum}: SCAFFOLD reads mean "
                "gradients off the steps of sgd with momentum below 1; use that, or method.option = 'I'"
            )

    def start(self, federation: Federation) -> ScaffoldState:
        weights, buffers = federation.initial_weights(), federation.model_buffers()
        variate = {name: torch.zeros_like(value) for name, value in weights.items() if name not in buffers}
        return ScaffoldState(weights, variate)

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(TrainControlled,))]

    def train(self, state: ScaffoldState, federation: Federation) -> ScaffoldState:
        """x + eta_g mean_S (y_k - x); c + (1 / N) sum_S s_k (c_k+ - c_k) (Alg. 1 lines 16-17)."""
        requests = self.requests(state, federation, federation.choose(self.fraction))
        replies = cast("Replies[Controlled]", federation.ask(requests))
        record_loss(federation, replies)
        changes = [
            requests[site].change_by_steps(reply) if reply.change is None else reply.change
            for site, reply in replies.items()
        ]
        sizes = [requests[site].relative_size for site in replies]
        models = [reply.weights for reply in replies.values()]
        return replace(
            state,
            weights=server_step(state.weights, models, server_lr=self.server_lr, merge=self.merge),
            variate=scaffold_server_variate(state.variate, changes, sizes, len(federation.sites)),
        )

    def requests(
        self, state: ScaffoldState, federation: Federation, chosen: Sequence[str]
    ) -> dict[str, TrainControlled]:
        loss = as_objective(plain_loss(federation))
        recipe: Recipe = self.recipe(loss + DriftTerm(), clip=self.clip)
        counts = [float(facts.samples) for facts in federation.facts.values()] if self.by_size else None
        relative = dict(zip(federation.sites, relative_sizes(counts, len(federation.sites))))
        return {
            site: TrainControlled(
                state.weights,
                recipe,
                variate=state.variate,
                relative_size=relative[site],
                option=self.option,
                loss=loss if self.option == "I" else None,
            )
            for site in chosen
        }

    def tiny(self) -> Scaffold:
        return replace(self, rounds=3, fraction=0.6)
