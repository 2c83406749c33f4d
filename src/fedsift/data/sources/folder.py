"""A person's own pictures: a folder or a zip, and a CSV that says what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.errors import DataError
from fedsift.contract.randomness import numpy_generator
from fedsift.data.dataset import Dataset, Labels, Rows
from fedsift.data.images import Finder, Form, Picture, find_pictures, load_pictures
from fedsift.data.sources.annotations import (
    Annotations,
    describe_unknown,
    from_columns,
    from_names,
    from_sets,
)
from fedsift.data.sources.base import Source, normalisation, sources
from fedsift.data.splits import split
from fedsift.data.tables import Table, column, read_table

SPLITS = {"train": "train", "training": "train", "": "train", "test": "test", "testing": "test"}
VALIDATION = ("val", "valid", "validation", "dev")


@sources.register("folder")
@dataclass(frozen=True)
class FolderSource(Source):
    """Pictures in a folder (or zip) and a CSV with a row for each.

    Without a CSV the folder of a picture is its class: `class/file` or `train/class/file`.
    """

    summary: ClassVar[str] = (
        "your own pictures: a folder or zip, and a CSV with id, path, label, site, split, group"
    )
    kind: ClassVar[str] = "either"

    path: Path
    """The folder or zip with the pictures."""
    table: Path | None = None
    """The CSV (default: `labels.csv` in the folder, or the only CSV there)."""
    id_column: str = "id"
    """Column with a name for each sample."""
    path_column: str = "path"
    """Column with the picture's path in the folder; without it the id, with any ending, is looked for."""
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
    size: int = 64
    """Side of the decoded pictures in pixels."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    fit: Literal["squash", "crop"] = "squash"
    """"squash" the whole picture into the square, or "crop" its centre."""
    statistics: Literal["data", "imagenet"] = "data"
    """Mean and deviation for normalising: of these pictures, or ImageNet's."""
    test_fraction: float = 0.0
    """Share to keep for testing when no split column does; whole groups where there are groups."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""
    trusted: bool = True
    """Whether the labels can be taken for the truth."""
    cache: Path | None = None
    """Where decoded pictures are kept (default: the user's cache folder)."""

    def read(self) -> Dataset:
        return self.read_listing(self.listing())

    def read_listing(self, listing: Listing) -> Dataset:
        """Decode what is listed, leave out what cannot be read, and split."""
        decoded = load_pictures(
            listing.pictures, Form(self.size, self.channels, self.fit), cache=self.cache, what=self.path.name
        )
        notes = [*listing.notes, *broken_notes(decoded.broken)]
        if len(decoded.kept) == 0:
            raise DataError(f"{self.path}: none of {len(listing.pictures)} pictures could be read")
        listing = listing.take(decoded.kept)
        train, test, more = self._split(listing)
        # Rows follow the pictures' names, so that every table shares one cache; `train` follows the table.
        train = train[np.argsort(listing.order[train], kind="stable")]
        mean, std = normalisation(decoded.images, train, self.statistics)
        return Dataset(
            name=self.path.stem,
            images=decoded.images,
            labels=listing.labels,
            classes=listing.classes,
            train=train,
            test=test,
            multilabel=listing.labels.ndim == 2,
            mean=mean,
            std=std,
            ids=np.array(listing.ids),
            groups=listing.groups,
            sites=listing.sites,
            given=listing.given,
            trusted=self.trusted or listing.given is not None,
            notes=(*notes, *more),
        )

    def listing(self, table: Table | None = None) -> Listing:
        """What a table (this one, the CSV, or the folder's layout) says, before any picture is decoded."""
        found_table = None if table is not None else self.table_path()
        pictures = find_pictures(self.path)
        if not pictures:
            raise DataError(f"there is no picture in {self.path}")
        if table is None:
            table = folder_table(pictures) if found_table is None else read_table(found_table)
        where = found_table or self.path
        found, missing = self._match(table, Finder(pictures), where)
        notes = (
            [f"{len(missing)} pictures of the table are not there, e.g. '{missing[0]}'"] if missing else []
        )
        table = {name: [values[k] for k in found] for name, values in table.items()}
        given = self._annotations(table, where, self.label_column)
        truth = (
            given
            if not self.true_column
            else self._annotations(table, where, self.true_column, given.classes)
        )
        pictures = list(found.values())
        listing = Listing(
            order=np.arange(len(pictures), dtype=np.int64),
            pictures=pictures,
            ids=self._ids(table, where),
            labels=truth.labels,
            given=given.labels if self.true_column else None,
            classes=given.classes,
            sites=self._optional(table, "site_column", where),
            groups=self._optional(table, "group_column", where),
            splits=self._optional(table, "split_column", where),
            notes=tuple(notes),
            missing=tuple(missing),
        ).known(self.unknown, {**truth.unknown, **given.unknown}, self.path.name)
        by_name = sorted(range(len(listing.pictures)), key=lambda k: listing.pictures[k].name)
        return listing.take(np.array(by_name, np.int64))

    def table_path(self) -> Path | None:
        """The CSV that `listing` reads, if there is one."""
        if self.table is not None:
            return self.table
        if not self.path.is_dir():
            return None
        if (self.path / "labels.csv").is_file():
            return self.path / "labels.csv"
        # a corrected table that `fedsift labels apply` wrote beside the original is read when it is named, not found
        tables = sorted(t for t in self.path.glob("*.csv") if not t.name.endswith(".corrected.csv"))
        if len(tables) > 1:
            names = ", ".join(table.name for table in tables)
            raise DataError(f"{self.path} has several tables ({names}): say which with `table`")
        return tables[0] if tables else None

    def _match(self, table: Table, finder: Finder, where: Path) -> tuple[dict[int, Picture], list[str]]:
        """Pictures by row of the table, and the references that lead nowhere."""
        by = self.path_column if self.path_column in table else self.id_column
        found: dict[int, Picture] = {}
        missing: list[str] = []
        for row, reference in enumerate(column(table, by, where)):
            picture = finder.find(reference)
            if picture is None:
                missing.append(reference)
            else:
                found[row] = picture
        if not found:
            raise DataError(f"no picture of column '{by}' in {where} is in {self.path}, e.g. '{missing[0]}'")
        return found, missing

    def _annotations(self, table: Table, where: Path, name: str, classes: Sequence[str] = ()) -> Annotations:
        vocabulary = tuple(classes) or self.classes
        if self.label_columns:
            columns = [column(table, label, where) for label in self.label_columns]
            return from_columns(columns, self.label_columns, one_hot=self.one_hot)
        values = column(table, name, where)
        if self.separator:
            return from_sets(values, self.separator, vocabulary, self.nothing)
        return from_names(values, vocabulary)

    def _ids(self, table: Table, where: Path) -> list[str]:
        if self.id_column in table:
            return table[self.id_column]
        return column(table, self.path_column, where)

    def _optional(self, table: Table, key: str, where: Path) -> NDArray[np.str_] | None:
        """A column that may be absent under its usual name, but not when a person named it."""
        name = getattr(self, key)
        default = type(self).__dataclass_fields__[key].default
        if name in table:
            return np.array(table[name])
        if name and name != default:
            column(table, name, where)
        return None

    def _split(self, listing: Listing) -> tuple[Rows, Rows, list[str]]:
        if listing.splits is None:
            rng = numpy_generator(self.split_seed, "folder", "split")
            return *split(listing.labels, self.test_fraction, rng, listing.groups), []
        side = np.array([self._side(str(value)) for value in listing.splits])
        notes = [] if listing.groups is None else both_sides(listing.groups, side)
        return np.flatnonzero(side == "train"), np.flatnonzero(side == "test"), notes

    def _side(self, value: str) -> str:
        if value.lower() in VALIDATION:
            return self.validation
        if value.lower() not in SPLITS:
            raise DataError(f"'{value}' in column '{self.split_column}' is neither train, val nor test")
        return SPLITS[value.lower()]


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
            pictures=[self.pictures[k] for k in rows],
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
        np.array([f"{site}/{group}" for group in part.groups]) if part.groups is not None else None
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


def folder_table(pictures: Sequence[Picture]) -> Table:
    """A table from the layout `class/file` or `split/class/file`."""
    table: Table = {"path": [], "label": [], "split": []}
    for picture in pictures:
        parts = Path(picture.name).parts
        if len(parts) < 2:
            raise DataError(
                f"'{picture.name}' lies in no class folder, and there is no CSV to say what it shows"
            )
        first = parts[0].lower()
        sided = len(parts) > 2 and (first in SPLITS or first in VALIDATION)
        table["path"].append(picture.name)
        table["label"].append(parts[1] if sided else parts[0])
        table["split"].append(first if sided else "train")
    if set(table["split"]) == {"train"}:
        del table["split"]
    return table


def broken_notes(broken: Sequence[tuple[str, str]]) -> list[str]:
    """One line for pictures that could not be read; they are skipped, never fatal."""
    if not broken:
        return []
    listed = ", ".join(f"{name} ({reason})" for name, reason in broken[:5])
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return [f"{len(broken)} pictures could not be read and are left out: {listed}{more}"]


def both_sides(groups: NDArray[np.str_], side: NDArray[np.str_]) -> list[str]:
    """A warning for groups that a split column puts on both sides."""
    torn = sorted(set(groups[side == "train"]) & set(groups[side == "test"]) - {""})
    return [f"{len(torn)} groups are on both sides of the split, e.g. '{torn[0]}'"] if torn else []
