"""Values to letters and back. No pickles: see `contract.codec`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedsift.contract import codec
from fedsift.engines.flower.letters import TEXT_ROOM, Letter, parsed, tensors_record

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict


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
