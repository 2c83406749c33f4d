"""Pools of images in memory that processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift.local import native
from fedsift.local.stacked import pixels


@dataclass
class SharedPool:
    """A tensor's bytes in a nameless file that other processes can map, with its packed form if it has one."""

    tensor: Tensor
    files: list[int]
    """Descriptors: the tensor, and its packed form."""

    @property
    def description(self) -> dict[str, Any]:
        return {
            "shape": tuple(self.tensor.shape),
            "dtype": str(self.tensor.dtype).removeprefix("torch."),
            "packed": len(self.files) > 1,
        }

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []

    @classmethod
    def open(cls, description: dict[str, Any], files: list[int]) -> SharedPool:
        """On the receiving side: map the files; they stay mapped while the tensors live."""
        shape = tuple(description["shape"])
        tensor = _map(files[0], shape, getattr(torch, description["dtype"]))
        if description["packed"]:
            pixels.keep_packed(tensor, _map(files[1], (shape[0], *shape[2:]), torch.int32))
        pool = cls(tensor, files)
        pool.close()
        return pool


def share(tensor: Tensor) -> SharedPool:
    """A copy of the tensor's bytes for other processes."""
    files = [_file_of(tensor)]
    if native.library() is None and pixels.can_pack(tensor):
        packed = pixels.packed_pool(tensor)
        if packed is not None:
            files.append(_file_of(packed))
            pixels.forget_packed(tensor)
    return SharedPool(tensor, files)


def _file_of(tensor: Tensor) -> int:
    memory = Path("/dev/shm")
    with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
        for part in torch.split(tensor, 4096):
            file.write(part.contiguous().numpy().tobytes())
        file.flush()
        return os.dup(file.fileno())


def _map(file: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = os.fstat(file).st_size
    # writable for torch's sake, private to this process: nobody's data can be changed through it
    memory = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
