"""Common parts of sources whose samples are listed in a CSV: the meaning of its columns, and the train-test split."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.randomness import numpy_generator
from fedsift.core.ranges import Range
from fedsift.core.text import readable, visible
from fedsift.data.csv_tables import Table, column, read_table
from fedsift.data.dataset import Labels, Rows
from fedsift.data.input_files import Picture
from fedsift.data.sources.base import Source
from fedsift.data.splits import split

# A table from where pictures lie, for folders without a CSV; and which side of a split a word means
# ------------------------------------------------------------------------------

SPLITS = {"train": "train", "training": "train", "": "train", "test": "test", "testing": "test"}
VALIDATION = ("val", "valid", "validation", "dev")


def folder_table(pictures: Sequence[Picture]) -> Table:
    """A table from the layout `class/file` or `split/class/file`."""
    table: Table = {"path": [], "label": [], "split": []}
    for picture in pictures:
        parts = Path(picture.name).parts
        if len(parts) < 2:
            raise DataError(f"'{picture.name}' lies in no class folder, and there is no CSV to say what it shows")
        first = parts[0].lower()
        sided = len(parts) > 2 and (first in SPLITS or first in VALIDATION)
        table["path"].append(picture.name)
        table["label"].append(readable(parts[1] if sided else parts[0]))
        table["split"].append(first if sided else "train")
    if set(table["split"]) == {"train"}:
        del table["split"]
    return table


def side_of(value: str, validation: Literal["train", "test", "drop"], column: str) -> str:
    """train, test or drop, from the word in a split column."""
    if value.lower() in VALIDATION:
        return validation
    if value.lower() not in SPLITS:
        raise DataError(f"'{value}' in column '{column}' is neither train, val nor test")
    return SPLITS[value.lower()]


# What is known of pictures before any is decoded: their labels, sites, groups and splits, side by
# side
# ------------------------------------------------------------------------------


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
    """Several sites' listings, in the same classes, as one; names are prefixed by their site."""
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
        np.array([f"{site}/{group}" if group else "" for group in part.groups]) if part.groups is not None else None
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
        groups=None if parts[0].groups is None else np.concatenate([g for g in sited_groups if g is not None]),
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
    """A line when several samples have one id: an audit could not distinguish them."""
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


@dataclass(frozen=True)
class ListedSource(Source):
    """A CSV with a row for each sample, and the names of its columns."""

    kind: ClassVar[str] = "either"
    own: ClassVar[bool] = True

    path: Path
    """Where the data lie."""
    id_column: str = "id"
    """Column with a name for each sample."""
    label_column: str = "label"
    """Column with the class name."""
    label_columns: tuple[str, ...] = ()
    """Instead: one 0/1 column a class (multi-label, unless `one_hot`)."""
    one_hot: bool = False
    """Whether `label_columns` have exactly one 1 a row and mean one class a sample."""
    separator: str = ""
    """What stands between several class names in `label_column`, e.g. "|": multi-label."""
    nothing: tuple[str, ...] = ("No Finding",)
    """Names that stand for no class, with `separator`."""
    true_column: str = ""
    """Column with the true class name, when `label_column` is what annotators gave."""
    site_column: str = "site"
    """Column with the sample's site."""
    split_column: str = "split"
    """Column with train or test (and val)."""
    group_column: str = "group"
    """Column with the patient or lesion: never on both sides of a split."""
    validation: Literal["train", "test", "drop"] = "train"
    """Where samples of a validation split go."""
    classes: tuple[str, ...] = ()
    """The vocabulary and its order (default: all names found)."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """What happens to a label outside the vocabulary: "refuse" the data, or "drop" the sample."""
    delimiter: str = ","
    """What separates the table's columns, e.g. ";"."""
    encoding: str = "utf-8"
    """The table's encoding, e.g. "cp1252"."""
    test_fraction: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Share to keep for testing when no split column does; whole groups where there are groups."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""
    trusted: bool = False
    """Whether the labels can be taken for the truth: only then right and wrong are counted against them."""

    def table_path(self) -> Path | None:
        """The CSV, if there is one."""
        raise TypeError(f"{type(self).__name__} does not say where its table is")

    def read_csv(self, path: Path) -> Table:
        """A table in this source's delimiter and encoding."""
        return read_table(path, self.delimiter, self.encoding)

    def listed(
        self,
        table: Table,
        where: Path,
        names: Sequence[str],
        pictures: Sequence[Picture] = (),
        missing: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> Listing:
        """What the table says of its rows, without those whose label is none, where these are dropped.

        names: a name for each row. pictures: one a row, or none at all.
        """
        given = self._annotations(table, where, self.label_column)
        truth = given if not self.true_column else self._annotations(table, where, self.true_column, given.classes)
        ids = [readable(name) for name in names]
        return Listing(
            order=np.arange(len(ids), dtype=np.int64),
            pictures=list(pictures),
            ids=ids,
            labels=truth.labels,
            given=given.labels if self.true_column else None,
            classes=given.classes,
            sites=self._optional(table, "site_column", where),
            groups=self._optional(table, "group_column", where),
            splits=self._optional(table, "split_column", where),
            notes=(*notes, *repeated_notes(ids)),
            missing=tuple(missing),
        ).known(self.unknown, {**truth.unknown, **given.unknown}, self.path.name)

    def sides(self, listing: Listing) -> tuple[Rows, Rows, list[str]]:
        """Rows for training and for testing, and what is to be said of the split."""
        if listing.splits is None:
            rng = numpy_generator(self.split_seed, "folder", "split")
            return *split(listing.labels, self.test_fraction, rng, listing.groups), []
        side = np.array([side_of(str(value), self.validation, self.split_column) for value in listing.splits])
        notes = [] if listing.groups is None else both_sides(listing.groups, side)
        return np.flatnonzero(side == "train"), np.flatnonzero(side == "test"), notes

    def _annotations(self, table: Table, where: Path, name: str, classes: Sequence[str] = ()) -> Annotations:
        vocabulary = tuple(classes) or self.classes
        if self.label_columns:
            columns = [column(table, label, where) for label in self.label_columns]
            return from_columns(columns, self.label_columns, one_hot=self.one_hot)
        values = column(table, name, where)
        if self.separator:
            return from_sets(values, self.separator, vocabulary, self.nothing)
        return from_names(values, vocabulary)

    def _optional(self, table: Table, key: str, where: Path) -> NDArray[np.str_] | None:
        """A column that may be absent under its usual name, but not when a person named it."""
        name = getattr(self, key)
        default = type(self).__dataclass_fields__[key].default
        if name in table:
            return np.array(table[name])
        if name and name != default:
            column(table, name, where)
        return None


# Labels as tables write them
# ------------------------------------------------------------------------------


_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Annotations:
    """labels: int64 `[n]` or `[n, K]`; -1 marks a label outside the vocabulary."""

    labels: Labels
    classes: tuple[str, ...]
    unknown: dict[str, int]
    """Labels outside the vocabulary, with how often each occurs."""


def from_names(values: Sequence[str], classes: Sequence[str] = ()) -> Annotations:
    """One class name a sample; the vocabulary is `classes`, or all names in alphabetical order. Nothing is no name."""
    names = tuple(classes) or tuple(sorted(set(values) - {""}, key=natural_order))
    number = {name: k for k, name in enumerate(names)}
    labels = np.array([number.get(value, -1) for value in values], np.int64)
    return Annotations(labels, names, dict(Counter(value for value in values if value not in number)))


def from_sets(
    values: Sequence[str], separator: str, classes: Sequence[str] = (), nothing: Sequence[str] = ()
) -> Annotations:
    """Several class names a sample, e.g. "Effusion|Mass"; names in `nothing` stand for no class."""
    parts = [
        [name.strip() for name in value.split(separator) if name.strip() and name.strip() not in nothing]
        for value in values
    ]
    names = tuple(classes) or tuple(sorted({name for part in parts for name in part}))
    number = {name: k for k, name in enumerate(names)}
    labels = np.zeros((len(values), len(names)), np.int64)
    for row, part in enumerate(parts):
        for name in part:
            if name in number:
                labels[row, number[name]] = 1
    # A finding outside the chosen classes is not an error here: studies keep the frequent findings only.
    return Annotations(labels, names, {})


def from_columns(columns: Sequence[Sequence[str]], classes: Sequence[str], *, one_hot: bool = False) -> Annotations:
    """One 0/1 column a class; `one_hot` turns rows with exactly one 1 into class numbers."""
    try:
        table = np.array([[float(value or 0) for value in column] for column in columns]).T
    except ValueError as error:
        raise DataError(f"a class column holds something other than 0 and 1: {error}") from error
    table = table.reshape(-1, len(classes))
    if not np.isin(table, (0.0, 1.0)).all():
        raise DataError("class columns must hold 0 and 1 only")
    if not one_hot:
        return Annotations(table.astype(np.int64), tuple(classes), {})
    ones = table.sum(axis=1)
    labels = np.where(ones == 1, table.argmax(axis=1), -1).astype(np.int64)
    unknown = {f"{int(count)} classes at once": int((ones == count).sum()) for count in np.unique(ones) if count != 1}
    return Annotations(labels, tuple(classes), unknown)


def natural_order(name: str) -> tuple[int, float, str]:
    """Numbers by value, before names by letter: "2" comes before "10"."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def nearest_class(name: str, classes: Sequence[str]) -> str | None:
    """The class that a misspelt name probably means, or None: "grade 4" is no misspelt "grade 3"."""
    numbers = _NUMBERS.findall(name)
    lowered = {known.lower(): known for known in classes if known != name and _NUMBERS.findall(known) == numbers}
    close = difflib.get_close_matches(name.lower().strip(), list(lowered), n=1, cutoff=0.75)
    return lowered[close[0]] if close else None


def describe_unknown(unknown: dict[str, int], classes: Sequence[str]) -> str:
    """'melanomma' (3 samples; did you mean 'melanoma'?), ..."""
    words = []
    for name, count in sorted(unknown.items(), key=lambda item: -item[1])[:8]:
        if not name:
            words.append(f"no label at all ({count} sample{'s' if count > 1 else ''})")
            continue
        close = nearest_class(name, classes)
        meant = f"; did you mean '{close}'?" if close else ""
        words.append(f"'{visible(name)}' ({count} sample{'s' if count > 1 else ''}{meant})")
    return ", ".join(words)
