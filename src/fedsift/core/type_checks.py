"""Checks a decoded message against its class: types from the annotations, ranges from the fields.

A reply may hold anything at all: a text where a number was declared, a float8 tensor, a whole number of 400 digits.
What fits here can be used without further care for types; what a number *means* is for the reply's own `refusal`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.core.codec import WireFormat

TENSOR_TYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    }
)
LONGEST_TEXT = 1000
"""Characters of a text in a reply; longer texts belong into the site's own log."""
LARGEST_WHOLE = 2**53
"""A whole number beyond this is no count of anything, and does not survive as a float."""
LARGEST_NUMBER = 1e30
"""A tensor's number beyond this was not measured, and sums and squares of a few such numbers are infinite."""
LARGEST_SCORE = 1e9
"""A single number is a loss or a score: one beyond this would drown all others in a mean."""
MOST_ITEMS = 100_000
"""Entries of a list or dictionary."""
DEEPEST = 20


def schema_error(value: Any, hint: Any, where: str = "the reply", depth: int = 0) -> str | None:
    """Why `value` is not what `hint` declares, naming the place, or None when it fits."""
    if depth > DEEPEST:
        return f"{where} is nested more than {DEEPEST} levels deep"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return f"{where} declares no type"
    if origin in (typing.Union, types.UnionType):
        reasons = [schema_error(value, option, where, depth) for option in arguments]
        return None if None in reasons else reasons[0]
    if origin is typing.Literal:
        return None if value in arguments and type(value) in map(type, arguments) else _is_no(where, value, hint)
    if origin is tuple or hint is tuple:
        return _tuple(value, arguments, where, depth)
    if origin in (list, Sequence):
        return _items(value, list, arguments[0], where, depth)
    if origin in (dict, Mapping):
        return _mapping(value, arguments, where, depth)
    if isinstance(origin, type):  # a generic dataclass such as Request[Reply]
        return schema_error(value, origin, where, depth)
    if isinstance(hint, type):
        return _plain(value, hint, where, depth)
    return f"{where} is declared as {hint}, which cannot be checked"


def _plain(value: Any, hint: type, where: str, depth: int) -> str | None:
    if hint is type(None):
        return None if value is None else _is_no(where, value, "None")
    if hint is bool:
        return None if isinstance(value, bool) else _is_no(where, value, "bool")
    if hint is int:
        if not isinstance(value, int) or isinstance(value, bool):
            return _is_no(where, value, "whole number")
        return None if abs(value) <= LARGEST_WHOLE else f"{where} is beyond {LARGEST_WHOLE}"
    if hint is float:
        return _number(value, where)
    if hint is str:
        if not isinstance(value, str):
            return _is_no(where, value, "text")
        return None if len(value) <= LONGEST_TEXT else f"{where} has {len(value)} characters"
    if issubclass(hint, Tensor):
        return _tensor(value, where)
    if issubclass(hint, np.ndarray):
        return None if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else _is_no(where, value, "array")
    if issubclass(hint, WireFormat):
        return _fields(value, hint, where, depth)
    return f"{where} is declared as {hint.__name__}, which no message may hold"


def _number(value: Any, where: str) -> str | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _is_no(where, value, "number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        return f"{where} is not finite (NaN or infinity)"
    return None if abs(value) <= LARGEST_SCORE else f"{where} is beyond {LARGEST_SCORE:.0e}"


def _tensor(value: Any, where: str) -> str | None:
    if not isinstance(value, Tensor):
        return _is_no(where, value, "tensor")
    if value.dtype not in TENSOR_TYPES or value.layout != torch.strided or value.device.type != "cpu":
        return f"{where} is a tensor of type {value.dtype}, which no message may hold"
    if value.requires_grad:
        return f"{where} is a tensor that wants gradients, which no message may hold"
    if value.numel() == 0 or value.dtype == torch.bool:
        return None
    extremes = [float(value.min()), float(value.max())]
    if not all(math.isfinite(number) for number in extremes):
        return f"{where} holds numbers that are not finite (NaN or infinity)"
    most = LARGEST_NUMBER if value.is_floating_point() else LARGEST_WHOLE
    return None if max(map(abs, extremes)) <= most else f"{where} holds numbers beyond {most:.0e}"


def _tuple(value: Any, arguments: tuple[Any, ...], where: str, depth: int) -> str | None:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _items(value, tuple, arguments[0], where, depth)
    if not isinstance(value, tuple) or len(value) != len(arguments):
        return _is_no(where, value, f"tuple of {len(arguments)}")
    reasons = (
        schema_error(item, hint, f"{where}[{i}]", depth + 1) for i, (item, hint) in enumerate(zip(value, arguments))
    )
    return next((reason for reason in reasons if reason), None)


def _items(value: Any, kind: type[list[Any]] | type[tuple[Any, ...]], hint: Any, where: str, depth: int) -> str | None:
    if not isinstance(value, kind):
        return _is_no(where, value, kind.__name__)
    if len(value) > MOST_ITEMS:
        return f"{where} has {len(value)} entries"
    reasons = (schema_error(item, hint, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
    return next((reason for reason in reasons if reason), None)


def _mapping(value: Any, arguments: tuple[Any, ...], where: str, depth: int) -> str | None:
    if not isinstance(value, dict):
        return _is_no(where, value, "dictionary")
    if len(value) > MOST_ITEMS:
        return f"{where} has {len(value)} entries"
    for key, item in value.items():
        reason = schema_error(key, arguments[0], f"a key of {where}", depth + 1) or schema_error(
            item, arguments[1], f"{where}['{shown(key)}']", depth + 1
        )
        if reason:
            return reason
    return None


def _fields(value: Any, hint: type[WireFormat], where: str, depth: int) -> str | None:
    """Every field of a dataclass against the declaration of its own class, which may derive from the declared one."""
    if not isinstance(value, hint):
        return _is_no(where, value, hint.__name__)
    for field, declared in declarations(type(value)):
        place = f"{where}.{field.name}" if depth else field.name
        own = getattr(value, field.name)
        reason = schema_error(own, declared, place, depth + 1) or _out_of_range(own, field.metadata, place)
        if reason:
            return reason
    return None


def _out_of_range(value: Any, limits: Mapping[str, Any], where: str) -> str | None:
    """`least` and `most`, declared with the field, for numbers and for every number of a tensor or tuple."""
    least, most = limits.get("least"), limits.get("most")
    if least is None and most is None:
        return None
    for number in _extremes(value):
        if (least is not None and number < least) or (most is not None and number > most):
            low, high = "-inf" if least is None else least, "inf" if most is None else most
            return f"{where} = {number:.4g} is outside {low} to {high}"
    return None


def _extremes(value: Any) -> list[float]:
    if isinstance(value, Tensor):
        return [float(value.min()), float(value.max())] if value.numel() else []
    if isinstance(value, tuple | list):
        return [number for item in value for number in _extremes(item)]
    return [value] if isinstance(value, int | float) else []


_declarations: dict[type[Any], tuple[tuple[dataclasses.Field[Any], Any], ...]] = {}


def declarations(cls: type[Any]) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """A dataclass's fields with their types; worked out once for each class."""
    if cls not in _declarations:
        hints = typing.get_type_hints(cls)
        _declarations[cls] = tuple((field, hints[field.name]) for field in dataclasses.fields(cls))
    return _declarations[cls]


def shown(value: Any) -> str:
    """A value from outside as a short, harmless piece of a sentence."""
    if isinstance(value, str):
        text = value[:61]
    elif isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        text = "very large"
    elif value is None or isinstance(value, bool | int | float):
        text = repr(value)
    else:
        text = f"{len(value)} entries" if isinstance(value, tuple | list | dict) else "..."
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= 60 else f"{clean[:57]}..."


def _is_no(where: str, value: Any, what: Any) -> str:
    return f"{where} is a {type(value).__name__} ({shown(value)}), not a {what}"
