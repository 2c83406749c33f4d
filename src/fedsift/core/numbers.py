"""Formats numbers, sizes and durations for people, converts values to plain JSON, and rounds counts down."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsift.core.text import visible

SHOWN = 5
"""Names listed in a sentence before "and so many more"."""
AMBIGUOUS = re.compile(r"[,;“”\"]| and ")
"""What a sentence about names uses itself."""


def percent(value: Any, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%" if _is_number(value) else "–"


def number(value: Any) -> str:
    """A number as a person writes it: whole ones with separators, others with three or four figures."""
    if not _is_number(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def size(count: Any) -> str:
    if not _is_number(count):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: Any) -> str:
    if not _is_number(seconds):
        return "–"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def named(name: object) -> str:
    """A name in a sentence: what would act is written as an escape, what could be read as two names is quoted."""
    shown = visible(name)
    return f"“{shown}”" if AMBIGUOUS.search(shown) or shown != shown.strip() or not shown else shown


def isolated(name: object) -> str:
    """The same for a page: a name that is written from right to left does not turn its neighbours around."""
    shown = named(name)
    turns = any(unicodedata.bidirectional(char) in ("R", "AL") for char in shown)
    return f"\u2068{shown}\u2069" if turns else shown


def listed(names: Sequence[str], shown: int = SHOWN, name: Callable[[object], str] = named) -> str:
    """Names in a row; a long list ends in how many more there are."""
    words = [name(one) for one in names]
    if len(words) <= shown + 1:
        return ", ".join(words)
    return f"{', '.join(words[:shown])} and {len(words) - shown} more"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Values as plain JSON
# ------------------------------------------------------------------------------


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


# Rounding a rate times a size to a whole number of samples
# ------------------------------------------------------------------------------


def floor_count(amount: float, *, forgiving: bool = True) -> int:
    """⌊amount + 1e-9⌋: forgives one rounding error, so that 0.29·100 = 28.99...96 counts as 29.

    Not forgiving, it is the plain truncation of the papers' released code: 28.
    """
    return math.floor(amount + 1e-9 if forgiving else amount)
