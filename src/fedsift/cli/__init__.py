"""The command line: one file a command, no logic of its own."""

from fedsift.cli.main import main

__all__ = ["main"]
