"""Values to letters and back. No pickles: see `contract.codec`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedsift.core import codec

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord, RecordDict

# A message between coordinator and site as Flower carries it: a JSON tree, the bytes of all tensors,
# a few words
# ------------------------------------------------------------------------------

CALL = "call"
MESSAGE_TYPE = f"query.{CALL}"
"""The one kind of Flower message that a site answers."""
TREE = "tree"
TENSORS = "tensors"
NOTE = "note"
SALT = "salt"
SALT_BYTES = 16
SALTED = 4 * 2**20
"""Bytes of tensors between two salts: less than one of Flower's pieces, so that none is without."""

TEXT_ROOM = 2**20
"""Characters of a message's tree, and of its tensors' list. A tree has about 2,000 and 50 for each tensor, the list
some 130 for each: twenty models of the 320 tensors of a ResNet-50 fit."""
MOST_PARTS = 100_000
"""Brackets and commas in a text: each may become an object of a hundred bytes. A list has 8 for each tensor."""
DEEPEST = 64
"""Brackets in brackets; the deepest request of the methods has 18."""
NOTE_ROOM = 4000
"""Characters of all words beside a tree: a network's name, a session, a federation."""


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

        records = RecordDict(
            {
                TREE: ConfigRecord({TREE: self.tree, SALT: secrets.token_hex(SALT_BYTES)}),
                NOTE: ConfigRecord({**self.note, SALT: secrets.token_hex(SALT_BYTES)}),
            }
        )
        if shared is not None:
            records[TENSORS] = shared
        elif self.tensors:
            records[TENSORS] = tensors_record(self.tensors)
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> Letter:
        """Raises ValueError on records that `to_records` does not make."""
        try:
            tree = _text(records.config_records[TREE][TREE], TEXT_ROOM)
            tensors = b""
            if TENSORS in records.array_records:
                tensors = _plain_bytes(records.array_records[TENSORS][TENSORS])
            words: Mapping[str, object] = records.config_records.get(NOTE, {})
            note = {key: _text(value, NOTE_ROOM) for key, value in words.items() if key != SALT}
            _text("".join((*note, *note.values())), NOTE_ROOM)
            return cls(tree, tensors, note)
        except Exception as error:  # the records come from another machine and may be anything
            raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def _text(value: object, room: int) -> str:
    """Anything but a text would grow when it is made one: a byte to four characters, a number to hundreds."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} stands where a text belongs")
    if len(value) > room:
        raise ValueError(f"a text has {len(value)} characters, {room} are the most")
    return value


def _plain_bytes(array: Array) -> bytes:
    """What `tensors_record` was given. An array of another shape is not built: it may declare any size."""
    stream = BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("the tensors are no array of bytes")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8 or shape != (len(array.data) - stream.tell(),):
        raise ValueError("the tensors are no array of bytes")
    return _unsalted(memoryview(array.data)[stream.tell() :])


def _salted(data: bytes) -> bytes:
    parts = (data[start : start + SALTED] for start in range(0, len(data), SALTED))
    return b"".join(part + secrets.token_bytes(SALT_BYTES) for part in parts)


def _unsalted(data: memoryview) -> bytes:
    step = SALTED + SALT_BYTES
    if 0 < len(data) % step <= SALT_BYTES:
        raise ValueError("the tensors end in the middle of a salt")
    return b"".join(data[start : start + step][:-SALT_BYTES] for start in range(0, len(data), step))


_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parsed(text: str) -> Any:
    """What a JSON text says. One of too many parts, or too deep, raises ValueError before anything is built of it."""
    bare = _QUOTED.sub("", _text(text, TEXT_ROOM))
    parts = sum(bare.count(mark) for mark in "[{,")
    if parts > MOST_PARTS:
        raise ValueError(f"a text has {parts} parts, {MOST_PARTS} are the most")
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"a text is nested more than {DEEPEST} levels deep")
    return json.loads(text)


def size_of_records(records: RecordDict) -> int:
    """Bytes of a message's arrays, numbers and texts as they came, before anything is made of them."""
    arrays = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    named = (records.config_records, records.metric_records)
    words = sum(
        len(key) + _size(value) for kind in named for record in kind.values() for key, value in record.items()
    )
    return arrays + words


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8


def tensors_record(tensors: bytes) -> ArrayRecord:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({TENSORS: Array(np.frombuffer(_salted(tensors), dtype=np.uint8))})


class Packer:
    """Packs values for one exchange; tensors that several values share are turned into bytes once."""

    def __init__(self) -> None:
        self._known: list[tuple[list[Tensor], ArrayRecord]] = []

    def pack(self, value: Any, **note: str) -> RecordDict:
        tree, tensors = codec.pack(value)
        shared = self._record(list(tensors.values())) if tensors else None
        return Letter(json.dumps(tree), b"", note).to_records(shared)

    def _record(self, tensors: list[Tensor]) -> ArrayRecord:
        for known, record in self._known:
            if len(known) == len(tensors) and all(_same(a, b) for a, b in zip(known, tensors)):
                return record
        record = tensors_record(_bytes(tensors))
        self._known.append((tensors, record))
        return record


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same memory, not merely equal."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.dtype == b.dtype
        and a.stride() == b.stride()
    )


def _bytes(tensors: list[Tensor]) -> bytes:
    return codec.to_bytes({str(number): tensor for number, tensor in enumerate(tensors)})


def letter_of(value: Any) -> Letter:
    tree, tensors = codec.pack(value)
    return Letter(json.dumps(tree), _bytes(list(tensors.values())) if tensors else b"")


def value_of(letter: Letter) -> Any:
    """The value that `letter_of` was given; raises ValueError on anything else."""
    try:
        return codec.unpack(parsed(letter.tree), _tensors(letter.tensors) if letter.tensors else {})
    except ValueError:
        raise
    except Exception as error:  # the bytes come from another machine and may be anything
        raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def _tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors by their numbers; their list and the tree in it are texts too, and looked at first."""
    size = int.from_bytes(data[:8], "little")
    if size > TEXT_ROOM:
        raise ValueError(f"the list of tensors has {size} bytes, {TEXT_ROOM} are the most")
    parsed(parsed(data[8 : 8 + size].decode())["__metadata__"]["tree"])
    found = codec.from_bytes(data)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError("the tensors are no tensors by number")
    return found


def pack(value: Any, **note: str) -> RecordDict:
    return Packer().pack(value, **note)


def unpack(records: RecordDict) -> Any:
    return value_of(Letter.from_records(records))
