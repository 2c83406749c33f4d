"""The `fedsift` command: registers all subcommands, and turns errors into one line and an exit code.

A file in this folder with `register(app)` is found by itself. Files import only what the help text needs; torch and the
packages that compute are imported inside the functions, so that `--help` starts at once.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path

import typer
from rich.markup import escape
from typer.models import CommandInfo

from fedsift.cli.failures import exit_code_of, line_of, sigterm_as_interrupt
from fedsift.cli.output import say, stderr
from fedsift.core.errors import FedsiftError
from fedsift.core.text import visible
from fedsift.core.version import __version__

FIRST = (
    "demo",
    "doctor",
    "plan",
    "run",
    "resume",
    "report",
    "audit",
    "review",
    "labels",
    "bench",
    "sweep",
    "predict",
    "export",
)
"""In the order of a user's first hour; the help lists these before all others."""

app = typer.Typer(
    name="fedsift",
    help="Train one model across sites whose labels are imperfect, and show each site which of its labels are wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def fedsift(
    version: bool = typer.Option(False, "--version", help="Show the version and stop."),
) -> None:
    if version:
        print(f"fedsift {__version__}")
        raise typer.Exit


def _register_commands() -> None:
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name != "main"]
    for name in sorted(names):
        command = importlib.import_module(f"fedsift.cli.{name}")
        if hasattr(command, "register"):
            command.register(app)
    app.registered_commands.sort(key=_place)


def _place(command: CommandInfo) -> tuple[int, str]:
    """Where the help lists a command."""
    name = command.name or ""
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


_register_commands()


def main() -> None:
    """The console script. Expected errors are one line; FEDSIFT_DEBUG=1 shows where they come from."""
    try:
        with sigterm_as_interrupt():
            app(standalone_mode=True)
    except (FedsiftError, OSError) as error:
        if os.environ.get("FEDSIFT_DEBUG"):
            raise
        line = line_of(error)
        if line:
            stderr.print(f"[bold red]error:[/] {escape(visible(line))}", highlight=False, soft_wrap=True)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt as stop:
        say("stopped", stderr)
        sys.exit(exit_code_of(stop))
