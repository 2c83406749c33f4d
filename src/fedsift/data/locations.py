"""Where data and caches lie: folders named in FEDSIFT_DATA, then the user's own cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from fedsift.core.errors import DataError
from fedsift.core.files import cache_root


class DataNotFound(DataError):
    """The dataset is not on this machine; whatever else may be wrong with it is another error."""


def data_roots() -> list[Path]:
    """Folders that are searched for datasets: those of FEDSIFT_DATA in order, then the cache."""
    named = os.environ.get("FEDSIFT_DATA", "")
    return [Path(part).expanduser() for part in named.split(os.pathsep) if part] + [cache_root()]


def find(name: str, path: Path | None, hint: str) -> Path:
    """The dataset's folder: `path` if given, else the first root that has a folder called `name`."""
    if path is not None:
        if path.exists():
            return path
        raise DataNotFound(f"there is no {path}; {hint}")
    for root in data_roots():
        if (root / name).exists():
            return root / name
    searched = ", ".join(str(root) for root in data_roots())
    raise DataNotFound(f"'{name}' is in none of {searched}; {hint}, or set `path`, or name its parent in FEDSIFT_DATA")


def first(folder: Path, *patterns: str) -> Path | None:
    """The first file, in the order of the patterns, that lies in the folder."""
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    return None
