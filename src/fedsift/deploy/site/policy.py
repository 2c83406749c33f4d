"""A site's policy: which requests it answers and what may leave, checked before a request is served and before a reply
is sent.

[policy]
requests = ["Train", "Evaluate"]                    # all that may be asked; anything else is refused
fields = ["Trained.weights", "Evaluated.right"]     # all that a reply may carry
min_count = 10                                      # the smallest group of samples that a reply may describe
clip = 1.0                                          # the longest update
noise = 8.0                                         # Gaussian noise on updates, in units of clip
budget = 2.0                                        # zCDP that all releases of this dataset may cost, ever
dataset = "chest 2024"                              # whose account that is; the site's name by default
audit = false                                       # whether the label audit may send its aggregates
ask_first = true                                    # a run begins here only after `fedsift flower allow RUN --app APP`
passes = 500                                        # how often one request may send all samples through a network
questions = 10000                                   # models of the coordinator's that samples may be judged by, ever
embeddings = 4                                      # ways in which messages may have the pictures made into features

Without `requests` or `fields`, or without the table, a site answers what the installed fedsift knew when the site
approved, by pinning an app: what a newer version brings was not there then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastZero, Count, Positive, RangeChecked
from fedsift.protocol.messages import Reply, Request, RequestEnvelope, SiteFacts
from fedsift.training.private_updates import NoiseMechanism
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest, SiteNotice

AUDIT = frozenset({"CountLabels", "FitFolds", "JudgeGrid", "JudgeLabels"})
"""The label audit's requests: their replies are aggregates of a site's labels."""


@dataclass(frozen=True)
class Policy(RangeChecked):
    """The keys of the `[policy]` table."""

    requests: tuple[str, ...] | None = None
    """Kinds of request that are served, by their names; also those inside another."""
    fields: tuple[str, ...] | None = None
    """Fields of replies that may leave, as `Reply.field`."""
    min_count: Count = 10
    """The smallest group of samples of which a count, a loss, a mean or a cell of a table leaves."""
    clip: Positive | None = None
    """The longest update that leaves; longer ones are shortened."""
    noise: AtLeastZero = 0.0
    """Standard deviation of Gaussian noise on every number of an update, in units of `clip`."""
    budget: Positive | None = None
    """rho of zero-concentrated differential privacy that all updates of the dataset may cost, over all runs."""
    dataset: str = ""
    """The name of the dataset's account; the site's name by default."""
    audit: bool = False
    """Whether the label audit may send its aggregates."""
    ask_first: bool = False
    """Whether the operator must allow each run, with its study (`site.consent.RunTerms`)."""
    passes: Positive = 500.0
    """How often one request may have all of the site's samples sent through a network, in training or to look."""
    questions: Count = 10_000
    """Models of the coordinator's choice of which it may hear how they fit the dataset's labels, over all runs: by many
    crafted ones it could read them one by one."""
    embeddings: Count = 4
    """Kinds of frozen features (an extractor at a size of pictures) that messages may have computed and kept, ever."""

    def __post_init__(self) -> None:
        if self.noise > 0 and self.clip is None:
            raise ConfigError("policy.noise needs policy.clip: without a longest update no noise hides one")
        if self.budget is not None and not self.noise > 0:
            raise ConfigError("policy.budget needs policy.noise (and policy.clip): without noise nothing is private")

    @property
    def mechanism(self) -> NoiseMechanism | None:
        return None if self.clip is None else NoiseMechanism(self.clip, self.noise)

    def objection_to_request(self, asked: Any) -> str | None:
        """Why this is not served, whatever run it belongs to, or None."""
        if isinstance(asked, IntroductionRequest | SiteNotice):
            return None
        if not isinstance(asked, RequestEnvelope):
            return f"a {type(asked).__name__} is nothing that a site answers"
        for name in requests_in(asked.request):
            if name not in (self.requests or ()):
                return f"this site's policy does not allow the request {name}"
            if name in AUDIT and not self.audit:
                return f"this site's policy lets no aggregates of an audit out ({name}): policy.audit = true would"
        return None

    def objection_to_work(self, request: Request[Any], facts: SiteFacts) -> str | None:
        """Why a request asks too much of a site of these sizes, or None; it has looked at no data yet."""
        names = "+".join(requests_in(request))
        classes = max(map(_classes_in, held_in(request, Request)))
        if classes > max(facts.classes, 2):  # yes and no, where a sample has several labels
            return f"{names} speaks of {classes} classes, this site has {facts.classes}: study and site.toml must agree"
        passes = request.work(facts) / facts.everything
        if passes <= self.passes:  # not the other way round: what is no number is too much as well
            return None
        return (
            f"{names} asks for {passes:,.0f} passes over this site's samples, its limit is {self.passes:g}: ask for "
            "fewer epochs or models at once, or let the site raise policy.passes in its site.toml"
        )

    def objection_to_reply(self, reply: Any) -> str | None:
        """Why this does not leave, or None."""
        if isinstance(reply, Introduction):
            if reply.facts.samples < self.min_count:
                return f"this site has fewer samples than its minimum count {self.min_count}"
            return None
        refused = [name for name in fields_in(reply) if name not in (self.fields or ())]
        if refused:
            return f"this site's policy does not let {refused[0]} out"
        small = next(small_counts(reply, self.min_count), None)
        return (
            None if small is None else f"{small} counts fewer samples than this site's minimum count {self.min_count}"
        )


def requests_in(request: Request[Any]) -> Iterator[str]:
    """The names of a request and of all that ride on it; raises ValueError where something else does."""
    if not isinstance(request, Request):
        raise ValueError(f"a {type(request).__name__} is no request")
    yield type(request).__name__
    for part in request.besides:
        yield from requests_in(part)


P = TypeVar("P")


def held_in(value: Any, kind: type[P]) -> Iterator[P]:
    """All values of a kind in a value, itself included, in whatever field."""
    if isinstance(value, kind):
        yield value
    if isinstance(value, tuple | list):
        for item in value:
            yield from held_in(item, kind)
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from held_in(getattr(value, f.name), kind)


def _classes_in(part: Request[Any]) -> int:
    """Classes that a request wants tables for, by the names that requests have for their number."""
    asked, questions = getattr(part, "classes", 0), getattr(part, "questions", ())
    counts = (asked, *questions) if isinstance(questions, tuple) else (asked,)
    return max((count for count in counts if isinstance(count, int)), default=0)


def fields_in(value: Any) -> Iterator[str]:
    """`Reply.field` of every field that holds something, in a reply and in the replies inside it."""
    if isinstance(value, Reply):
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if not _empty(item) and f.metadata.get("statistic") != "replies":  # what they hold is named by itself
                yield f"{type(value).__name__}.{f.name}"
            yield from fields_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from fields_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from fields_in(item)


JUDGING = ("share", "loss", "score", "likelihood")


def judges(reply: Reply) -> bool:
    """Whether a reply says how a model fits the site's samples: a figure, or a table of counts."""
    for part in held_in(reply, Reply):
        for f in dataclasses.fields(part):
            kind, value = f.metadata.get("statistic"), getattr(part, f.name)
            if value is not None and (kind in JUDGING or (kind == "count" and isinstance(value, Tensor))):
                return True
    return False


def without_spares(reply: Any, listed: Collection[str]) -> Any:
    """The reply with None in place of each field that a policy does not list and that the methods can live without."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(reply):
        value = getattr(reply, f.name)
        if f.metadata.get("spare") and f"{type(reply).__name__}.{f.name}" not in listed:
            changes[f.name] = None
        elif isinstance(value, tuple) and any(isinstance(item, Reply) for item in value):
            changes[f.name] = tuple(without_spares(item, listed) for item in value)
    return dataclasses.replace(reply, **changes) if changes else reply


def _empty(item: Any) -> bool:
    return item is None or (isinstance(item, str | list | tuple | Mapping) and not item)


def small_counts(reply: Any, min_count: int) -> Iterator[str]:
    """`Reply.field` of whole numbers in 1 ... min_count - 1, wherever a field counts samples or does not say its kind.

    The requests of fedsift keep the minimum count themselves; this is for those of a plugin, and for mistakes.
    """
    if isinstance(reply, Reply):
        for f in dataclasses.fields(reply):
            item = getattr(reply, f.name)
            if f.metadata.get("statistic", "count") == "count" and _counts_few(item, min_count):
                yield f"{type(reply).__name__}.{f.name}"
            yield from small_counts(item, min_count)
    elif isinstance(reply, tuple | list):
        for item in reply:
            yield from small_counts(item, min_count)


def _counts_few(item: Any, min_count: int) -> bool:
    if isinstance(item, bool | Mapping):  # a model's whole numbers count batches
        return False
    if isinstance(item, int):
        return 0 < item < min_count
    if isinstance(item, Tensor) and not item.is_floating_point() and item.dtype != torch.bool:
        return bool(((item > 0) & (item < min_count)).any())
    return isinstance(item, tuple | list) and any(_counts_few(each, min_count) for each in item)
