"""Encodes messages, states and notebooks as bytes and decodes them, without pickle.

A value becomes a JSON tree and a flat dictionary of tensors. Dataclasses travel by the name of a class that
derives from `WireFormat`; a name that no loaded class has is refused, so bytes can never choose what code to import.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedsift.core.errors import RunError
from fedsift.core.files import write_atomically

Tree = Any
"""JSON: None, bool, int, float, str, list, dict with string keys."""


class WireFormat:
    """Base of every dataclass that may be stored or sent. Class names are unique among them."""

    _known: ClassVar[dict[str, type[WireFormat]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        other = WireFormat._known.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"two stored classes are called {cls.__name__}: {other.__module__} and {cls.__module__}")
        WireFormat._known[cls.__name__] = cls


def pack(value: Any) -> tuple[Tree, dict[str, Tensor]]:
    """A JSON tree and the tensors that it refers to."""
    tensors: dict[str, Tensor] = {}
    return _pack(value, tensors), tensors


def _pack(value: Any, tensors: dict[str, Tensor]) -> Tree:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        return {"$tensor": _keep(value, tensors)}
    if isinstance(value, np.ndarray):
        return {"$array": _keep(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if isinstance(value, list):
        return [_pack(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item, tensors) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _pack(item, tensors) for key, item in value.items()}
        return {"$dict": [[_pack(key, tensors), _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, WireFormat):
        fields = {f.name: _pack(getattr(value, f.name), tensors) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        return {"$class": type(value).__name__, "fields": fields}
    raise TypeError(f"a {type(value).__name__} can be neither stored nor sent")


def _keep(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    key = str(len(tensors))
    tensors[key] = tensor.detach().cpu().contiguous()
    return key


def unpack(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The value that `pack` was given; raises ValueError on anything that `pack` does not write."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$tensor" in tree:
        return _stored(tree["$tensor"], tensors)
    if "$array" in tree:
        return _stored(tree["$array"], tensors).numpy()
    if "$tuple" in tree:
        return tuple(unpack(item, tensors) for item in tree["$tuple"])
    if "$dict" in tree:
        return {unpack(key, tensors): unpack(item, tensors) for key, item in tree["$dict"]}
    if "$class" in tree:
        return _rebuild(tree, tensors)
    return {key: unpack(item, tensors) for key, item in tree.items()}


def _stored(key: Any, tensors: dict[str, Tensor]) -> Tensor:
    if key not in tensors:
        raise ValueError(f"tensor {key!r} is missing")
    return tensors[key]


def _rebuild(tree: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    name = tree["$class"]
    cls = WireFormat._known.get(name)
    if cls is None:
        raise ValueError(f"unknown class {name!r}")
    fields = {key: unpack(item, tensors) for key, item in tree["fields"].items()}
    declared = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if set(fields) != declared:
        raise ValueError(f"{name} has fields {sorted(declared)}, not {sorted(fields)}")
    return cls(**fields)


def to_bytes(value: Any) -> bytes:
    tree, tensors = pack(value)
    # safetensors refuses tensors that share memory; a value may well hold one tensor twice
    seen: set[int] = set()
    for key, tensor in tensors.items():
        if tensor.untyped_storage().data_ptr() in seen:
            tensors[key] = tensor.clone()
        seen.add(tensors[key].untyped_storage().data_ptr())
    return bytes(save_tensors(tensors, metadata={"tree": json.dumps(tree)}))


def from_bytes(data: bytes) -> Any:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return unpack(json.loads(header["__metadata__"]["tree"]), load_tensors(data))


def size_of(value: Any) -> int:
    """Bytes that the value takes on its way: its tensors and its JSON."""
    tree, tensors = pack(value)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + len(json.dumps(tree))


def digest_of(value: Any) -> str:
    """A fingerprint of a value: equal values, equal digests."""
    tree, tensors = pack(value)
    hasher = hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16)
    for tensor in tensors.values():
        hasher.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def save(path: Path, value: Any) -> None:
    write_atomically(path, to_bytes(value))


def load(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return decoded(data, path)


def decoded(data: bytes, path: Path) -> Any:
    """The value in a file's bytes; the error names the file."""
    try:
        return from_bytes(data)
    except Exception as error:
        raise RunError(f"{path} cannot be read: {error}") from error
