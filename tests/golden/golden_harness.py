"""Reading golden vectors, comparing results with them, and the table of adapters.

An adapter turns a case's inputs into calls of the product's own functions. It is chosen by (topic, op) and
sees the variant and the inputs, never the name of a case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

MISSING = "missing: "
VECTORS = Path(__file__).parent / "vectors"

Adapter = Callable[[dict[str, Any], str], dict[str, Any]]


class MissingEntry(Exception):
    """The product has no such topic, operation or variant."""


class NullIsUnchecked:
    """A value whose expected null means "not checked" rather than "undefined"."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Adapters:
    """Functions by (topic, op), each with the variants that it claims."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], Adapter] = {}

    def add(self, topic: str, op: str, *variants: str) -> Callable[[Adapter], Adapter]:
        def keep(function: Adapter) -> Adapter:
            def checked(inputs: dict[str, Any], variant: str) -> dict[str, Any]:
                if variant not in variants:
                    raise MissingEntry(f"{topic}/{op}/{variant}")
                return function(inputs, variant)

            self.table[topic, op] = checked
            return function

        return keep


def decode(value: Any) -> Any:
    """JSON without infinities to Python with them."""
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if isinstance(value, dict):
        return {key: decode(entry) for key, entry in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value


def load(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(topic, case) of all files of a folder."""
    for path in sorted(folder.glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        for case in body["cases"]:
            yield body["topic"], case


def parameters(folder: Path) -> list[Any]:
    """One test parameter a case; a folder without any is a mistake, not a pass."""
    found = [
        pytest.param(topic, case, id=f"{topic}-{case['op']}-{case['variant']}-{case['name']}")
        for topic, case in load(folder)
    ]
    if not found:
        raise pytest.UsageError(f"no golden vectors (*.json) in {folder}")
    return found


def listed(value: Any) -> Any:
    """Tensors and arrays to nested lists."""
    if isinstance(value, NullIsUnchecked):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): listed(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [listed(entry) for entry in value]
    return value


def check(got: Any, want: Any, tolerance: Mapping[str, float], path: str = "") -> None:
    """Compare a result with the expected value: numbers within the case's tolerance, all else exactly."""
    if isinstance(got, NullIsUnchecked):
        if want is None:
            return
        got = got.value
    if hasattr(got, "agrees"):  # measured by drawing: it brings its own allowance
        assert got.agrees(want), f"{path}: measured {got!r}, expected {want!r}"
        return
    if isinstance(want, dict):
        assert isinstance(got, dict), f"{path}: got {got!r}"
        for key, value in want.items():
            assert key in got, f"{path}.{key}: the adapter returns no such value"
            check(got[key], value, tolerance, f"{path}.{key}")
    elif isinstance(want, list):
        assert isinstance(got, list), f"{path}: got {got!r}, expected a list"
        assert len(got) == len(want), f"{path}: {len(got)} entries, expected {len(want)}"
        for i, (a, b) in enumerate(zip(got, want)):
            check(a, b, tolerance, f"{path}[{i}]")
    elif want is None or isinstance(want, bool | str | int):
        assert got == want, f"{path}: got {got!r}, expected {want!r}"
    elif math.isinf(want) or math.isnan(want):
        assert got is not None, f"{path}: got None, expected {want}"
        assert str(float(got)) == str(want), f"{path}: got {got!r}, expected {want}"
    else:
        assert got is not None, f"{path}: got None, expected {want}"
        allowed = tolerance["atol"] + tolerance["rtol"] * abs(want)
        assert abs(got - want) <= allowed, f"{path}: got {got!r}, expected {want!r}"


def run_case(table: Mapping[tuple[str, str], Adapter], topic: str, case: Mapping[str, Any]) -> None:
    """Run one case through its adapter and compare; MissingEntry if the product has no such thing."""
    op, variant = case["op"], case["variant"]
    if (topic, op) not in table:
        raise MissingEntry(f"{topic}/{op}/{variant}")
    try:
        got = table[topic, op](decode(case["inputs"]), variant)
    except NotImplementedError as lacking:
        raise MissingEntry(f"{topic}/{op}/{variant}") from lacking
    check(listed(got), decode(case["expected"]), case["tolerance"])
