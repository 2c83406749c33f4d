"""Messages as Flower records: the JSON tree in one record, all tensors as one array of bytes in another.

The tensors of a request are the same for every site, the tree is not (it names the site). Flower stores by content,
so in this form a model that goes to a hundred sites is uploaded and kept once.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedsift.contract import codec

TREE = "tree"
TENSORS = "tensors"
NOTE = "note"


class Packer:
    """Packs values for one exchange; tensors that several values share are turned into bytes once."""

    def __init__(self) -> None:
        self._known: list[tuple[list[Tensor], ArrayRecord]] = []

    def pack(self, value: Any, **note: str) -> RecordDict:
        tree, tensors = codec.pack(value)
        records = RecordDict({TREE: ConfigRecord({TREE: json.dumps(tree)}), NOTE: ConfigRecord(dict(note))})
        if tensors:
            records[TENSORS] = self._record(list(tensors.values()))
        return records

    def _record(self, tensors: list[Tensor]) -> ArrayRecord:
        for known, record in self._known:
            if len(known) == len(tensors) and all(_same(a, b) for a, b in zip(known, tensors)):
                return record
        blob = codec.to_bytes({str(number): tensor for number, tensor in enumerate(tensors)})
        record = ArrayRecord({TENSORS: Array(np.frombuffer(blob, dtype=np.uint8))})
        self._known.append((tensors, record))
        return record


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same memory, not merely equal."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


def pack(value: Any, **note: str) -> RecordDict:
    return Packer().pack(value, **note)


def unpack(records: RecordDict) -> Any:
    """The value that `pack` was given; raises ValueError on anything else."""
    try:
        tree = json.loads(str(records.config_records[TREE][TREE]))
        tensors: dict[str, Tensor] = {}
        if TENSORS in records.array_records:
            tensors = codec.from_bytes(records.array_records[TENSORS][TENSORS].numpy().tobytes())
        return codec.unpack(tree, tensors)
    except ValueError:
        raise
    except Exception as error:  # the bytes come from another machine and may be anything
        raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def note_of(records: RecordDict) -> dict[str, str]:
    """The plain words beside the value."""
    if NOTE not in records.config_records:
        return {}
    return {str(key): str(value) for key, value in records.config_records[NOTE].items()}
