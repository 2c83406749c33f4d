"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """FEDSIFT_CACHE, or `fedsift` in the user's cache folder."""
    chosen = os.environ.get("FEDSIFT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsift"
