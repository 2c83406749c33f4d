"""Exceptions: one line that names what is wrong and how to fix it, with an exit code."""

from __future__ import annotations


class FedsiftError(Exception):
    """Base of every error that fedsift raises on purpose; shown without a traceback."""

    exit_code = 1


class ConfigError(FedsiftError):
    """The study, an option or a key is wrong."""

    exit_code = 2


class DataError(FedsiftError):
    """A file, a label or a site's data cannot be used."""

    exit_code = 3


class QuorumError(FedsiftError):
    """Too few replies were accepted in a round; the run stopped cleanly and can be resumed."""

    exit_code = 4


class RunError(FedsiftError):
    """The run folder is missing, unfinished or damaged."""

    exit_code = 5


class Stopped(FedsiftError):
    """The user asked the run to stop, on its live page; it can be resumed."""

    exit_code = 130


class NotebookGone(FedsiftError):
    """A site no longer has the notebook that the coordinator knows it wrote."""

    exit_code = 6
