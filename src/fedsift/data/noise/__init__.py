"""How labels are spoiled; a new noise model is one new file in this folder."""

from fedsift.contract.registry import import_modules
from fedsift.data.noise.base import POOL, Noise, Scene, Spoiled, noises

import_modules(__name__, __path__)

__all__ = ["POOL", "Noise", "Scene", "Spoiled", "noises"]
