"""Values as plain JSON, where a number that is none is null. This module imports neither torch nor NumPy."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses to dicts, arrays and tensors to lists, NaN and infinities to None; all the way down."""
    if isinstance(value, float):  # NumPy's doubles are floats too
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors, NumPy's own numbers
        return plain(value.tolist())
    if isinstance(value, os.PathLike):
        return str(value)
    return value
