"""A table from where pictures lie, for folders without a CSV; and which side of a split a word means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedsift.contract.errors import DataError
from fedsift.contract.plaintext import readable
from fedsift.data.images import Picture
from fedsift.data.tables import Table

SPLITS = {"train": "train", "training": "train", "": "train", "test": "test", "testing": "test"}
VALIDATION = ("val", "valid", "validation", "dev")


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
