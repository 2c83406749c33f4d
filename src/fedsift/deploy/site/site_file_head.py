"""The few keys of site.toml that the gateway and the node need, read without importing torch."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.files import cache_root, safe_name

APP_PIN = re.compile(r"sha256:[0-9a-f]{64}")
EGRESS_FILE = "egress.jsonl"
LARGEST_ANSWER = 16
"""MB; Flower sends arrays in pieces of 5 MB, and the coordinator's gateway takes as much in one request."""


@dataclass(frozen=True)
class SiteHead:
    """The keys of site.toml that are read here; the worker checks the whole file."""

    path: Path
    name: str
    notebook: Path
    """The site's own notes, in a folder by its name."""
    apps: frozenset[str]
    """SHA-256 of the apps that may run here."""
    largest_answer: int
    """Bytes of one answer of the coordinator's that this site's gateway takes."""
    data: tuple[Path, ...]
    """Where the site's samples are: what [data] and [public] name, the folders of FEDSIFT_DATA, fedsift's cache."""

    @property
    def guarded(self) -> tuple[Path, ...]:
        """What no app may open."""
        return (self.path, self.notebook, self.notebook.parent / "privacy", *self.data)

    @property
    def egress(self) -> Path:
        return self.notebook / EGRESS_FILE


def read_head(site_file: Path) -> SiteHead:
    path = Path(site_file).resolve()
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"site file '{site_file}' does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{site_file} cannot be read: {error}") from None
    name, apps = table.get("name"), table.get("apps", [])
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{site_file}: 'name' is empty; the federation knows a site by its name")
    for pin in apps if isinstance(apps, list) else [apps]:
        if not isinstance(pin, str) or not APP_PIN.fullmatch(pin):
            raise ConfigError(f"{site_file}: 'apps' has '{pin}'; a pin is sha256: and 64 hexadecimal digits")
    notebook = path.parent / str(table.get("notebook", "notebook")) / safe_name(name)
    most = table.get("largest_answer", LARGEST_ANSWER)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"{site_file}: 'largest_answer' = {most!r}, in MB, must be a whole number above 0")
    pins = frozenset(pin.removeprefix("sha256:") for pin in apps)
    return SiteHead(path, name, notebook, pins, most * 2**20, _data_of(table, path.parent))


def _data_of(table: dict[str, Any], folder: Path) -> tuple[Path, ...]:
    """Every place that a site's file names for its samples; whichever key of a dataset's table names it."""
    tables = [part for key in ("data", "public") if isinstance(part := table.get(key), dict)]
    named = [
        folder / value
        for part in tables
        for key, value in part.items()
        if key != "name" and isinstance(value, str) and value
    ]
    searched = [Path(part).expanduser() for part in os.environ.get("FEDSIFT_DATA", "").split(os.pathsep) if part]
    return tuple(place for place in (*named, *searched, cache_root()) if _is_there(place))


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except (OSError, ValueError):  # a value that is no path, e.g. too long a text
        return False
