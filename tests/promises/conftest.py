"""Runs that several promises compare with, made once for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsift.core.files import safe_name
from fedsift.runs.folder import RunFolder
from tests.promises.federations import alone_study, play


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Each method's run with every site trained alone, made when first needed.

    It lies in a folder that all processes of the test session share: whoever comes first makes it.
    """
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "alone"

    def of(name: str) -> RunFolder:
        folder = place / safe_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = folder / "made"
            if not made.exists():
                made.write_text(str(play(alone_study(name, folder), folder).path))
        return RunFolder.open(Path(made.read_text()))

    return of
