"""The data source `table`: numbers in one CSV with a row a sample, e.g. laboratory values or measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.text import visible
from fedsift.data.csv_tables import MISSING, Table, column
from fedsift.data.dataset import Dataset, Labels
from fedsift.data.sources.base import sources
from fedsift.data.sources.listing import ListedSource

MOST_WORDS = 50
"""A column with more words than this holds names or remarks, no categories."""
ENOUGH = 20
"""Rows from which on it is no chance that all values of a column differ."""
LARGEST, FARTHEST = 1e30, 1e9
"""A number, and deviations from the mean, beyond which there is a mistake that would drown all training."""
OURS = "fedsift_"
"""How the columns begin that `fedsift labels apply` adds."""
Floats = NDArray[np.float64]
Scale = Mapping[str, Sequence[Any]]
"""`Dataset.scale`: by feature, in order, mean and deviation, or words."""


@dataclass(frozen=True)
class ColumnRemark:
    """Something about the columns of a table for the user, and what to do about it."""

    code: str
    text: str
    fix: str


@dataclass(frozen=True)
class TableFeature:
    """One column: every cell as the table writes it, and as a model sees it, `[n, 1]`, or `[n, words]` of zeros and
    ones."""

    name: str
    texts: Sequence[str]
    values: Floats
    scale: Sequence[Any]
    """Mean and deviation, or the words."""

    @property
    def words(self) -> bool:
        return isinstance(self.scale[0], str)


@dataclass(frozen=True)
class ShownFeature:
    """One feature of one sample, and by how many deviations it is above the mean; None for words."""

    name: str
    text: str
    deviations: float | None


@dataclass(frozen=True)
class ExaminedTable:
    """A table that was read: rows of `dataset` are the rows `order` of `features`."""

    dataset: Dataset
    remarks: list[ColumnRemark]
    outside: dict[str, int]
    """Labels outside the vocabulary, with how often each occurs."""
    features: list[TableFeature]
    order: NDArray[np.int64]


@sources.register("table")
@dataclass(frozen=True)
class TableSource(ListedSource):
    """Rows of numbers in one CSV. Every column that has no other role is a feature; each is brought to mean 0 and
    deviation 1, so that years and micrograms weigh alike."""

    summary: ClassVar[str] = "your own numbers: a CSV with id, label, site, split, group; all else is features"

    path: Path
    """The CSV."""
    features: tuple[str, ...] = ()
    """Columns to learn from, in this order (default: all that have no other role)."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out, e.g. a number that only names the sample."""
    categories: tuple[str, ...] = ()
    """Columns of words: each word becomes a feature that is 1 or 0."""
    decimal: Literal[".", ","] = "."
    """What stands before the decimals."""
    missing: Literal["mean", "refuse"] = "mean"
    """What an empty cell (or NA, ?, -) becomes: the feature's mean, or the reason to "refuse" the table."""
    scaling: Path | None = None
    """A JSON file that all sites share: `{"age": [52, 11], "sex": ["f", "m"]}`, mean and deviation of each feature, or
    its words, in the order of the features (default: those of this table's training rows)."""

    def table_path(self) -> Path:
        return self.path

    def read(self) -> Dataset:
        found = self.examined()
        remarks = (f"{each.text}: {each.fix}" for each in found.remarks)
        return replace(found.dataset, notes=(*found.dataset.notes, *remarks))

    def read_as(self, scale: Scale) -> Dataset:
        """The dataset on the scale of another one: samples that came later."""
        return self.examined(scale).dataset

    def examined(self, scale: Scale | None = None) -> ExaminedTable:
        """The dataset, on a scale of its own or another's, and what there is to say of the table."""
        table = self.read_csv(self.path)
        shared = scale if scale is not None or self.scaling is None else read_scaling(self.scaling)
        names = table.get(self.id_column) or row_names(table)
        listing = self.listed(table, self.path, names)
        train, test, notes = self.sides(listing)
        features, remarks = _features(self, table, shared, listing.order[train])
        if shared is None:
            remarks += _leaking_columns(self, table, listing.labels, listing.order)
        dataset = Dataset(
            name=self.path.stem,
            images=np.concatenate([f.values for f in features], axis=1)[listing.order].astype(np.float32),
            labels=listing.labels,
            classes=listing.classes,
            train=train,
            test=test,
            multilabel=listing.labels.ndim == 2,
            mean=(0.0,),
            std=(1.0,),
            ids=np.array(listing.ids),
            groups=listing.groups,
            sites=listing.sites,
            given=listing.given,
            trusted=self.trusted or listing.given is not None,
            scale={feature.name: feature.scale for feature in features},
            notes=(*listing.notes, *notes),
        )
        return ExaminedTable(dataset, remarks, listing.outside, features, listing.order)

    def shown(self) -> Callable[[int], list[ShownFeature]]:
        """What a person sees of the dataset's rows, by number: their features as the table writes them."""
        found = self.examined()

        def row(number: int) -> list[ShownFeature]:
            at = found.order[number]
            return [
                ShownFeature(f.name, f.texts[at], None if f.words else float(f.values[at, 0])) for f in found.features
            ]

        return row

    def chosen(self, table: Table) -> list[str]:
        """The columns that are features, in order."""
        if self.features:
            for name in self.features:
                column(table, name, self.path)
            return list(self.features)
        for name in (*self.ignore, *self.categories):
            column(table, name, self.path)
        roles = {
            self.id_column, self.label_column, self.true_column, self.site_column, self.split_column, self.group_column,
            *self.label_columns, *self.ignore,
        }  # fmt: skip
        # a corrected table says how its labels came about: nothing to learn from
        found = [name for name in table if name not in roles and not name.startswith(OURS)]
        if not found:
            raise DataError(
                f"{self.path} has no column of numbers besides {', '.join(map(visible, table))}; a table of pictures "
                'is read by name = "folder", with the folder of the pictures as its path'
            )
        return found


def read_scaling(path: Path) -> dict[str, list[Any]]:
    """Mean and deviation, or the words, of each feature that the sites agreed on."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"data.scaling: there is no {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.scaling: {path} cannot be read: {error}") from None
    return checked_scale(content, f"data.scaling: {path}")


def checked_scale(content: Any, where: str) -> dict[str, list[Any]]:
    """The same, from JSON that anybody may have written."""
    if not isinstance(content, dict) or not content:
        raise ConfigError(f'{where} must hold {{"feature": [mean, deviation], ...}}')
    for name, entry in content.items():
        words = isinstance(entry, list) and len(entry) > 0 and all(isinstance(word, str) for word in entry)
        if not words and not _is_pair(entry):
            raise ConfigError(f"{where}, '{visible(name)}': it must be [mean, deviation above 0] or a list of words")
    return content


def _is_pair(entry: Any) -> bool:
    numbers = isinstance(entry, list) and len(entry) == 2
    if not numbers or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in entry):
        return False
    return all(math.isfinite(value) for value in entry) and entry[1] > 0


def row_names(table: Table) -> list[str]:
    """Numbers from 1, for rows that have no names."""
    return [str(row) for row in range(1, len(next(iter(table.values()))) + 1)]


def _features(
    source: TableSource, table: Table, shared: Scale | None, train: NDArray[np.int64]
) -> tuple[list[TableFeature], list[ColumnRemark]]:
    """Numbers with mean 0 and deviation 1 over the training rows, words as zeros and ones."""
    features: list[TableFeature] = []
    gaps: dict[str, int] = {}
    still: list[str] = []
    for name in source.chosen(table) if shared is None else shared:
        texts = column(table, name, source.path)
        agreed = None if shared is None else shared[name]
        if name in source.categories or (agreed is not None and isinstance(agreed[0], str)):
            words = _vocabulary(source, name, texts, agreed)
            features.append(TableFeature(name, texts, _words(texts, words), words))
            continue
        numbers = _numbers(source, name, texts)
        absent = np.isnan(numbers)
        if absent.any():
            gaps[name] = int(absent.sum())
            _refuse_gaps(source, name, absent)
        mean, deviation = _scale(numbers[train]) if agreed is None else map(float, agreed)
        if deviation == 0:
            still.append(name)
        scale = (mean, deviation or 1.0)
        values = np.where(absent, 0.0, (numbers - mean) / scale[1])
        far = np.flatnonzero(np.abs(values) > FARTHEST)
        if len(far):
            raise DataError(
                f"{source.path}, sample {far[0] + 1}, column '{visible(name)}': {visible(texts[far[0]])} is beyond all "
                "others: correct it, or leave it empty"
            )
        features.append(TableFeature(name, texts, values[:, None], scale))
    remarks = []
    if gaps:
        worst = max(gaps, key=lambda name: gaps[name])
        count = f"{sum(gaps.values())} cells of {len(gaps)} features"
        text = f"{count} are empty, most in '{visible(worst)}' ({gaps[worst]})"
        remarks.append(
            ColumnRemark("empty-cells", text, 'they count as the mean; missing = "refuse" would not have them')
        )
    if still:
        text = f"features that are the same in all training rows: {', '.join(map(visible, still))}"
        remarks.append(ColumnRemark("constant", text, "they carry no information; leave them out with `ignore`"))
    return features, remarks


def _numbers(source: TableSource, name: str, values: Sequence[str]) -> Floats:
    """One column; NaN where a cell is empty."""
    result = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value.lower() in MISSING or not value:
            continue
        text = value.replace(",", ".") if source.decimal == "," else value
        try:
            result[row] = float(text)
        except ValueError:
            raise DataError(_no_number(source, name, value, row, set(values))) from None
        if not abs(result[row]) < LARGEST:
            raise DataError(
                f"{source.path}, sample {row + 1}, column '{visible(name)}': {visible(value)} is no number to learn "
                "from: correct it, or leave it empty"
            )
    return result


def _no_number(source: TableSource, name: str, value: str, row: int, words: set[str]) -> str:
    place = f"{source.path}, sample {row + 1}, column '{visible(name)}': '{visible(value)}' is no number"
    if source.decimal == "." and value.replace(",", "", 1).lstrip("+-").isdigit():
        return f'{place}: set decimal = ","'
    way = f'ignore = ["{name}"] leaves it out'
    if len(words) <= MOST_WORDS:
        way = f'categories = ["{name}"] makes a feature of each word, ' + way
    return f"{place}; {way}"


def _refuse_gaps(source: TableSource, name: str, absent: NDArray[np.bool_]) -> None:
    if source.missing == "refuse":
        raise DataError(
            f"{source.path}, sample {int(np.flatnonzero(absent)[0]) + 1}: column '{visible(name)}' is empty "
            f'({int(absent.sum())} cells are); fill them, or set missing = "mean"'
        )


def _scale(numbers: Floats) -> tuple[float, float]:
    """Mean and deviation of what is there; (0, 0) of nothing."""
    there = numbers[~np.isnan(numbers)]
    return (float(there.mean()), float(there.std())) if len(there) else (0.0, 0.0)


def _vocabulary(source: TableSource, name: str, values: Sequence[str], agreed: Sequence[str] | None) -> tuple[str, ...]:
    """The words of a column: those that were agreed on, or all that are there."""
    found = {value for value in values if value and value.lower() not in MISSING}
    words = tuple(sorted(found)) if agreed is None else tuple(agreed)
    other = sorted(found - set(words))
    if other:
        raise DataError(
            f"{source.path}: column '{visible(name)}' has '{visible(other[0])}', which the scale does not list: "
            f"it lists {', '.join(map(visible, words))}"
        )
    if not 0 < len(words) <= MOST_WORDS:
        raise DataError(
            f"{source.path}: column '{visible(name)}' has {len(words)} different words, from 1 to {MOST_WORDS} make "
            f'sense as categories; ignore = ["{name}"] leaves it out'
        )
    return words


def _words(values: Sequence[str], words: Sequence[str]) -> Floats:
    """`[n, words]` of zeros and ones; an empty cell is none of them."""
    place = {word: k for k, word in enumerate(words)}
    result = np.zeros((len(values), len(words)))
    for row, value in enumerate(values):
        if value in place:
            result[row, place[value]] = 1.0
    return result


def flat_scale(scale: Scale) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each column of `Dataset.images`; words are zeros and ones as they are."""
    parts = [[(0.0, 1.0)] * len(own) if isinstance(own[0], str) else [tuple(own)] for own in scale.values()]
    mean, deviation = zip(*(pair for part in parts for pair in part))
    return tuple(map(float, mean)), tuple(map(float, deviation))


def numbers_in(source: TableSource, scale: Scale) -> tuple[list[str], NDArray[np.float32]]:
    """Names and rows `[n, F]` of a table without labels, in its own units; what is missing is the scale's mean."""
    table = source.read_csv(source.path)
    features, _ = _features(source, table, scale, np.zeros(0, np.int64))
    mean, deviation = (np.array(each) for each in flat_scale(scale))
    rows = np.concatenate([feature.values for feature in features], axis=1) * deviation + mean
    return table.get(source.id_column) or row_names(table), rows.astype(np.float32)


def _leaking_columns(source: TableSource, table: Table, labels: Labels, rows: NDArray[np.int64]) -> list[ColumnRemark]:
    """What looks like no feature: a number of its own in every row, or a code that gives the label away.

    With such a code among the features every label looks right, and an audit would find nothing.
    """
    remarks = []
    classes = labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    several = len(np.unique(classes)) > 1
    for name in source.chosen(table):
        values, leave_out = np.array(table[name])[rows], f'ignore = ["{visible(name)}"]'
        different, number = np.unique(values, return_inverse=True)
        if len(different) == len(values) >= ENOUGH and all(value.lstrip("+-").isdigit() for value in different):
            text = f"column '{visible(name)}' has another whole number in every row"
            remarks.append(ColumnRemark("names", text, f"if it names the sample, set {leave_out}"))
        elif several and 1 < len(different) <= len(values) // 5:
            pairs = np.unique(np.stack([number, classes]), axis=1).shape[1]
            if pairs == len(different):
                text = f"column '{visible(name)}' gives away the label of every row"
                fix = f"if it was made from the label, set {leave_out}, or no label can look wrong"
                remarks.append(ColumnRemark("gives-away-the-label", text, fix))
    return remarks
