"""Which program computed a run: the version, and a digest of the source of every package that computes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsift.core.version import __version__
from fedsift.data.download import data_roots
from fedsift.models.weights import digest_of, find_weights

PACKAGES = (
    "core", "protocol", "data", "models", "formulas", "detection", "training", "methods", "audit", "runtime", "study"
)  # fmt: skip
SUFFIXES = frozenset({".py", ".cpp", ".h"})


@cache
def source_digest() -> str:
    """Of all source files of the packages that compute, whatever folder they are installed in."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted(f for f in (root / package).rglob("*") if f.suffix in SUFFIXES):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def version_of(study: Mapping[str, Any]) -> str:
    """The version that a run of this study has: the program's, and that of every class which it names by address."""
    tables = [table for table in study.values() if isinstance(table, Mapping)]
    named = sorted({module for table in tables for module in _addresses(table)})
    own = "".join(f"+{module}@{_module_digest(module)}" for module in named)
    model = study.get("model", {})
    if model.get("weights"):
        origin = find_weights(model["weights"], model.get("name", ""), data_roots())
        own += f"+weights@{digest_of(origin)}"
    return f"{__version__}+{source_digest()[:16]}{own}"


def _addresses(value: Any) -> Iterator[str]:
    """The modules of `package.module:Name` anywhere in a study."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("name", "cycle", "sites"):
                for text in _texts(item):
                    head, colon, tail = text.removeprefix("features:").partition(":")
                    if colon and tail and head != "own":
                        yield head
            if isinstance(item, Mapping):
                yield from _addresses(item)


def _texts(item: Any) -> Iterator[str]:
    parts = item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else [item]
    yield from (part for part in parts if isinstance(part, str))


def _module_digest(module: str) -> str:
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return "unknown"
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:16]
