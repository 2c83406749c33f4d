"""Apply a trained model to new samples: probabilities, and a CSV of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsift.api.folder import StoredModelCard
from fedsift.api.run import Rows
from fedsift.core.errors import DataError, RunError
from fedsift.core.text import csv_text
from fedsift.data.images import PictureForm, why_unreadable
from fedsift.data.input_files import SUFFIXES, Picture, find_pictures, read_array, read_arrays
from fedsift.data.sources.arrays import as_samples
from fedsift.data.sources.table import TableSource, flat_scale, numbers_in

if TYPE_CHECKING:
    from torch import nn

THRESHOLD = 0.5


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of samples.

    probabilities: float32 `[n, K]`; each row sums to 1, but for multi-label data, where every entry stands alone.
    """

    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    multilabel: bool = False
    ids: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The likeliest class `[n]`; for multi-label data 1 where a class is likelier than not, `[n, K]`."""
        if self.multilabel:
            return (self.probabilities >= THRESHOLD).astype(np.int64)
        likeliest: NDArray[np.int64] = self.probabilities.argmax(axis=1).astype(np.int64)
        return likeliest

    @property
    def labels(self) -> list[Any]:
        """The same by name: one a sample, or a list a sample for multi-label data."""
        names = self.classes
        if self.multilabel:
            return [[names[k] for k in np.flatnonzero(row)] for row in self.numbers]
        return [names[k] for k in self.numbers]

    def rows(self) -> Rows:
        """One dict a sample: id, predicted_label, confidence (multi-class) and a probability for each class."""
        ids = self.ids or tuple(str(number) for number in range(len(self)))
        rows = Rows()
        for name, label, values in zip(ids, self.labels, self.probabilities):
            row: dict[str, Any] = {"id": name, "predicted_label": label}
            if not self.multilabel:
                row["confidence"] = float(values.max())
            rows.append(row | {f"p_{key}": float(value) for key, value in zip(self.classes, values)})
        return rows

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.rows().frame()


def predict(network: nn.Module, card: StoredModelCard, images: Any, ids: Sequence[str] = ()) -> Predictions:
    """Probabilities of samples `[n, C, H, W]` (uint8, or float in 0..1) or rows `[n, F]`, read as the run's own:
    numbers of a table in its own units."""
    import torch

    from fedsift.protocol.site import Samples
    from fedsift.training.predict import logits_of

    samples = _embedded(as_samples(images), card)
    if card.scale is not None and samples.shape[1:] == card.shape:
        mean_of, deviation_of = (np.array(each, np.float64) for each in flat_scale(card.scale))
        samples = ((samples - mean_of) / deviation_of).astype(np.float32)
    if samples.shape[1:] != card.shape:
        raise DataError(
            f"images are {'x'.join(map(str, samples.shape[1:]))} each, the model was trained on "
            f"{'x'.join(map(str, card.shape))}: bring them to that shape"
        )
    mean, std = normalisation(card)
    pool = torch.from_numpy(samples)
    logits = logits_of(network, Samples(pool, torch.arange(len(pool)), mean, std))
    chances = torch.sigmoid(logits) if card.multilabel else torch.softmax(logits, dim=-1)
    return Predictions(card.classes, chances.numpy().astype(np.float32), card.multilabel, tuple(ids))


def normalisation(card: StoredModelCard) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, as the sites used them."""
    if card.mean is None or card.std is None:
        if len(card.shape) == 1:
            return (0.0,), (1.0,)
        raise RunError(
            "the run's model.json does not say how the sites normalise pixels: write `mean` and `std` of a "
            "site.toml into it"
        )
    return card.mean, card.std


def _embedded(samples: NDArray[Any], card: StoredModelCard) -> NDArray[Any]:
    """Features in place of pictures where the model is a head on frozen features."""
    from fedsift.data.dataset import Dataset
    from fedsift.training.features import with_features

    rows = np.arange(len(samples), dtype=np.int64)
    pictures = Dataset("pictures", samples, np.zeros(len(samples), np.int64), card.classes, rows, rows[:0])
    return with_features(pictures, card.model).images


# Samples to apply a model to
# ------------------------------------------------------------------------------


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
        chosen = path.resolve()  # a person named it, wherever it leads
        pictures = [Picture(chosen.parent, chosen.name)]
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
        samples = read_array(path)
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
