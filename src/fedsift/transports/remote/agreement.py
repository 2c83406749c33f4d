"""Do the sites speak of the same things? No site is the measure: the coordinator's files are, then most sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.version import __version__
from fedsift.transports.remote.introduction import (
    Introduction,
    disagreement,
    listed,
    other_classes,
    other_version,
)


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
