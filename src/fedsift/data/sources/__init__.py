"""Where samples come from; a new source is one new file in this folder, or a plug-in of another package."""

from fedsift.contract.registry import import_modules
from fedsift.data.sources.base import Source, sources

import_modules(__name__, __path__)

__all__ = ["Source", "sources"]
