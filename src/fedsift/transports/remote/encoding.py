"""Values to encoded messages and back. No pickles: see `core.codec`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedsift.core import codec


class Encoder:
    """Encodes values for one exchange; tensors that several values share are turned into bytes once."""

    def __init__(self) -> None:
        self._known: list[tuple[list[Tensor], bytes]] = []

    def encode(self, value: Any, **note: str) -> EncodedMessage:
        tree, tensors = codec.pack(value)
        return EncodedMessage(json.dumps(tree), self._bytes(list(tensors.values())) if tensors else b"", note)

    def _bytes(self, tensors: list[Tensor]) -> bytes:
        for known, data in self._known:
            if len(known) == len(tensors) and all(_same_memory(a, b) for a, b in zip(known, tensors)):
                return data
        data = codec.to_bytes({str(number): tensor for number, tensor in enumerate(tensors)})
        self._known.append((tensors, data))
        return data


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same memory, not merely equal."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


def encode(value: Any, **note: str) -> EncodedMessage:
    """A value as text and bytes, with texts beside it."""
    return Encoder().encode(value, **note)


def decode(message: EncodedMessage) -> Any:
    """The value that `encode` was given; raises ValueError on anything else."""
    try:
        return codec.unpack(parsed(message.tree), _tensors(message.tensors) if message.tensors else {})
    except ValueError:
        raise
    except Exception as error:  # the bytes come from another machine and may be anything
        raise ValueError(f"the message cannot be read: {type(error).__name__}: {error}") from error


def _tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors by their numbers; their list and the tree in it are texts too, and looked at first."""
    size = int.from_bytes(data[:8], "little")
    if size > MOST_CHARACTERS:
        raise ValueError(f"the list of tensors has {size} bytes, {MOST_CHARACTERS} are the most")
    parsed(parsed(data[8 : 8 + size].decode())["__metadata__"]["tree"])
    found = codec.from_bytes(data)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError("the tensors are no tensors by number")
    return found


# Encoded messages
# ------------------------------------------------------------------------------


MOST_CHARACTERS = 2**20
"""Characters of a message's tree, and of its tensors' list. A tree has about 2,000 and 50 for each tensor, the list
some 130 for each: twenty models of the 320 tensors of a ResNet-50 fit."""
MOST_PARTS = 100_000
"""Brackets and commas in a text: each may become an object of a hundred bytes. A list has 8 for each tensor."""
DEEPEST = 64
"""Brackets in brackets; the deepest request of the methods has 18."""
MOST_NOTE_CHARACTERS = 4000
"""Characters of all texts beside a tree: a network's name, a session, a federation."""


@dataclass(frozen=True)
class EncodedMessage:
    """A value as text and bytes, see `encoding.encode`."""

    tree: str
    tensors: bytes = b""
    note: dict[str, str] = field(default_factory=dict)
    """Texts beside the value, by name."""

    def with_note(self, **texts: str) -> EncodedMessage:
        return replace(self, note={**self.note, **texts})


def checked_text(value: object, most: int) -> str:
    """The value, if it is a text of at most so many characters; anything but a text would grow when made one."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} stands where a text belongs")
    if len(value) > most:
        raise ValueError(f"a text has {len(value)} characters, {most} are the most")
    return value


_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parsed(text: str) -> Any:
    """What a JSON text says. One of too many parts, or too deep, raises ValueError before anything is built of it."""
    bare = _QUOTED.sub("", checked_text(text, MOST_CHARACTERS))
    parts = sum(bare.count(mark) for mark in "[{,")
    if parts > MOST_PARTS:
        raise ValueError(f"a text has {parts} parts, {MOST_PARTS} are the most")
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"a text is nested more than {DEEPEST} levels deep")
    return json.loads(text)
