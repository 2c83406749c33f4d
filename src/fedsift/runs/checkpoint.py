"""A checkpoint's file: a line of JSON that anybody can read, then bytes that only the engine understands.

The line counts the rounds that are done, names the files of the sites' notebooks and holds the site table so far, so
that reports and live pages read an unfinished run without the engine's classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.json_values import plain

FORMAT = 1
LONGEST_LINE = 100_000_000


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on as if it had never stopped."""

    rounds_done: int
    state: bytes
    """The engine's own, encoded."""
    sites: list[dict[str, Any]] = field(default_factory=list)
    """One line a site: what was recorded of it so far."""
    notebooks: dict[str, bytes] = field(default_factory=dict)
    """Encoded pages by site."""


@dataclass(frozen=True)
class Header:
    """The line that anybody can read."""

    rounds_done: int
    notebooks: dict[str, str]
    """Site to the file that holds its notebook."""
    sites: list[dict[str, Any]]


def written(header: Header, state: bytes) -> bytes:
    line = {
        "format": FORMAT,
        "rounds_done": header.rounds_done,
        "notebooks": header.notebooks,
        "sites": plain(header.sites),
        "bytes": len(state),
    }
    return json.dumps(line).encode() + b"\n" + state


def read_checkpoint(file: Path) -> tuple[Header, bytes]:
    """Raises RunError on a file that `written` did not make, or that was cut short."""
    try:
        with file.open("rb") as data:
            header, size = _header(data.readline(LONGEST_LINE))
            state = data.read()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: it is no checkpoint of this version ({error})") from error
    if len(state) != size:
        raise RunError(f"{file} cannot be read: it has {len(state)} of {size} bytes")
    return header, state


def read_header(file: Path) -> Header | None:
    """The line alone; the bytes, which may be many, stay unread. None where there is no such line."""
    try:
        with file.open("rb") as data:
            return _header(data.readline(LONGEST_LINE))[0]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _header(line: bytes) -> tuple[Header, int]:
    values = json.loads(line)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, not {FORMAT}")
    return Header(int(values["rounds_done"]), dict(values["notebooks"]), list(values["sites"])), int(values["bytes"])
