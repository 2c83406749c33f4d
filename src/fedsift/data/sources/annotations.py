"""Labels as tables write them: one name a sample, names with a separator, or one 0/1 column a class."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.text import visible
from fedsift.data.dataset import Labels

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
