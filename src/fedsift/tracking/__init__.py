"""Trackers, to which a run's figures are copied besides its folder. A new tracker is one new file in this folder."""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
