"""Names of a package that are imported when they are first used (PEP 562): `import fedsift` and `--help` stay fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package or module; `names`: module below `fedsift` to the names that it defines.

    No name may be that of a submodule: importing the submodule would hide it.
    """
    homes = {name: f"fedsift.{module}" for module, defined in names.items() for name in defined}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
