"""Encodes values as messages and decodes them, without pickle (see `core.codec`)."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from fedsift.core import codec
from fedsift.transports.remote.messages import MOST_CHARACTERS, EncodedMessage, parsed


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
