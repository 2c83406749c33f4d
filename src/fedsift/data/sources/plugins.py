"""Datasets from other packages: an entry point in the group `fedsift.datasets` names two functions.

    [project.entry-points."fedsift.datasets"]
    mydata = "mypackage.mydata"

The module (or object) has `describe() -> str`, one line for the listing, and `load(path) -> dict` with the
arrays that an .npz would hold: `images`, `labels`, and if it likes `test_images`, `test_labels`, `given`,
`classes`, `ids`, `site`, `group`. `load` may also return a `Dataset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar

from fedsift.contract.errors import DataError
from fedsift.data.dataset import Dataset
from fedsift.data.sources.base import Source, sources
from fedsift.data.sources.npz import ArrayOptions, from_arrays

GROUP = "fedsift.datasets"


@dataclass(frozen=True)
class PluginSource(Source):
    """A dataset that another installed package brings."""

    kind: ClassVar[str] = "either"
    own: ClassVar[bool] = True
    entry: ClassVar[EntryPoint]

    path: Path | None = None
    """Handed to the plug-in's `load`."""
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
            raise DataError(
                f"dataset plug-in '{self.entry.name}' returned a {type(loaded).__name__}, not arrays"
            )
        options = ArrayOptions(self.entry.name, self.test_fraction, self.split_seed, self.trusted)
        return from_arrays(loaded, options)


def plugin(entry: EntryPoint) -> Any:
    """The plug-in's module; an error says whose it is."""
    try:
        found = entry.load()
    except Exception as error:
        raise DataError(
            f"dataset plug-in '{entry.name}' ({entry.value}) cannot be imported: {error}"
        ) from error
    for needed in ("describe", "load"):
        if not callable(getattr(found, needed, None)):
            raise DataError(f"dataset plug-in '{entry.name}' ({entry.value}) has no function '{needed}'")
    return found


def register_plugins() -> None:
    """Register each entry point under its own name; its code is imported only when it is used."""
    for entry in entry_points(group=GROUP):
        if entry.name not in sources:
            body = {"entry": entry, "summary": f"plug-in {entry.value}", "__doc__": f"Plug-in {entry.value}."}
            sources.register(entry.name)(
                dataclass(frozen=True)(type(f"Plugin_{entry.name}", (PluginSource,), body))
            )
