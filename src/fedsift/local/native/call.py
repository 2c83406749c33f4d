"""Calling kernels, in parts by as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedsift.local.native.build import library

KINDS = {torch.float32: "float", torch.float64: "double"}


def address(value: Tensor | None) -> int | None:
    """A number in place of a pointer object, which would be made anew for every call."""
    return None if value is None else value.data_ptr()


def in_parts(parts: int, name: str, call: Callable[[Any, int, int], None]) -> None:
    """`call(kernel, part, parts)` for every part; a call through ctypes lets the interpreter's lock go."""
    kernel = getattr(library(), name)
    if parts <= 1:
        call(kernel, 0, 1)
        return
    for done in [_threads(parts).submit(call, kernel, part, parts) for part in range(parts)]:
        done.result()


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="fedsift-kernel")
