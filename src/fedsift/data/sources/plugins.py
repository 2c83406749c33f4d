"""Data sources of other packages: an entry point in the group `fedsift.datasets` names a `Source`, or two functions.

    [project.entry-points."fedsift.datasets"]
    mydata = "mypackage.mydata"

A module (or an object that is no `Source` class) has `describe() -> str`, one line for the listing, and
`load(path) -> dict` with the arrays that an .npz would hold: `images`, `labels`, and if it likes `test_images`,
`test_labels`, `given`, `classes`, `ids`, `site`, `group`. `load` may also return a `Dataset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedsift.core.errors import DataError
from fedsift.data.dataset import Dataset
from fedsift.data.sources.base import Source
from fedsift.data.sources.npz import ArrayOptions, from_arrays

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class PluginSource(Source):
    """A dataset that another installed package brings."""

    kind: ClassVar[str] = "either"
    own: ClassVar[bool] = True
    entry: ClassVar[Any]
    """The entry point."""

    path: Path | None = None
    """Passed to the plug-in's `load`."""
    test_fraction: float = 0.0
    """Share to keep for testing when the plug-in brings no test samples; whole groups where there are
    groups."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""
    trusted: bool = False
    """Whether the labels can be taken for the truth: only then right and wrong are counted against them."""

    @classmethod
    def about(cls) -> str:
        """What the plug-in says of itself, or why it cannot."""
        try:
            return str(plugin(cls.entry).describe())
        except Exception as error:  # a foreign package's failure must not hide the other datasets
            return f"plug-in {cls.entry.value} is broken: {error}"

    def read(self) -> Dataset:
        loaded = plugin(self.entry).load(self.path)
        if isinstance(loaded, Dataset):
            return loaded
        if not isinstance(loaded, dict):
            raise DataError(f"dataset plug-in '{self.entry.name}' returned a {type(loaded).__name__}, not arrays")
        options = ArrayOptions(self.entry.name, self.test_fraction, self.split_seed, self.trusted)
        return from_arrays(loaded, options)


def plugin(entry: EntryPoint) -> Any:
    """The plug-in's module; an error says whose it is."""
    try:
        found = entry.load()
    except Exception as error:
        raise DataError(f"dataset plug-in '{entry.name}' ({entry.value}) cannot be imported: {error}") from error
    for needed in ("describe", "load"):
        if not callable(getattr(found, needed, None)):
            raise DataError(f"dataset plug-in '{entry.name}' ({entry.value}) has no function '{needed}'")
    return found


def source_of(entry: EntryPoint) -> type[Source]:
    """The `Source` class that the entry point names, or one around its two functions.

    A plug-in that cannot be imported still has a class, which says so when it is listed or read: one broken package
    must not hide the other datasets.
    """
    try:
        found = entry.load()
    except Exception:
        found = None
    if isinstance(found, type) and issubclass(found, Source):
        return found
    body = {"entry": entry, "summary": f"plug-in {entry.value}", "__doc__": f"Plug-in {entry.value}."}
    return dataclass(frozen=True)(type(f"Plugin_{entry.name}", (PluginSource,), body))
