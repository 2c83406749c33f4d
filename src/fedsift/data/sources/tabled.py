"""What all sources have in common whose samples are listed in a CSV: which column means what, and the split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.plaintext import readable
from fedsift.contract.randomness import numpy_generator
from fedsift.contract.ranges import Range
from fedsift.data.dataset import Rows
from fedsift.data.images import Picture
from fedsift.data.sources.annotations import Annotations, from_columns, from_names, from_sets
from fedsift.data.sources.base import Source
from fedsift.data.sources.layout import side_of
from fedsift.data.sources.listing import Listing, both_sides, repeated_notes
from fedsift.data.splits import split
from fedsift.data.tables import Table, column, read_table


@dataclass(frozen=True)
class Tabled(Source):
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
        truth = (
            given
            if not self.true_column
            else self._annotations(table, where, self.true_column, given.classes)
        )
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
