"""Methods: one module a paper, which reads from top to bottom as the paper's algorithm.

Importing this package fills the registry: a new file in this folder appears in the CLI and in the promise tests.
Modules that begin with an underscore hold what several methods share.
"""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
