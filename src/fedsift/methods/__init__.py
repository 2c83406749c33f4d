"""One file a method, named after it; each reads top to bottom as its paper's algorithm.

Importing this package fills the registry: a new file in this folder appears in the CLI and in the contract tests.
"""

import importlib
import pkgutil

from fedsift.methods.base import TrainingMethod, methods

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TrainingMethod", "methods"]
