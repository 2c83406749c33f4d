"""Metrics as plain values for a table or a JSON line, where an undefined number is None."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Arrays to lists, dataclasses to dicts, NumPy numbers to Python's, NaN to None; all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and math.isnan(value) else value
