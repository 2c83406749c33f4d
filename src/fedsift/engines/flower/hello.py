"""The first exchange: who are you, and do we speak of the same classes?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsift.contract.messages import Reply, Request, SiteFacts, disclosed
from fedsift.contract.plaintext import visible
from fedsift.contract.typed import misfit

LONGEST_NAME = 200
LARGEST_SAMPLE = 10**8
"""Numbers in one sample: the network that would take a larger one fits no machine."""


@dataclass(frozen=True)
class Introduction(Reply):
    """What a site declares of itself on joining."""

    facts: SiteFacts = disclosed("the site's name, its number of training and held-out samples, its network")
    classes: tuple[str, ...] = disclosed("the names of the classes, in the site's order")
    multilabel: bool = disclosed("whether a sample may have several labels")
    shape: tuple[int, ...] = disclosed("the shape of one sample")
    mean: tuple[float, ...] = disclosed("the mean that the site normalises by (the same at every site)")
    std: tuple[float, ...] = disclosed(
        "the standard deviation that the site normalises by (the same at every site)"
    )

    version: str = disclosed("the version of fedsift that the site runs", default="")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        own = self.facts
        if (
            not own.name.strip()
            or len(own.name) > LONGEST_NAME
            or any(visible(text) != text for text in (own.name, own.model, *self.classes))
        ):
            return (
                "the site's name, its network or a class is empty, too long or holds signs that do not show"
            )
        if own.samples < 1:
            return f"site '{own.name}' has no training sample"
        if min(own.held_out, own.public, own.test) < 0:
            return f"site '{own.name}' counts fewer than no samples"
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            return f"site '{own.name}' names no class, or one twice"
        if (own.classes, own.multilabel) != (len(self.classes), self.multilabel):
            return f"site '{own.name}' declares {own.classes} classes and names {len(self.classes)}"
        if any(not 0 <= k < own.classes for k in own.annotated or ()):
            return f"site '{own.name}' annotates a class that it does not name"
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) > LARGEST_SAMPLE:
            return f"site '{own.name}' has samples of shape {self.shape}"
        return None if all(s > 0 for s in self.std) else f"site '{own.name}' divides by std {self.std}"


@dataclass(frozen=True)
class Hello(Request[Introduction]):
    """Sent to a Flower node whose site is not known yet."""

    reply_type: ClassVar[type[Reply]] = Introduction


@dataclass(frozen=True)
class Noted(Reply):
    """That a site has read what the coordinator told it."""


@dataclass(frozen=True)
class Notice(Request[Noted]):
    """Words for the person at a site: why it cannot take part, and what would mend it."""

    reply_type: ClassVar[type[Reply]] = Noted

    text: str


@dataclass(frozen=True)
class Vacant(Reply):
    """A simulated node for which the federation has no site."""


def unsound(introduction: Introduction) -> str | None:
    """Why this is no introduction at all, whatever the others say, or None."""
    try:
        reason = misfit(introduction, Introduction, "the introduction")
        return reason or introduction.refusal(None, introduction.facts)
    except Exception as error:  # it may hold anything
        return f"the introduction cannot be checked: {type(error).__name__}: {error}"


def disagreement(own: Introduction, common: Introduction) -> str | None:
    """Why this site cannot take part beside the others, or None if it can."""
    where = f"site '{own.facts.name}'"
    if own.version != common.version:
        return (
            f"{where} runs fedsift {own.version or 'of an older version'}, the federation runs {common.version}: "
            "install the same version everywhere"
        )
    if sorted(own.classes) == sorted(common.classes) and own.classes != common.classes:
        return (
            f"{where} has the federation's classes in another order ({_list(own.classes)}; the federation has "
            f"{_list(common.classes)}): write them into its site.toml in that order"
        )
    if own.classes != common.classes:
        return (
            f"{where} has classes {_list(own.classes)}, the federation has {_list(common.classes)}: "
            "write the same names in the same order into its site.toml"
        )
    if own.multilabel != common.multilabel:
        return f"{where} and the federation differ on whether a sample may have several labels"
    if own.shape != common.shape:
        return (
            f"{where} has samples of shape {own.shape}, the federation {common.shape}: bring them to one size"
        )
    if own.mean != common.mean or own.std != common.std:
        return (
            f"{where} normalises by mean {own.mean} and std {own.std}, the federation by {common.mean} "
            f"and {common.std}: write the federation's into its site.toml"
        )
    return None


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
