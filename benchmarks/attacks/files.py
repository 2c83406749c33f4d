"""Results, read and written whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsift.contract.files import write_atomically


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())
