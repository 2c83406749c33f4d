"""Assembles the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

import typer

from fedsift import __version__
from fedsift.cli.output import stderr
from fedsift.contract.errors import FedsiftError

COMMANDS = (
    "demo",
    "run",
    "resume",
    "plan",
    "report",
    "listings",
    "data_commands",
    "flower_commands",
    "review",
    "labels",
)
INTERRUPTED = 130

app = typer.Typer(
    name="fedsift",
    help="Train one model across sites whose labels are imperfect, and tell each site which of its labels are wrong.",
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


for _name in COMMANDS:
    importlib.import_module(f"fedsift.cli.{_name}").register(app)


def main() -> None:
    """The console script. Expected errors are one line; FEDSIFT_DEBUG=1 shows where they come from."""
    try:
        app(standalone_mode=True)
    except FedsiftError as error:
        if os.environ.get("FEDSIFT_DEBUG"):
            raise
        stderr.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stderr.print("stopped", highlight=False)
        sys.exit(INTERRUPTED)
