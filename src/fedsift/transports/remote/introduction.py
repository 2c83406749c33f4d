"""The first exchange with a site: its name, version, classes and facts, and whether they agree with the federation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedsift.core.errors import ConfigError
from fedsift.core.text import visible
from fedsift.core.type_checks import schema_error, shown
from fedsift.core.version import __version__
from fedsift.models.factory import build_model
from fedsift.protocol.messages import Reply, Request, SiteFacts, disclosed
from fedsift.training.features import unknown_network

LONGEST_NAME = 200
LONGEST_VERSION = 64
MOST_SAMPLES = 10**9
MOST_CLASSES = 10_000
LARGEST_SAMPLE = 10**8
"""Numbers in one sample: the network that would take a larger one fits no machine."""
MOST_SIDES = 4
"""Channels, and depth, height and width."""
MOST_CHANNELS = 64
LARGEST_NETWORK = 10**9
"""Numbers in a network that a site brings: a larger one would fill the coordinator's memory."""
SCALES = (1e-6, 1e6)
"""Between which a standard deviation lies; by one further out, samples become infinite or all alike."""
DIGEST = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True)
class Introduction(Reply):
    """What a site declares of itself on joining."""

    facts: SiteFacts = disclosed("the site's name, its number of training and held-out samples, its network", "setting")
    classes: tuple[str, ...] = disclosed("the names of the classes, in the site's order", "setting")
    multilabel: bool = disclosed("whether a sample may have several labels", "setting")
    shape: tuple[int, ...] = disclosed("the shape of one sample", "setting")
    mean: tuple[float, ...] = disclosed("the mean that the site normalises by (the same at every site)", "setting")
    std: tuple[float, ...] = disclosed(
        "the standard deviation that the site normalises by (the same at every site)", "setting"
    )

    version: str = disclosed("the version of fedsift that the site runs", "setting", default="")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        own = self.facts
        texts = (own.name, own.model, *self.classes)
        if not own.name.strip() or any(visible(text) != text or len(text) > LONGEST_NAME for text in texts):
            return "the site's name, its network or a class is empty, too long or holds signs that do not show"
        reason = self._miscounted() or self._misnamed() or self._misshapen()
        return None if reason is None else f"site '{own.name}' {reason}"

    def _miscounted(self) -> str | None:
        own = self.facts
        counts = (own.samples, own.held_out, own.public, own.test)
        if own.samples < 1:
            return "has no training sample"
        if min(counts) < 0:
            return "counts fewer than no samples"
        if max(counts) > MOST_SAMPLES:
            return f"counts {max(counts)} samples, {MOST_SAMPLES} are the most"
        if not DIGEST.fullmatch(own.public_digest) or (own.public and not own.public_digest):
            return f"has {own.public} public samples with the fingerprint '{shown(own.public_digest)}'"
        return None

    def _misnamed(self) -> str | None:
        own, annotated = self.facts, self.facts.annotated or ()
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            return "names no class, or one twice"
        if len(self.classes) > MOST_CLASSES:
            return f"names {len(self.classes)} classes, {MOST_CLASSES} are the most"
        if (own.classes, own.multilabel) != (len(self.classes), self.multilabel):
            return f"declares {own.classes} classes and names {len(self.classes)}"
        if any(not 0 <= k < own.classes for k in annotated) or len(set(annotated)) != len(annotated):
            return "annotates a class that it does not name, or one twice"
        if visible(self.version) != self.version or len(self.version) > LONGEST_VERSION:
            return f"runs a fedsift of version '{shown(self.version)}'"
        return None

    def _misshapen(self) -> str | None:
        if not 1 <= len(self.shape) <= MOST_SIDES:
            return f"has samples of a shape with {len(self.shape)} sides"
        if min(self.shape) < 1 or math.prod(self.shape) > LARGEST_SAMPLE:
            return f"has samples of shape {self.shape}"
        # a row of features does not show how many channels its pictures had
        fitting = (1, self.shape[0]) if len(self.shape) > 1 else range(1, MOST_CHANNELS + 1)
        if any(len(each) not in fitting for each in (self.mean, self.std)):
            return f"has samples of shape {self.shape}, {len(self.mean)} means and {len(self.std)} deviations"
        low, high = SCALES
        if not all(low <= s <= high for s in self.std):
            return f"divides by std {self.std}"
        return None if all(abs(m) <= high for m in self.mean) else f"subtracts the mean {self.mean}"


@dataclass(frozen=True)
class IntroductionRequest(Request[Introduction]):
    """Sent to a Flower node whose site is not known yet."""

    reply_type: ClassVar[type[Reply]] = Introduction


@dataclass(frozen=True)
class Acknowledged(Reply):
    """Confirms that a site has received a notice."""


@dataclass(frozen=True)
class SiteNotice(Request[Acknowledged]):
    """A message for a site's operator: why the site cannot take part, and how to fix it."""

    reply_type: ClassVar[type[Reply]] = Acknowledged

    text: str


@dataclass(frozen=True)
class NoSite(Reply):
    """A simulated node for which the federation has no site."""


def unsound(introduction: Introduction, networks: Collection[str] = ()) -> str | None:
    """Why this is no introduction at all, whatever the others say, or None.

    `networks`: those that the coordinator's own study names; of others only registered ones are ever built.
    """
    try:
        reason = schema_error(introduction, Introduction, "the introduction")
        reason = reason or introduction.refusal(None, introduction.facts)
        return reason or _foreign_network(introduction, networks)
    except Exception as error:  # it may hold anything
        return f"the introduction cannot be checked: {type(error).__name__}: {error}"


def _foreign_network(introduction: Introduction, networks: Collection[str]) -> str | None:
    """Why the coordinator does not build what the site says that it trains."""
    name, where = introduction.facts.model, f"site '{introduction.facts.name}'"
    reason = unknown_network(name, networks)
    if reason is not None:
        return f"{where}: {reason}: install what registers it or, if you know its code, name it in the study's [model]"
    if not name or name in networks:
        return None  # the study's own word: what is wrong with it is to be heard as the study's mistake
    try:
        with torch.device("meta"):  # sizes without memory
            state = build_model(name, introduction.shape, len(introduction.classes)).state_dict()
    except Exception as error:
        return f"{where} trains '{name}', which takes no samples of shape {introduction.shape}: {error}"
    size = sum(tensor.numel() for tensor in state.values())
    return None if size <= LARGEST_NETWORK else f"{where} trains '{name}' with {size} numbers, too many"


def disagreement(own: Introduction, common: Introduction) -> str | None:
    """Why this site cannot take part beside the others, or None if it can."""
    where = f"site '{own.facts.name}'"
    reason = other_version(own, common.version) or other_classes(own, common.classes)
    if reason is not None:
        return reason
    if own.multilabel != common.multilabel:
        return f"{where} and the federation differ on whether a sample may have several labels"
    if own.shape != common.shape:
        return f"{where} has samples of shape {own.shape}, the federation {common.shape}: bring them to one size"
    if own.mean != common.mean or own.std != common.std:
        return (
            f"{where} normalises by mean {own.mean} and std {own.std}, the federation by {common.mean} "
            f"and {common.std}: write the federation's into its site.toml"
        )
    return None


def other_version(own: Introduction, version: str) -> str | None:
    if own.version == version:
        return None
    return (
        f"site '{own.facts.name}' runs fedsift {own.version or 'of an older version'}, the federation runs {version}: "
        "install the same version everywhere"
    )


def other_classes(own: Introduction, classes: tuple[str, ...]) -> str | None:
    if own.classes == classes:
        return None
    where = f"site '{own.facts.name}'"
    if sorted(own.classes) == sorted(classes):
        return (
            f"{where} has the federation's classes in another order ({listed(own.classes)}; the federation has "
            f"{listed(classes)}): write them into its site.toml in that order"
        )
    return (
        f"{where} has classes {listed(own.classes)}, the federation has {listed(classes)}: "
        "write the same names in the same order into its site.toml"
    )


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


# Agreement of the sites
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassAgreement:
    """What the coordinator's own files ask of every site; what they leave open, most of the sites decide."""

    classes: tuple[str, ...] = ()
    """Class names in their order; none: those of most sites."""
    networks: tuple[str, ...] = ()
    """The study's networks, where its method needs one at every site; none: sites may differ."""
    public: bool = False
    """Whether the method needs the same public samples at every site."""


def agree(
    roster: Mapping[str, Introduction],
    set_aside: Callable[[str, str], None] | None = None,
    terms: ClassAgreement | None = None,
    at_least: int | None = None,
) -> dict[str, Introduction]:
    """The sites that can take part together. The others are set aside while there are `at_least` without them.

    `set_aside`: is given each site that differs, and why. `at_least`: None for all of them.
    """
    terms, needed = terms or ClassAgreement(), len(roster) if at_least is None else max(1, at_least)
    _check_own_classes(roster, terms)
    reasons = {site: reason for site, own in roster.items() if (reason := _against(own, terms))}
    kept = {site: own for site, own in roster.items() if site not in reasons}
    if kept:
        common = replace(_most(kept, terms), version=__version__)
        differ = ((site, disagreement(own, common) or _other_public(own, common, terms)) for site, own in kept.items())
        reasons |= {site: reason for site, reason in differ if reason}
    for site, reason in reasons.items():
        if set_aside is not None:
            set_aside(site, reason)
    if len(roster) - len(reasons) < needed:
        raise ConfigError("; ".join(list(reasons.values())[:3]))
    return {site: own for site, own in roster.items() if site not in reasons}


def _check_own_classes(roster: Mapping[str, Introduction], terms: ClassAgreement) -> None:
    """Where nobody has the coordinator's classes, its own files are the likelier mistake."""
    if terms.classes and all(own.classes != terms.classes for own in roster.values()):
        site, own = next(iter(roster.items()))
        raise ConfigError(
            f"the coordinator's files name the classes {listed(terms.classes)}, and no site has these (site '{site}' "
            f"has {listed(own.classes)}): correct `classes` or [test] in federation.toml, or the sites' site.toml"
        )


def _against(own: Introduction, terms: ClassAgreement) -> str | None:
    """Why the coordinator's own files speak against this site, whatever the others say."""
    reason = other_version(own, __version__) or (other_classes(own, terms.classes) if terms.classes else None)
    if reason is not None or not terms.networks or own.facts.model in terms.networks:
        return reason
    return (
        f"site '{own.facts.name}' trains the network '{own.facts.model}', the study '{terms.networks[0]}' at every "
        "site: remove `model` from its site.toml"
    )


Aspect = tuple[str, Callable[[Introduction], Any], Callable[[Introduction], str]]
ASPECTS: tuple[Aspect, ...] = (
    ("classes", lambda own: own.classes, lambda own: listed(own.classes)),
    (
        "labels",
        lambda own: own.multilabel,
        lambda own: "several a sample" if own.multilabel else "one a sample",
    ),
    ("samples of shape", lambda own: own.shape, lambda own: str(own.shape)),
    ("mean and std", lambda own: (own.mean, own.std), lambda own: f"{own.mean} and {own.std}"),
)
PUBLIC: Aspect = (
    "public samples",
    lambda own: (own.facts.public, own.facts.public_digest),
    lambda own: f"{own.facts.public} with fingerprint {own.facts.public_digest[:8]}",
)


def _most(roster: Mapping[str, Introduction], terms: ClassAgreement) -> Introduction:
    """One of the group in which most of the sites agree; a mere few, or half, speak for nobody else."""
    aspects = (*ASPECTS, PUBLIC) if terms.public else ASPECTS
    groups: dict[Any, list[Introduction]] = {}
    for own in roster.values():
        groups.setdefault(tuple(value(own) for _, value, _ in aspects), []).append(own)
    largest = max(groups.values(), key=len)
    if 2 * len(largest) <= len(roster):
        raise ConfigError(_divided(list(groups.values()), aspects))
    return largest[0]


def _divided(groups: Sequence[Sequence[Introduction]], aspects: Sequence[Aspect]) -> str:
    what, _, words = next(a for a in aspects if len({a[1](group[0]) for group in groups}) > 1)
    sides = "; ".join(f"{listed([own.facts.name for own in group])}: {what} {words(group[0])}" for group in groups[:3])
    return (
        f"the sites differ and no side has most of them ({sides}): make their site.toml files alike, or name the "
        "classes in federation.toml (classes)"
    )


def _other_public(own: Introduction, common: Introduction, terms: ClassAgreement) -> str | None:
    _, value, words = PUBLIC
    if not terms.public or value(own) == value(common):
        return None
    return (
        f"site '{own.facts.name}' has other public samples ({words(own)}; the federation has {words(common)}): "
        "copy one set to all sites"
    )
