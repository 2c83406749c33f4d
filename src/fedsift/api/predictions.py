"""A trained model, applied: what comes out, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsift.api.folder import StoredModelCard
from fedsift.api.rows import Rows
from fedsift.core.errors import DataError, RunError
from fedsift.data.sources.arrays import as_samples
from fedsift.data.sources.table import flat_scale

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
    from fedsift.training.features import is_features, with_features

    if not is_features(card.model) or samples.ndim == 2:
        return samples
    rows = np.arange(len(samples), dtype=np.int64)
    pictures = Dataset("pictures", samples, np.zeros(len(samples), np.int64), card.classes, rows, rows[:0])
    return with_features(pictures, card.model).images
