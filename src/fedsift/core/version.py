"""The package's version. It stands below every room, so that all can say it."""

__version__ = "0.2.0"
