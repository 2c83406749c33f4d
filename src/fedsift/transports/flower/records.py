"""Converts an encoded message to Flower's records and back. Imports no torch.

Flower stores by content, so the tensors of a request, which are the same for every site, are uploaded and kept once.
Flower trusts the first client that names a piece about what belongs to it. Who knows the hash of a piece before its
sender names it could so have everybody wait for pieces that do not exist. So every record and every piece of 5 MB
holds random bytes, and each sending has others.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsift.transports.remote.messages import (
    MOST_CHARACTERS,
    MOST_NOTE_CHARACTERS,
    EncodedMessage,
    checked_text,
)

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


def to_records(message: EncodedMessage, shared: ArrayRecord | None = None) -> RecordDict:
    """`shared`: the record of these very tensors, when another message has them already."""
    records = RecordDict(
        {
            TREE: ConfigRecord({TREE: message.tree, SALT: secrets.token_hex(SALT_BYTES)}),
            NOTE: ConfigRecord({**message.note, SALT: secrets.token_hex(SALT_BYTES)}),
        }
    )
    if shared is not None:
        records[TENSORS] = shared
    elif message.tensors:
        records[TENSORS] = tensors_record(message.tensors)
    return records


def from_records(records: RecordDict) -> EncodedMessage:
    """Raises ValueError on records that `to_records` does not make."""
    try:
        tree = checked_text(records.config_records[TREE][TREE], MOST_CHARACTERS)
        tensors = b""
        if TENSORS in records.array_records:
            tensors = _plain_bytes(records.array_records[TENSORS][TENSORS])
        texts: Mapping[str, object] = records.config_records.get(NOTE, {})
        note = {key: checked_text(value, MOST_NOTE_CHARACTERS) for key, value in texts.items() if key != SALT}
        checked_text("".join((*note, *note.values())), MOST_NOTE_CHARACTERS)
        return EncodedMessage(tree, tensors, note)
    except Exception as error:  # the records come from another machine and may be anything
        raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def tensors_record(tensors: bytes) -> ArrayRecord:
    return ArrayRecord({TENSORS: Array(np.frombuffer(_salted(tensors), dtype=np.uint8))})


def size_of_records(records: RecordDict) -> int:
    """Bytes of a message's arrays, numbers and texts as they came, before anything is made of them."""
    arrays = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    named = (records.config_records, records.metric_records)
    texts = sum(len(key) + _size(value) for kind in named for record in kind.values() for key, value in record.items())
    return arrays + texts


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8


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
