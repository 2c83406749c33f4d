"""`fedsift` commands as a person types them, in this process: a new one would spend its seconds importing torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from glob import glob
from io import StringIO
from pathlib import Path

from fedsift.cli import output
from fedsift.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command said, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def fedsift(*words: str, cwd: Path, columns: int = 200, env: Mapping[str, str] | None = None) -> Done:
    """The console script itself, its error line and exit code included; any other exception is a traceback."""
    arguments, sys.argv = sys.argv, ["fedsift", *words]
    out, err = StringIO(), StringIO()
    try:
        with chdir(cwd), _environment(columns, env or {}), redirect_stdout(out), redirect_stderr(err):
            main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = arguments
    return Done(code, out.getvalue(), err.getvalue())


def typed(command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a line of a page says, `*` in it filled in as a shell does; it must succeed."""
    program, *words = shlex.split(command)
    assert program == "fedsift", command
    found = [name for word in words for name in (sorted(glob(word, root_dir=cwd)) if "*" in word else [word])]
    done = fedsift(*found, cwd=cwd, columns=80, env=env)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout + done.stderr


@contextmanager
def _environment(columns: int, more: Mapping[str, str]) -> Iterator[None]:
    before, consoles = dict(os.environ), (output.stdout, output.stderr)
    widths = [console._width for console in consoles]
    os.environ.update({"COLUMNS": str(columns), "NO_COLOR": "1", **more})
    for console in consoles:
        console._width = columns
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for console, width in zip(consoles, widths):
            console._width = width
