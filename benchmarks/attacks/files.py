"""Results, read and written whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.benchmark.source_version import source_digest
from fedsift.core.files import write_atomically

SOURCE = "source"
"""In a row of results: the version of the source that measured it."""


def source() -> str:
    return source_digest()[:16]


def missing(row: Mapping[str, Any] | None, anew: bool) -> bool:
    """Whether a row is to be measured: it is not there, or, anew, another version of the source measured it."""
    return row is None or (anew and row.get(SOURCE) != source())


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())
