"""The requests that most methods share: train, evaluate and measure indicators, with their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsift.detection.indicators import confidence, lid, per_class_mean
from fedsift.formulas import losses
from fedsift.formulas.metrics import confusion
from fedsift.formulas.small_counts import RightBounds, lumped_counts, right_bounds
from fedsift.models.factory import build_model
from fedsift.protocol.messages import R_co, Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training.dispatch import train_many
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import Extra
from fedsift.training.plan import reach
from fedsift.training.predict import logits_of, site_logits
from fedsift.training.recipe import Augment, Recipe


def weights_refusal(weights: Any, wanted: Weights) -> str | None:
    """Why these cannot be new values of that model: keys, shapes (no broadcasting) and dtypes must agree."""
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        return "the weights are not a dictionary of tensors"
    if set(weights) != set(wanted):
        odd = sorted(set(weights) ^ set(wanted))[:3]
        return f"the weights' keys differ from the model's: {', '.join(odd)}"
    for name, value in wanted.items():
        got = weights[name]
        if got.shape != value.shape:
            return f"'{name}' has shape {tuple(got.shape)}, the model has {tuple(value.shape)}"
        if got.dtype != value.dtype:
            return f"'{name}' is {got.dtype}, the model has {value.dtype}"
    return None


def count_refusal(what: str, count: Any, most: int, least: int = 1) -> str | None:
    """Why this is no plausible number of the site's samples."""
    if not isinstance(count, int) or isinstance(count, bool):
        return f"{what} is {count!r}, not a whole number"
    if not least <= count <= most:
        return f"{what} = {count} is outside {least} to {most}, which the site declared"
    return None


def counts_refusal(counted: RightCounts, most: int, facts: SiteFacts) -> str | None:
    """Why these are no counts of that many judged samples, at most `most`, over the classes that the site declared."""
    wanted = facts.judged
    parts = {"right": wanted, "total": wanted, "rest": (2,)}
    for name, shape in parts.items():
        value: Tensor = getattr(counted, name)
        if value.dtype != torch.int64 or tuple(value.shape) != shape:
            return f"{name} has shape {tuple(value.shape)} and type {value.dtype}, {shape} whole numbers are due"
    reason = count_refusal("samples", counted.samples, most, least=0) or count_refusal(
        "min_count", counted.min_count, most, least=0
    )
    if reason is not None:
        return reason
    due = counted.samples * (facts.classes if facts.multilabel else 1)
    if int(counted.total.sum() + counted.rest[1]) != due:
        return f"the counts add up to {int(counted.total.sum() + counted.rest[1])}, {due} are due"
    if bool((counted.right > counted.total).any()) or bool(counted.rest[0] > counted.rest[1]):
        return "more samples are right than there are"
    return None


@dataclass(frozen=True)
class TrainingRequest(Request[R_co]):
    """Base of all requests that train: what to train, and what to say of it. Sites of one process train together.

    `job`, `further` and `reply` belong to one visit: what the first leaves on `site.workbench` the others find there.
    """

    def job(self, site: Site) -> TrainingJob | None:
        """What the site trains; None: nothing in this visit."""
        raise TypeError(f"{type(self).__name__} does not say what a site trains")

    def further(self, site: Site, result: TrainingResult) -> TrainingJob | None:
        """What the site trains next in the same visit, now that this came of the last part; None: nothing more."""
        return None

    def reply(self, site: Site, result: TrainingResult | None) -> R_co:
        """What leaves the site; `result` is of the last part, None when nothing was trained."""
        raise TypeError(f"{type(self).__name__} does not say what a site replies")

    def answer(self, site: Site) -> R_co:
        [reply] = self.answer_many([(self, site)])
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, self.reply_type)
        return cast(R_co, reply)

    @classmethod
    def answer_many(cls, work: Sequence[tuple[Any, Site]]) -> list[Any]:
        outcomes: list[Any] = [None] * len(work)
        wanted = {place: _failure_as_value(request.job, site) for place, (request, site) in enumerate(work)}
        while wanted:
            jobs = {place: job for place, job in wanted.items() if isinstance(job, TrainingJob)}
            results = dict(zip(jobs, train_many(list(jobs.values()))))
            errors = {place: job for place, job in wanted.items() if isinstance(job, Exception)}
            for place, outcome in {**results, **errors}.items():
                outcomes[place] = outcome
            trained = {place: result for place, result in results.items() if isinstance(result, TrainingResult)}
            for place, result in trained.items():
                jobs[place].remember(result)
            wanted = {
                place: _failure_as_value(work[place][0].further, work[place][1], result)
                for place, result in trained.items()
            }
        return [
            outcome if isinstance(outcome, Exception) else _failure_as_value(request.reply, site, outcome)
            for (request, site), outcome in zip(work, outcomes)
        ]


def _failure_as_value(step: Callable[..., Any], *arguments: Any) -> Any:
    """A site's failure is its own: a value in the place of its answer."""
    try:
        return step(*arguments)
    except Exception as error:
        return error


@dataclass(frozen=True)
class Trained(Reply):
    """What local training gives back."""

    fewest: ClassVar[int] = 1
    """Samples that a site must have trained on for its reply to make sense."""

    weights: Weights = disclosed("the site's model after local training", "model", update="weights")
    samples: int = disclosed("how many samples it trained on", "count")
    loss: float | None = disclosed("mean training loss over the local steps", "loss", spare=True)
    then: tuple[Reply, ...] = disclosed("replies to what else was asked in the same visit", "replies", default=())

    def refusal(self, request: Train, facts: SiteFacts) -> str | None:
        if len(self.then) != len(request.besides):
            return f"{len(self.then)} follow-up replies to {len(request.besides)} follow-up requests"
        inner = (
            f"follow-up {type(asked).__name__} was answered by {type(reply).__name__}"
            if not isinstance(reply, asked.reply_type)
            else reply.refusal(asked, facts)
            for asked, reply in zip(request.besides, self.then)
        )
        return (
            weights_refusal(self.weights, request.weights)
            or count_refusal("samples", self.samples, facts.samples, self.fewest)
            or next((reason for reason in inner if reason), None)
        )

    def moves(self, request: Train) -> tuple[tuple[Weights, Weights], ...]:
        return ((self.weights, request.weights),)


@dataclass(frozen=True)
class Train(TrainingRequest[Trained]):
    """Train the site's network from these weights by this recipe; measure the result in the same visit."""

    reply_type: ClassVar[type[Reply]] = Trained

    weights: Weights
    recipe: Recipe
    then: tuple[Request[Any], ...] = ()
    """Asked of the site right after training; one whose weights are None looks at the model just trained."""
    before: tuple[Request[Any], ...] = ()
    """Asked of the site right before training; one whose weights are None looks at the model received."""

    @property
    def besides(self) -> tuple[Request[Any], ...]:
        """What is asked in the same visit, in the order of the replies in `Trained.then`."""
        return (*self.before, *self.then)

    def reach(self, samples: int) -> float:
        return reach(samples, self.recipe)

    def job(self, site: Site) -> TrainingJob:
        site.workbench["trained"] = self.weights
        site.workbench["before"] = tuple(ahead.answer(site) for ahead in self.before)
        return TrainingJob(site, self.weights, self.recipe, extras=self.extras(site))

    def extras(self, site: Site) -> dict[str, Extra]:
        """What the loss terms need of this site besides; nothing for most."""
        return {}

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        assert result is not None
        site.workbench["trained"] = result.weights
        then = tuple(follow.answer(site) for follow in self.then)
        return Trained(result.weights, len(site.samples), result.loss, site.workbench["before"] + then)


@dataclass(frozen=True)
class RightCounts(Reply):
    """How many samples a model gets right; counts add up over sites.

    A whole table of given and predicted classes would be cells of one and two, which no site with a minimum count lets
    out.
    """

    right: Tensor = disclosed(
        "samples of each class that the model gets right, [K] (multi-label: without and with the class, [K, 2]); "
        "0 for a class that is lumped, 0 or the site's minimum count for a number below it",
        "count",
        least=0,
    )
    total: Tensor = disclosed(
        "samples of each class, in the same shape; 0 for a class that is lumped", "count", least=0
    )
    rest: Tensor = disclosed(
        "right (to a multiple of the site's minimum count) and all samples of the classes below it, [2]",
        "count",
        least=0,
    )
    loss: float = disclosed(
        "mean loss on these samples (with a minimum count: of the classes sent, each at most 10, to two digits)",
        "loss",
        least=0.0,
    )
    samples: int = disclosed("how many samples there are", "count")
    min_count: int = disclosed(
        "the minimum count by which classes were lumped and numbers rounded; 0: none were", "setting", least=0
    )

    @property
    def bounds(self) -> RightBounds:
        """Between which the true numbers lie."""
        return right_bounds(self.right.numpy(), self.total.numpy(), self.rest.numpy(), self.min_count)


@dataclass(frozen=True)
class Evaluated(RightCounts):
    """Counts on the site's held-out samples."""

    def refusal(self, request: Evaluate, facts: SiteFacts) -> str | None:
        return counts_refusal(self, facts.held_out, facts)


@dataclass(frozen=True)
class Evaluate(Request[Evaluated]):
    """Evaluate a model on the site's held-out samples."""

    reply_type: ClassVar[type[Reply]] = Evaluated

    weights: Weights | None

    def answer(self, site: Site) -> Evaluated:
        if site.held_out is None or site.held_out_given is None or not site.suppress_small(len(site.held_out)):
            return Evaluated(*nothing_counted(site.facts))
        logits = logits_of(site.network(site.weights_for(self.weights)), site.held_out)
        return Evaluated(*counted(logits, site.held_out_given, multilabel=site.multilabel, min_count=site.min_count))


CountedParts: TypeAlias = tuple[Tensor, Tensor, Tensor, float, int, int]
"""The fields of `RightCounts`, in their order."""


def nothing_counted(facts: SiteFacts) -> CountedParts:
    none = torch.zeros(facts.judged, dtype=torch.int64)
    return none, none.clone(), torch.zeros(2, dtype=torch.int64), 0.0, 0, 0


LOSS_CAP = 10.0
"""The most that one sample, or one answer about it, adds to the loss of a site with a minimum count."""
LOSS_DIGITS = 2


def counted(logits: Tensor, labels: Tensor, *, multilabel: bool, min_count: int = 0) -> CountedParts:
    """Counts and mean loss of predictions `[n, K]` against labels; classes below the minimum count are lumped."""
    k = logits.shape[-1]
    if multilabel:
        hit = (logits > 0).to(torch.int64) == labels
        sides = torch.stack([labels == 0, labels != 0], -1)
        right, total = (hit.unsqueeze(-1) & sides).sum(0), sides.sum(0)
        each = losses.binary_cross_entropy(logits, labels.to(logits.dtype))
        loss = float(each.mean())
    else:
        table = torch.from_numpy(confusion(labels.numpy(), logits.argmax(-1).numpy(), k))
        right, total = table.diagonal().clone(), table.sum(1)
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss = float(torch.nn.functional.cross_entropy(logits, labels))
    sent = [torch.from_numpy(part) for part in lumped_counts(right.numpy(), total.numpy(), min_count)]
    samples = len(labels)
    if min_count > 1:
        shown = sent[1].reshape(k, -1).sum(-1) > 0
        loss = _released_loss(each[:, shown] if multilabel else each[shown[labels]])
        samples = samples if int(sent[1].sum() + sent[2][1]) else 0
    return *sent, loss, samples, min_count if min_count > 1 else 0  # type: ignore[return-value]


def _released_loss(each: Tensor) -> float:
    """The mean over classes that are not lumped; 0 where none is. A few lumped samples do not show in it, however large
    a model makes their losses."""
    if each.numel() == 0:
        return 0.0
    capped = each.double().nan_to_num(nan=LOSS_CAP, posinf=LOSS_CAP).clamp(max=LOSS_CAP)
    return round(float(capped.mean()), LOSS_DIGITS)


@dataclass(frozen=True)
class Indicators(Reply):
    """A site's noise indicator: one value, or one for each class."""

    values: Tensor = disclosed("the indicator (mean loss, LID or confidence), [K] or [1]", "score", least=0.0, most=1e9)
    held: Tensor = disclosed(
        "which of these classes the site has samples of, as many as its minimum count, [K] or [1]", "flag"
    )
    samples: int = disclosed("how many samples it was measured on", "count")

    def refusal(self, request: Indicate, facts: SiteFacts) -> str | None:
        width = request.classes if request.per_class else 1
        if self.values.shape != (width,) or self.held.shape != (width,):
            return f"the indicator has shape {tuple(self.values.shape)}, asked were ({width},)"
        if self.held.dtype != torch.bool or not self.values.is_floating_point():
            return "the indicator's types are wrong"
        return count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class Indicate(Request[Indicators]):
    """Measure how badly a model's view and the site's labels disagree (FedNoRo section 4.1, Table 3)."""

    reply_type: ClassVar[type[Reply]] = Indicators

    weights: Weights | None
    classes: int
    kind: Literal["loss", "lid", "confidence"] = "loss"
    per_class: bool = True
    augment: Augment | None = None
    """Measure on augmented images, as released code does; None measures on the images themselves."""

    def answer(self, site: Site) -> Indicators:
        logits = site_logits(site, site.weights_for(self.weights), augment=self.augment)
        labels = site.labels
        values = _per_sample(self.kind, logits, labels)
        if self.per_class:
            table = per_class_mean(values, labels.numpy(), self.classes, least=site.min_count)
        else:
            table = np.array([values.mean()])
        held = ~np.isnan(table)
        return Indicators(torch.from_numpy(np.where(held, table, 0.0)), torch.from_numpy(held), len(labels))


def _per_sample(kind: str, logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    if kind == "loss":
        per_sample = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
        return np.asarray(per_sample.numpy())
    probabilities = torch.softmax(logits, -1).numpy()
    return lid(probabilities) if kind == "lid" else confidence(probabilities, labels.numpy())


__all__ = ["ComputeSettings", "LocalSite", "Samples", "Site"]


@dataclass
class LocalSite(Site):
    """The site that transports create: a `Site` with networks and training."""

    def network(self, weights: Weights, slot: str = "main") -> nn.Module:
        module = _module(self.facts.model, self.samples.shape, self.n_classes, self.compute.device, slot)
        module.load_state_dict(weights)
        return module


@lru_cache(maxsize=16)
def _module(name: str, shape: tuple[int, ...], n_classes: int, device: str, slot: str) -> nn.Module:
    return build_model(name, shape, n_classes, seed=0).to(device)
