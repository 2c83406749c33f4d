"""Assembles the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

import typer
from rich.markup import escape

from fedsift import __version__
from fedsift.cli.failures import exit_code_of, line_of, sigterm_as_interrupt
from fedsift.cli.output import say, stderr
from fedsift.contract.errors import FedsiftError
from fedsift.contract.plaintext import visible

COMMANDS = ("demo", "run", "resume", "plan", "report", "listings", "data_commands", "flower_commands")

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
