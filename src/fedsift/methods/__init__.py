"""One file a method, named after it; each reads top to bottom as its paper's algorithm.

Importing this package fills the registry: a new file in this folder appears in the CLI and in the contract tests.
"""

from fedsift.contract.registry import import_modules
from fedsift.methods.base import TrainingMethod, methods

import_modules(__name__, __path__)

__all__ = ["TrainingMethod", "methods"]
