"""Where a run's figures are copied to besides its folder; a new tracker is one new file in this folder."""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
