"""Samples to apply a model to, from files: one picture, a folder or zip of them, arrays, or a table of numbers; labels
are not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.api.folder import StoredModelCard
from fedsift.core.errors import DataError, RunError
from fedsift.core.text import csv_text
from fedsift.data.images import PictureForm, why_unreadable
from fedsift.data.picture_files import SUFFIXES, Picture, find_pictures
from fedsift.data.sources.npz import read_arrays
from fedsift.data.sources.table import TableSource, numbers_in

# Rows to a CSV file that a spreadsheet can open without running anything in it
# ------------------------------------------------------------------------------


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """One line a row; lists as JSON."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = csv_text(columns, ([row.get(name) for name in columns] for row in rows))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def read_samples(
    path: Path, card: StoredModelCard, data: Mapping[str, Any]
) -> tuple[list[str], NDArray[Any], list[tuple[str, str]]]:
    """Ids, samples, and the pictures that cannot be read with the reason for each.

    data: the run's `[data]` table, which says how pictures were brought to one shape.
    """
    if not path.exists():
        raise DataError(f"there is no {path}")
    if card.scale is not None and path.suffix.lower() in (".csv", ".tsv", ".txt"):
        return *_numbers(path, card.scale, data), []
    if path.suffix.lower() in (".npz", ".npy"):
        ids, samples = _arrays(path)
        return ids, samples, []
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        pictures = [Picture(path.parent, path.name)]
    else:
        pictures = find_pictures(path)
    if not pictures:
        raise DataError(f"{path} holds no picture ({', '.join(sorted(SUFFIXES))})")
    return _pictures(pictures, _form(card, data), path)


def _numbers(path: Path, scale: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[list[str], NDArray[Any]]:
    """Rows of a CSV that is written as the run's own was."""
    usual = {key: data[key] for key in ("delimiter", "encoding", "decimal", "missing", "id_column") if key in data}
    return numbers_in(TableSource(path, **usual), scale)


def _arrays(path: Path) -> tuple[list[str], NDArray[Any]]:
    if path.suffix.lower() == ".npy":
        try:
            samples = np.load(path, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DataError(f"{path} cannot be read as .npy: {error}") from None
        return [str(number) for number in range(len(samples))], samples
    arrays = read_arrays(path)
    if "images" not in arrays:
        raise DataError(f"{path} has no array 'images': it holds {', '.join(sorted(arrays)) or 'nothing'}")
    samples = arrays["images"]
    if samples.ndim == 3:
        samples = samples[:, None]
    elif samples.ndim == 4 and samples.shape[-1] in (1, 3, 4) and samples.shape[1] not in (1, 3, 4):
        samples = samples.transpose(0, 3, 1, 2)
    ids = arrays.get("ids", np.arange(len(samples))).astype(str).tolist()
    if len(ids) < len(samples):
        raise DataError(f"{path}: {len(ids)} ids for {len(samples)} images")
    return ids[: len(samples)], samples


def _form(card: StoredModelCard, data: Mapping[str, Any]) -> PictureForm:
    """How the run read its pictures; of a head on frozen features the study alone knows."""
    fit = data.get("fit", "squash")
    if len(card.shape) == 3:
        channels, height, width = card.shape
        if height != width:
            raise DataError(f"the model takes pictures of {height}x{width}: give them as an array, in an .npz")
        return PictureForm(height, channels, fit)
    if isinstance(data.get("size"), int) and isinstance(data.get("channels"), int):
        return PictureForm(data["size"], data["channels"], fit)
    raise DataError(f"the model takes rows of {card.shape[0]} features: give them as an array, in an .npz or .npy")


def _pictures(
    pictures: list[Picture], form: PictureForm, path: Path
) -> tuple[list[str], NDArray[Any], list[tuple[str, str]]]:
    ids: list[str] = []
    read: list[NDArray[np.uint8]] = []
    broken: list[tuple[str, str]] = []
    for picture in pictures:
        pixels, reason, _ = why_unreadable(picture, form)
        if pixels is None:
            broken.append((picture.name, reason))
        else:
            ids.append(picture.name)
            read.append(pixels)
    if not read:
        raise DataError(f"no picture of {path} can be read: {broken[0][0]}: {broken[0][1]}")
    return ids, np.stack(read), broken
