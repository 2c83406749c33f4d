"""What is known of pictures before any is decoded: their labels, sites, groups and splits, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.errors import DataError
from fedsift.contract.plaintext import visible
from fedsift.data.dataset import Labels, Rows
from fedsift.data.images import Picture
from fedsift.data.sources.annotations import describe_unknown


@dataclass(frozen=True)
class Listing:
    """What is known of each picture before it is decoded, in the order of the pictures' names."""

    order: Rows
    """Each picture's place in the table."""
    pictures: list[Picture]
    ids: list[str]
    labels: Labels
    given: Labels | None
    classes: tuple[str, ...]
    sites: NDArray[np.str_] | None
    groups: NDArray[np.str_] | None
    splits: NDArray[np.str_] | None
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """References of the table that lead to no picture."""
    outside: dict[str, int] = field(default_factory=dict)
    """Labels outside the vocabulary, with how often each occurs; their samples were dropped."""

    def take(self, rows: Rows) -> Listing:
        return replace(
            self,
            order=self.order[rows],
            pictures=[self.pictures[k] for k in rows] if self.pictures else [],
            ids=[self.ids[k] for k in rows],
            labels=self.labels[rows],
            given=None if self.given is None else self.given[rows],
            sites=None if self.sites is None else self.sites[rows],
            groups=None if self.groups is None else self.groups[rows],
            splits=None if self.splits is None else self.splits[rows],
        )

    def known(self, rule: str, unknown: dict[str, int], name: str) -> Listing:
        """Only samples whose label is in the vocabulary, or a refusal."""
        bad = (self.labels < 0) | (self.given < 0 if self.given is not None else False)
        if self.labels.ndim == 2 or not bad.any():
            return self
        words = describe_unknown(unknown, self.classes)
        if rule != "drop":
            example = self.ids[int(np.flatnonzero(bad)[0])]
            raise DataError(
                f"{name}: labels outside the vocabulary: {words}, first at sample '{example}'; "
                'correct them, extend `classes`, or set unknown = "drop"'
            )
        notes = (
            *self.notes,
            f"{int(bad.sum())} samples have labels outside the vocabulary and are dropped: {words}",
        )
        return replace(self.take(np.flatnonzero(~bad)), notes=notes, outside=unknown)


def join_listings(listings: Mapping[str, Listing], notes: Sequence[str] = ()) -> Listing:
    """Several sites' listings, in the same classes, as one; names are told apart by their site."""
    parts = list(listings.values())
    for key in ("given", "groups", "splits"):
        if len({getattr(part, key) is None for part in parts}) > 1:
            lacking = [site for site, part in listings.items() if getattr(part, key) is None]
            raise DataError(
                f"site '{lacking[0]}' has no column for {key}, others have: give all sites the same columns"
            )

    def joined(key: str) -> NDArray[Any] | None:
        columns = [getattr(part, key) for part in parts]
        return None if columns[0] is None else np.concatenate(columns)

    named = [[f"{site}/{name}" for name in part.ids] for site, part in listings.items()]
    sited_groups = [
        np.array([f"{site}/{group}" if group else "" for group in part.groups])
        if part.groups is not None
        else None
        for site, part in listings.items()
    ]
    count = sum(len(part.pictures) for part in parts)
    return Listing(
        order=np.arange(count, dtype=np.int64),
        pictures=[picture for part in parts for picture in part.pictures],
        ids=[name for names in named for name in names],
        labels=np.concatenate([part.labels for part in parts]),
        given=joined("given"),
        classes=parts[0].classes,
        sites=joined("sites"),
        groups=None
        if parts[0].groups is None
        else np.concatenate([g for g in sited_groups if g is not None]),
        splits=joined("splits"),
        notes=(*(f"{site}: {note}" for site, part in listings.items() for note in part.notes), *notes),
        missing=tuple(f"{site}/{name}" for site, part in listings.items() for name in part.missing),
        outside={name: count for part in parts for name, count in part.outside.items()},
    )


def broken_notes(broken: Sequence[tuple[str, str]]) -> list[str]:
    """One line for pictures that could not be read; they are skipped, never fatal."""
    if not broken:
        return []
    listed = ", ".join(f"{visible(name)} ({visible(reason)})" for name, reason in broken[:5])
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return [f"{len(broken)} pictures could not be read and are left out: {listed}{more}"]


def dark_notes(dark: Sequence[str], bits: int) -> list[str]:
    """One line for 16-bit pictures that use a small part of their range and would be almost black."""
    if not dark:
        return []
    return [
        f"{len(dark)} 16-bit pictures use less than a sixteenth of {bits} bits and are almost black, "
        f"e.g. '{visible(dark[0])}': set bits = 12 (values up to 4095) or less"
    ]


def repeated_notes(ids: Sequence[str]) -> list[str]:
    """A line when several samples have one id: an audit could not tell them apart."""
    more = {name: count for name, count in Counter(ids).items() if count > 1}
    if not more:
        return []
    worst = max(more, key=lambda name: more[name])
    return [
        f"{len(more)} ids stand for more than one sample, e.g. '{visible(worst)}' for {more[worst]}: "
        "give every row an id of its own"
    ]


def both_sides(groups: NDArray[np.str_], side: NDArray[np.str_]) -> list[str]:
    """A warning for groups that a split column puts on both sides."""
    torn = sorted(set(groups[side == "train"]) & set(groups[side == "test"]) - {""})
    return [f"{len(torn)} groups are on both sides of the split, e.g. '{torn[0]}'"] if torn else []
