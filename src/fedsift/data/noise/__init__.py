"""Noise models, which corrupt labels. A new noise model is one new file in this folder."""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
