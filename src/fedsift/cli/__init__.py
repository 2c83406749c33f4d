"""The command line: one file a command, without logic of its own."""

from fedsift.cli.main import main

__all__ = ["main"]
