"""A message between coordinator and site as Flower carries it: a JSON tree, the bytes of all tensors, a few words.

The tensors of a request are the same for every site, the tree is not (it names the site). Flower stores by content,
so in this form a model that goes to a hundred sites is uploaded and kept once. This module imports no torch, and Flower
only where records are made and read: the process that holds a site's data has letters alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

CALL = "call"
MESSAGE_TYPE = f"query.{CALL}"
"""The one kind of Flower message that a site answers."""
TREE = "tree"
TENSORS = "tensors"
NOTE = "note"


@dataclass(frozen=True)
class Letter:
    """What `records.pack` makes of a value."""

    tree: str
    tensors: bytes = b""
    note: dict[str, str] = field(default_factory=dict)

    def with_note(self, **words: str) -> Letter:
        return replace(self, note={**self.note, **words})

    def to_records(self, shared: ArrayRecord | None = None) -> RecordDict:
        """`shared`: the record of these very tensors, when another letter has them already."""
        from flwr.app import ConfigRecord, RecordDict

        records = RecordDict({TREE: ConfigRecord({TREE: self.tree}), NOTE: ConfigRecord(dict(self.note))})
        if shared is not None:
            records[TENSORS] = shared
        elif self.tensors:
            records[TENSORS] = tensors_record(self.tensors)
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> Letter:
        """Raises ValueError on records that `to_records` does not make."""
        try:
            tree = str(records.config_records[TREE][TREE])
            tensors = b""
            if TENSORS in records.array_records:
                tensors = records.array_records[TENSORS][TENSORS].numpy().tobytes()
            words: Mapping[str, object] = records.config_records.get(NOTE, {})
            return cls(tree, tensors, {str(key): str(value) for key, value in words.items()})
        except Exception as error:  # the records come from another machine and may be anything
            raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def size_of_records(records: RecordDict) -> int:
    """Bytes of a message's arrays and texts as they came, before anything is made of them."""
    arrays = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    texts = sum(
        len(value)
        for record in records.config_records.values()
        for value in record.values()
        if isinstance(value, str)
    )
    return arrays + texts


def tensors_record(tensors: bytes) -> ArrayRecord:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({TENSORS: Array(np.frombuffer(tensors, dtype=np.uint8))})
