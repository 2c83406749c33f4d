"""Run folders for the public API: create, open, continue and read a run, and find its model and model card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.data.sources.table import checked_scale
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import RunData, read_run
from fedsift.study.running import change_settings, new_run
from fedsift.study.running import run as run_study
from fedsift.study.study import Study
from fedsift.study.toml_tables import leaves

Listener = Callable[[dict[str, Any]], None]

__all__ = [
    "Listener",
    "RunData",
    "StoredModelCard",
    "change",
    "go",
    "model_card",
    "model_file",
    "read",
    "rounds_done",
    "start",
    "unfinished",
]

MODEL, CARD = "model.safetensors", "model.json"


@dataclass(frozen=True)
class StoredModelCard:
    """What it takes to apply a run's model; see `study.running.model_card`."""

    model: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    multilabel: bool
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    scale: dict[str, list[Any]] | None = None
    """Of a table's features, by name and in order: mean and deviation, or words."""


def start(study: Study, out: Path) -> RunFolder:
    """A new run's folder."""
    return new_run(study, Path(out))


def unfinished(path: Path) -> tuple[dict[str, Any], RunFolder]:
    """The tables of a run that was stopped, and its folder."""
    import tomllib

    folder = RunFolder.open(Path(path))
    if folder.finished:
        raise RunError(f"{path} is finished: read it with fedsift.load, or start a new run")
    try:
        return tomllib.loads(folder.study_file.read_text("utf-8")), folder
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{folder.study_file} cannot be read: {error}") from None


def change(folder: RunFolder, tables: Mapping[str, Any]) -> None:
    """Other settings for a run that stands."""
    change_settings(folder, dict(leaves(tables)))


def go(study: Study, folder: RunFolder, listen: Listener) -> None:
    """Run or go on to the end."""
    run_study(study, folder, listen)


def rounds_done(folder: RunFolder) -> int:
    return len(folder.rounds())


def read(path: Path) -> RunData:
    """All that a run wrote for people."""
    return read_run(Path(path))


def model_file(path: Path) -> Path:
    """The trained weights, or why there are none."""
    file = path / MODEL
    if file.is_file():
        return file
    if (path / "summary.json").is_file():
        raise RunError(f"{path} has no model of the whole federation: with this method every site keeps its own")
    raise RunError(f"{path} is not finished, so it has no model yet: go on with fedsift.resume('{path}')")


def model_card(path: Path) -> StoredModelCard:
    model_file(path)
    file = path / CARD
    try:
        card = json.loads(file.read_text("utf-8"))
        return StoredModelCard(
            model=str(card["model"]),
            shape=tuple(int(side) for side in card["shape"]),
            classes=tuple(str(name) for name in card["classes"]),
            multilabel=bool(card["multilabel"]),
            mean=None if card["mean"] is None else tuple(map(float, card["mean"])),
            std=None if card["std"] is None else tuple(map(float, card["std"])),
            scale=None if card.get("scale") is None else checked_scale(card["scale"], str(file)),
        )
    except FileNotFoundError:
        raise RunError(f"{file} is missing: the run was made by an older version; run its study again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
