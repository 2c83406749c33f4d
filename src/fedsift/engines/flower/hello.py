"""The first exchange: who are you, and do we speak of the same classes?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedsift.contract.messages import Reply, Request, SiteFacts, disclosed


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

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        return None if self.facts.samples > 0 else f"site '{self.facts.name}' has no training sample"


@dataclass(frozen=True)
class Hello(Request[Introduction]):
    """Sent to a Flower node whose site is not known yet."""

    reply_type: ClassVar[type[Reply]] = Introduction


@dataclass(frozen=True)
class Vacant(Reply):
    """A simulated node for which the federation has no site."""


def disagreement(own: Introduction, common: Introduction) -> str | None:
    """Why this site cannot take part beside the others, or None if it can."""
    where = f"site '{own.facts.name}'"
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
