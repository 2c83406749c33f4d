"""Files that are never half written, and names that are safe for them. This module imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Either the old file or the new one, never a part: write beside, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def safe_name(site: str) -> str:
    """A file name for a site: readable, without separators, different for different sites."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", site)[:60].lstrip(".") or "site"
    if readable == site:
        return readable
    digest = hashlib.blake2b(json.dumps(site).encode(), digest_size=16).hexdigest()
    return f"{readable}-{digest[:8]}"
