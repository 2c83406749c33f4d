"""Unites the class names that sites declare: order does not matter; unknown and absent classes are reported."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.dataset import Labels

ALIKE = 0.8
"""Names at least so alike (0 to 1) are suspected to mean the same class."""


@dataclass(frozen=True)
class LabelSpace:
    """The federation's classes, and how each site's own classes relate to them."""

    classes: tuple[str, ...]
    declared: dict[str, tuple[str, ...]]
    """What each site declared, in its own order."""
    assumed: tuple[str, ...] = ()
    """Sites that declared nothing but the names they used: they are taken to know every class."""

    def named(self, site: str) -> tuple[str, ...]:
        """Classes that the site knows: what it declared, or all."""
        return self.classes if site in self.assumed else self.declared[site]

    @property
    def absent(self) -> dict[str, tuple[str, ...]]:
        """Classes of the federation that a site does not know."""
        return {site: tuple(name for name in self.classes if name not in self.named(site)) for site in self.declared}

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """Classes that a site declared but the federation does not have."""
        return {site: tuple(name for name in own if name not in self.classes) for site, own in self.declared.items()}

    def numbers(self, site: str) -> NDArray[np.int64]:
        """The federation's number of each of the site's classes, in the site's own order; -1 for an unknown
        one."""
        place = {name: k for k, name in enumerate(self.classes)}
        return np.array([place.get(name, -1) for name in self.declared[site]], np.int64)

    def translate(self, site: str, labels: Labels) -> Labels:
        """The site's labels in the federation's numbers.

        `[n]` class numbers stay class numbers (-1 where unknown). `[n, K_own]` zeros and ones become `[n,
        K]`; classes that the site did not declare are 0 there, see `annotated`.
        """
        numbers = self.numbers(site)
        if labels.ndim == 1:
            return numbers[labels]
        result = np.zeros((len(labels), len(self.classes)), np.int64)
        known = numbers >= 0
        result[:, numbers[known]] = labels[:, known]
        return result

    def annotated(self, site: str) -> NDArray[np.bool_]:
        """Which of the federation's classes the site knows, boolean `[K]`."""
        return np.isin(np.array(self.classes), np.array(self.named(site)))


def unite(declared: Mapping[str, Sequence[str]], vocabulary: Sequence[str] = ()) -> LabelSpace:
    """One label space for all sites: the vocabulary, or every declared name in alphabetical order."""
    for site, names in declared.items():
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise DataError(f"site '{site}' declares class '{twice[0]}' twice: every class has one name")
    classes = tuple(vocabulary) or tuple(sorted({name for names in declared.values() for name in names}))
    if not classes:
        raise DataError("no site declares any class")
    return LabelSpace(classes, {site: tuple(names) for site, names in declared.items()})


def similar_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs (probably misspelt, probably meant): the rarer of two names that differ in case, blanks or a
    letter."""
    pairs = []
    names = sorted(counts, key=lambda name: (counts[name], name))
    for rank, name in enumerate(names):
        others = [other for other in names[rank + 1 :] if counts[other] > counts[name]]
        best = max(others, key=lambda other: _alike(name, other), default=None)
        if best is not None and _alike(name, best) >= ALIKE:
            pairs.append((name, best))
    return pairs


def _alike(a: str, b: str) -> float:
    """1 for names that differ in case and punctuation alone; numbers that differ are different classes."""
    plain_a, plain_b = ("".join(c for c in name.lower() if c.isalnum()) for name in (a, b))
    if plain_a == plain_b:
        return 1.0
    if [c for c in plain_a if c.isdigit()] != [c for c in plain_b if c.isdigit()] or min(
        len(plain_a), len(plain_b)
    ) < 4:
        return 0.0
    return difflib.SequenceMatcher(None, plain_a, plain_b).ratio()
