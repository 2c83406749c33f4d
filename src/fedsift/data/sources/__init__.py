"""Where samples come from; a new source is one new file, imported here."""

from fedsift.data.sources import digits, folder, npz
from fedsift.data.sources.base import Source, sources

__all__ = ["Source", "digits", "folder", "npz", "sources"]
