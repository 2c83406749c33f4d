"""Ranges of numbers as part of a field's type, checked whenever a dataclass is made.

rounds: AtLeastOne = 100
fraction: Share = 1.0
workers: Annotated[int, Range(0, 64)] = 0
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fedsift.core.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`; None is no bound. An `above` or `below` bound is not itself allowed."""

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False

    def refusal(self, value: object) -> str | None:
        """Why a value is outside, or None."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None  # another member of a union, such as None or a word: its type is checked elsewhere
        if isinstance(value, float) and not math.isfinite(value):
            return f"it must be {self.words}"
        low = self.low is None or (value > self.low if self.above else value >= self.low)
        high = self.high is None or (value < self.high if self.below else value <= self.high)
        return None if low and high else f"it must be {self.words}"

    @property
    def words(self) -> str:
        """'at least 1', 'positive', 'from 0 to 1', 'above 0 and at most 1'."""
        if self.low is not None and self.high is not None:
            if not self.above and not self.below:
                return f"from {self.low:g} to {self.high:g}"
            low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
            return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"
        if self.low is not None:
            if self.above:
                return "positive" if self.low == 0 else f"above {self.low:g}"
            return f"at least {self.low:g}"
        if self.high is not None:
            return f"{'below' if self.below else 'at most'} {self.high:g}"
        return "a finite number"


AtLeastOne = Annotated[int, Range(1)]
"""At least one."""
Count = Annotated[int, Range(0)]
"""None or more."""
Positive = Annotated[float, Range(0, above=True)]
AtLeastZero = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1, above=True)]
"""A part of a whole, never none of it."""
Rate = Annotated[float, Range(0, 1)]
"""A probability."""


_known: WeakKeyDictionary[type, dict[str, Range]] = WeakKeyDictionary()


def ranges_of(cls: type) -> dict[str, Range]:
    """The range of each field of a dataclass that has one."""
    if cls not in _known:
        _known[cls] = _read_ranges(cls)
    return _known[cls]


def _read_ranges(cls: Any) -> dict[str, Range]:
    found: dict[str, Range] = {}
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a class made inside a function, with types that only that function knows
        return found
    for field in dataclasses.fields(cls):
        limits = _range_in(hints[field.name])
        if limits is not None:
            found[field.name] = limits
    return found


def _range_in(hint: Any) -> Range | None:
    """The range in a hint: its own, or that of a member of a union."""
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Range):
            return note
    for member in typing.get_args(hint):
        found = _range_in(member)
        if found is not None:
            return found
    return None


def check_ranges(value: Any, where: str = "") -> None:
    """Refuse a dataclass with a number outside its field's range; the line names field, value and range."""
    for name, limits in ranges_of(type(value)).items():
        reason = limits.refusal(getattr(value, name))
        if reason is not None:
            raise ConfigError(f"{where}{name} = {getattr(value, name)}: {reason}")


class RangeChecked:
    """Base of dataclasses whose ranges are checked when an instance is made, before their own checks."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is None:
            return

        @wraps(own)
        def checked(self: Any) -> None:
            check_ranges(self)
            own(self)

        cls.__post_init__ = checked  # type: ignore[method-assign]
