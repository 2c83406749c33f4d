"""Starts the live page beside a command that runs something, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.live.actions import environment
from fedsift.live.server import Address, require_server


@contextmanager
def run_page_beside(run: Path, port: int | None = None) -> Iterator[Address]:
    """The page of one run, on loopback, while the block lasts."""
    with runs_page_beside(run, port) as address:
        yield address


@contextmanager
def runs_page_beside(place: Path, port: int | None = 0) -> Iterator[Address]:
    """The page of a folder of runs, on loopback, while the block lasts."""
    with _beside({"runs": str(place.resolve()), "port": port}) as address:
        yield address


@contextmanager
def site_page_beside(name: str, egress: Path, audit: Path, port: int | None = None) -> Iterator[Address]:
    """A site's own page, on loopback, while the block lasts."""
    wanted = {"name": name, "egress": str(egress.resolve()), "audit": str(audit.resolve()), "port": port}
    with _beside(wanted) as address:
        yield address


@contextmanager
def _beside(wanted: dict[str, Any]) -> Iterator[Address]:
    require_server()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsift.live", json.dumps(wanted)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,  # Ctrl-C is for the command; the page ends after it
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        said = json.loads(line) if line else {"error": "the live page could not be started"}
        if "error" in said:
            raise ConfigError(said["error"])
        yield Address(**said)
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
