"""Which version of the source measured a row of results, and whether it is to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.benchmark.cells import source_digest

SOURCE = "source"
"""In a row of results: the version of the source that measured it."""


def source() -> str:
    return source_digest()[:16]


def missing(row: Mapping[str, Any] | None, anew: bool) -> bool:
    """Whether a row is to be measured: it is not there, or, anew, another version of the source measured it."""
    return row is None or (anew and row.get(SOURCE) != source())
