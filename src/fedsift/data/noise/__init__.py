"""How labels are spoiled; a new noise model is one new file, imported here."""

from fedsift.data.noise import cifar_n, class_missing, clean, fedcorr, freeloader, instance, matrices
from fedsift.data.noise.base import POOL, Noise, Scene, Spoiled, noises

__all__ = [
    "POOL",
    "Noise",
    "Scene",
    "Spoiled",
    "cifar_n",
    "class_missing",
    "clean",
    "fedcorr",
    "freeloader",
    "instance",
    "matrices",
    "noises",
]
