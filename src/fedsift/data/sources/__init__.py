"""Where samples come from; a new source is one new file, imported here, or a plug-in of another package."""

from fedsift.data.sources import (
    chest,
    cifar,
    clothing1m,
    digits,
    folder,
    idx,
    medical,
    medmnist,
    npz,
    plugins,
    sites,
)
from fedsift.data.sources.base import Source, sources

plugins.register_plugins()

__all__ = [
    "Source",
    "chest",
    "cifar",
    "clothing1m",
    "digits",
    "folder",
    "idx",
    "medical",
    "medmnist",
    "npz",
    "plugins",
    "sites",
    "sources",
]
