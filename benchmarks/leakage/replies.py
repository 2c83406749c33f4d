"""What a curious coordinator reads off the replies of a run: the attacks of `measure`, on whatever really left.

Every field of a reply that speaks of classes, of a model or of public samples is attacked on its own. From each the
coordinator takes the first exchange that brought it, the last, or all of them together; a site that sent nothing of it
is guessed blindly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from benchmarks.leakage.deployed import Left
from benchmarks.leakage.measure import (
    OWN,
    Array,
    as_shares,
    from_losses,
    from_presence,
    from_ratio,
    known,
    told_apart,
)
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.formulas.privacy import posterior
from fedsift.protocol.messages import SiteFacts, Weights
from fedsift.protocol.site import Samples
from fedsift.runtime.in_process import InProcess
from fedsift.training.workers import predict

FROM = ("first", "last", "all")
"""Which exchanges an attack reads."""
LEAST = 0.05
"""TV(equal shares, truth) from which on a site's mix is something to be known; of several findings it may be less."""
PUBLIC = ("PublicReply.outputs", "ContributedModel.outputs")
"""Fields with predictions for public samples."""
PREDICTED = "ModelProfile.output"
"""A prediction for one picture that every site is shown."""

# Fields that speak of classes ----------------------------------------------------------------------------------------


def from_counts(shown: Array, hidden: NDArray[np.bool_], lump: float) -> Array:
    """Shares from counts by class; what is lumped is spread evenly over the classes that are hidden."""
    counts = np.where(hidden, 0.0, shown)
    if hidden.any():
        counts = counts + np.where(hidden, max(lump, 0.0) / hidden.sum(), 0.0)
    return as_shares(counts)


def _of_evaluation(reply: Any) -> Array:
    total = _yes(reply.total.numpy().astype(float), 1)
    return from_counts(total, total == 0, float(reply.rest[1]))


def _yes(numbers: Array, side: int) -> Array:
    """Of several labels a sample, the yes side."""
    return numbers if numbers.ndim == side else numbers[..., 1]


def _of_first_table(reply: Any) -> Array:
    """Given labels by class: `[1, 1, K]` cells, or `[K, 1, 2]` for several labels a sample."""
    cells, lumps = reply.cells.numpy().astype(float), reply.remainders.numpy().astype(float)
    if len(cells) == 1:
        return from_counts(cells[0, 0], cells[0, 0] < 0, lumps[0, 0])
    return as_shares(np.maximum(cells[:, 0, 1], 0.0))


def _of_given(reply: Any, axis: int) -> Array:
    """Labels by given and probable class, `[Q, K, K]`; `axis`: the one of the probable class."""
    counts = np.maximum(reply.cells.numpy().astype(float), 0.0).sum(axis)
    return as_shares(counts[0] if len(counts) == 1 else counts[:, 1])


BY_CLASS: Mapping[str, Callable[[Any], Array]] = {
    "Indicators.values": lambda r: from_losses(r.values.numpy().astype(float), r.held.numpy()),
    "ClassPrototypes.held": lambda r: from_presence(r.held[:, 1].numpy()),
    "RelationRows.held": lambda r: from_presence(r.held.numpy()),
    "RobustlyTrained.centroids": lambda r: from_presence((r.centroids != 0).any(-1).numpy()),
    "UsedCount.positives": lambda r: as_shares(r.positives.numpy().astype(float)),
    "ReleasedCounts.counts": lambda r: posterior(r.counts.numpy(), r.epsilon).clipped,
    "OwnEvaluated.total": _of_evaluation,
    "LabelsCounted.cells": _of_first_table,
    "GridJudged.cells": lambda r: _of_given(r, 1),
    "LabelsJudged.cells": lambda r: _of_given(r, 2),
}
"""A guess of the mix of labels, over all classes or over those that the site annotates, from one reply."""
UNREAD: Mapping[str, str] = {
    "ClassPrototypes.prototypes": "read by which of them exist (ClassPrototypes.held)",
    "ClassPrototypes.difficulty": "of classes that the site does not annotate",
    "RelationRows.rows": "read by which of them exist (RelationRows.held)",
    "Indicators.held": "read with Indicators.values",
    "OwnEvaluated.right": "at most OwnEvaluated.total",
    "OwnEvaluated.rest": "read with OwnEvaluated.total",
    "LabelsCounted.remainders": "read with LabelsCounted.cells",
    "LabelsCounted.rest": "nothing: there is one row",
    "FoldsFitted.models": "for heads on frozen features alone",
    "FoldsFitted.likelihoods": "for heads on frozen features alone",
    "GridJudged.nats": "not by class",
    "GridJudged.faithful": "not by class",
    "GridJudged.remainders": "what is lumped, over all classes",
    "GridJudged.rest": "what is lumped, over all classes",
    "LabelsJudged.wrong": "how many labels are wrong",
    "LabelsJudged.remainders": "what is lumped, over all classes",
    "LabelsJudged.rest": "what is lumped, over all classes",
    "FittedFilter.filter": "two components of losses, not by class",
    "TrainedBehindFilter.filter": "two components of losses, not by class",
    "Controlled.change": "with option I alone, which is not the default",
}
"""Arrays in replies that no attack reads by themselves, and why."""


# What the coordinator knows ------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """The federation as the coordinator sees it, and the truth that its guesses are held against."""

    federation: InProcess
    facts: Mapping[str, SiteFacts]
    """What the sites declared on joining."""
    _memory: dict[int, Tensor] = field(default_factory=dict)

    @property
    def own(self) -> NDArray[np.int64]:
        """Rows of labelled samples of the coordinator's own."""
        return self.federation.federated.dataset.test[:OWN]

    @property
    def strangers(self) -> NDArray[np.int64]:
        """Rows that no site has and the coordinator does not know."""
        return self.federation.federated.dataset.test[OWN:]

    def active(self, site: str) -> NDArray[np.int64]:
        """Classes that the site says it annotates: no secret."""
        annotated = self.facts[site].annotated
        return np.arange(len(self.federation.classes)) if annotated is None else np.array(annotated)

    def secret(self, site: str) -> Array:
        """The site's mix of labels, over its active classes."""
        given = self.federation.federated.given[site]
        counts = given.sum(0) if given.ndim == 2 else np.bincount(given, minlength=len(self.federation.classes))
        return as_shares(counts.astype(float)[self.active(site)])

    def logits(self, weights: Weights) -> Tensor:
        """Of all samples there are, `[n, K]`; those of a model that went to all sites are worked out once."""
        if id(weights) not in self._memory:
            data = self.federation.federated.dataset
            every = Samples(self.federation._pool, torch.arange(len(data.images)), data.mean, data.std)
            self._memory[id(weights)] = predict(
                self.federation.model, weights, every, len(data.classes), self.federation.compute
            )
        return self._memory[id(weights)]

    def frequencies(self, logits: Tensor) -> Array:
        """How often each class is predicted, `[n, K] -> [K]`."""
        shares = torch.sigmoid(logits) if self.federation.multilabel else torch.softmax(logits, -1)
        return shares.double().mean(0).numpy()

    def losses(self, logits: Tensor, site: str) -> Array:
        """Of every sample, with its true labels of the site's classes, `[n]`."""
        labels = torch.from_numpy(self.federation.federated.dataset.labels)
        if not self.federation.multilabel:
            return F.cross_entropy(logits, labels, reduction="none").double().numpy()
        active = torch.from_numpy(self.active(site))
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return each[:, active].double().mean(-1).numpy()


# Reading -------------------------------------------------------------------------------------------------------------


@dataclass
class Evidence:
    """By field and site, in the order of the exchanges."""

    mixes: dict[str, dict[str, list[Array]]] = field(default_factory=dict)
    """Guesses of the mix of labels over the active classes."""
    scores: dict[str, dict[str, list[tuple[Array, Array]]]] = field(default_factory=dict)
    """How much samples look like the site's: of its own ones, and of strangers."""

    def guess(self, name: str, site: str, shares: Array) -> None:
        self.mixes.setdefault(name, {}).setdefault(site, []).append(shares)

    def score(self, name: str, site: str, inside: Array, outside: Array) -> None:
        self.scores.setdefault(name, {}).setdefault(site, []).append((inside, outside))


def read(left: Sequence[Left], reader: Reader) -> Evidence:
    """Every attack on every reply."""
    found = Evidence()
    for each in left:
        kind, active = type(each.reply).__name__, reader.active(each.site)
        for name, make in BY_CLASS.items():
            if name.startswith(f"{kind}."):
                shares = make(each.reply)
                if len(shares) == len(reader.federation.classes):
                    shares = as_shares(shares[active])
                if len(shares) == len(active):  # an indicator may be one number for all classes
                    found.guess(name, each.site, shares)
        for name, model, start in models_in(each):
            _read_model(found, name, each.site, reader, reader.logits(model), reader.logits(start))
    for exchange in _exchanges(left):
        _read_predictions(found, exchange, reader)
    return found


def updates_of(each: Left) -> Iterable[tuple[str, Any, Any]]:
    """Fields with updates that are not empty, with what they started from; None for nothing."""
    for entry in dataclasses.fields(each.reply):
        value, start = getattr(each.reply, entry.name), entry.metadata["update"]
        if entry.metadata["statistic"] == "model" and value is not None and len(value):
            yield (
                f"{type(each.reply).__name__}.{entry.name}",
                value,
                getattr(each.request, start) if start else None,
            )


def models_in(each: Left) -> Iterable[tuple[str, Weights, Weights]]:
    """Models in a reply, each with the one that the site began from."""
    for name, value, start in updates_of(each):
        if name not in UNREAD:
            pairs = [(value, start)] if isinstance(value, Mapping) else zip(value, start, strict=True)
            yield from ((name, model, sent) for model, sent in pairs)


def lengths(left: Sequence[Left]) -> list[float]:
    """Of every update that left, as clipping measures it."""
    found = []
    for each in left:
        for _, model, start in models_in(each):
            moved = [t.double() - start[n].double() for n, t in model.items() if t.is_floating_point()]
            found.append(math.sqrt(sum(float(move.square().sum()) for move in moved)))
    return found


def _read_model(found: Evidence, name: str, site: str, reader: Reader, after: Tensor, before: Tensor) -> None:
    own, active = torch.from_numpy(reader.own), reader.active(site)
    often = [reader.frequencies(logits[own])[active] for logits in (after, before)]
    found.guess(name, site, from_ratio(*often))
    fall = np.nan_to_num(reader.losses(before, site) - reader.losses(after, site))
    found.score(name, site, fall[reader.federation.federated.rows[site]], fall[reader.strangers])


def _exchanges(left: Sequence[Left]) -> list[list[Left]]:
    """Replies of one moment together, where they hold predictions."""
    found: dict[str, list[Left]] = {}
    for each in left:
        if any(name.startswith(f"{type(each.reply).__name__}.") for name in (*PUBLIC, PREDICTED)):
            found.setdefault(each.moment.id, []).append(each)
    return list(found.values())


def _read_predictions(found: Evidence, exchange: Sequence[Left], reader: Reader) -> None:
    """Predictions beside those of the other sites: there may be no common model to compare them with."""
    told = {each.site: (each, outputs) for each in exchange if (outputs := _probabilities(each)) is not None}
    if not told:
        return
    common = np.mean([outputs.mean(0) for _, outputs in told.values()], axis=0)
    for site, (each, outputs) in told.items():
        name, active = _field_of(each), reader.active(site)
        found.guess(name, site, from_ratio(outputs.mean(0)[active], common[active]))
        if name in PUBLIC:
            rows = _public_rows(each, reader)
            order = np.argsort(rows)  # every exchange has a shuffle of its own
            sure, rows, federated = outputs.max(-1)[order], rows[order], reader.federation.federated
            somewhere = np.concatenate([*federated.rows.values(), *federated.held_out.values()])
            inside, outside = np.isin(rows, federated.rows[site]), ~np.isin(rows, somewhere)
            found.score(name, site, sure[inside], sure[outside])


def _field_of(each: Left) -> str:
    kind = type(each.reply).__name__
    return next(name for name in (*PUBLIC, PREDICTED) if name.startswith(f"{kind}."))


def _probabilities(each: Left) -> Array | None:
    """float64 `[n, K]`, or None where no prediction was asked for."""
    outputs = getattr(each.reply, _field_of(each).partition(".")[2])
    if outputs is None:
        return None
    show = getattr(each.request, "show", None)
    if show is not None and show.kind == "logits":
        outputs = torch.softmax(outputs, -1)
    found: Array = outputs.reshape(-1, outputs.shape[-1]).double().numpy()
    return found


def _public_rows(each: Left, reader: Reader) -> NDArray[np.int64]:
    """Rows of the dataset whose predictions these are."""
    public = reader.federation.federated.public
    request: Any = each.request
    assert public is not None
    positions = request.show.part.positions(each.moment.seed, len(public.rows))
    rows: NDArray[np.int64] = public.rows[positions.numpy()]
    return rows


# How much that is ----------------------------------------------------------------------------------------------------


def figures(found: Evidence, reader: Reader) -> tuple[dict[str, float], dict[str, float]]:
    """Label mix and member by `Reply.field, exchanges`: means over all sites."""
    sites = reader.federation.sites
    uneven = [
        site for site in sites if 0.5 * np.abs(reader.secret(site) - 1.0 / len(reader.active(site))).sum() >= LEAST
    ]
    labels, member = {}, {}
    for name, mixes in found.mixes.items():
        for which in FROM:
            values = [
                known(np.mean(_chosen(mixes[site], which), axis=0), reader.secret(site)) if site in mixes else 0.0
                for site in uneven
            ]
            labels[f"{name}, {which}"] = float(np.mean(values))
    for name, scores in found.scores.items():
        for which in FROM:
            member[f"{name}, {which}"] = float(np.mean([_area(_chosen(scores.get(site, []), which)) for site in sites]))
    return labels, member


def _chosen(values: list[Any], which: str) -> list[Any]:
    return values[:1] if which == "first" else values[-1:] if which == "last" else values


def _area(scores: list[tuple[Array, Array]]) -> float:
    """Scores of several exchanges count alike: of the same samples they are averaged, of others put side by side."""
    if not scores:
        return 0.5
    if len({(len(inside), len(outside)) for inside, outside in scores}) == 1:
        inside, outside = (np.mean([each[side] for each in scores], axis=0) for side in (0, 1))
    else:
        inside, outside = (np.concatenate([each[side] for each in scores]) for side in (0, 1))
    return told_apart(inside, outside) if len(inside) and len(outside) else 0.5
