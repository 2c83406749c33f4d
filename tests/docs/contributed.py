"""The files of a page of the documentation, importable here and in every process that is started from here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fedsift
from tests.docs.blocks import files, write

EXTENDING = Path(__file__).parents[2] / "docs/extending.md"
NAME = "mine.fedavgm:FedAvgM"
"""The method of docs/extending.md, by its address."""
SOURCE = str(Path(fedsift.__file__).parents[1])


@contextmanager
def contributed(root: Path, page: Path = EXTENDING) -> Iterator[Path]:
    """A folder with a page's files, for as long as it is open."""
    write(files(page), root)
    (root / "mine/__init__.py").touch()
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), SOURCE])
    sys.path.insert(0, str(root))
    try:
        yield root
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name == "mine" or name.startswith("mine.")]:
            del sys.modules[name]
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
