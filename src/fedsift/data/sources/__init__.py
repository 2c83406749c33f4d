"""Data sources. A new source is one new file in this folder, or a plug-in of another package."""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
