"""Published files that are Python pickles: read with nothing but plain values and numpy arrays allowed
inside."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.core.errors import DataError

ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can run any code on loading; this one refuses everything that plain data do not need."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_pickled(path: Path, encoding: str = "latin1") -> dict[Any, Any]:
    """The dictionary in a pickle, in an object array (.npy) or in a zipped .pt file."""
    try:
        return _dictionary(path, encoding)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise DataError(f"{path} is not a file of plain arrays: {error}") from error


def _dictionary(path: Path, encoding: str) -> dict[Any, Any]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return _checked(archive.read(inner), encoding)
    with path.open("rb") as file:
        if file.read(6) != np.lib.format.MAGIC_PREFIX:
            file.seek(0)
            return _checked(file.read(), encoding)
        file.seek(0)
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        reader(file)
        return _checked(file.read(), encoding)


def _checked(data: bytes, encoding: str) -> dict[Any, Any]:
    loaded = _PlainUnpickler(io.BytesIO(data), encoding=encoding).load()
    if isinstance(loaded, np.ndarray) and loaded.dtype == object and loaded.size == 1:
        loaded = loaded.item()
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return loaded
