"""Data source `digits`: the handwritten digits of scikit-learn, real data without a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsift.core.randomness import numpy_generator
from fedsift.data.dataset import Dataset
from fedsift.data.sources.base import Source, channel_statistics, sources
from fedsift.data.splits import split


@sources.register("digits")
@dataclass(frozen=True)
class Digits(Source):
    """1,797 digits of 8x8 pixels in 10 classes (UCI optical recognition, its test half)."""

    summary: ClassVar[str] = "1,797 handwritten digits, 8x8, 10 classes; nothing to fetch"
    bundled: ClassVar[bool] = True
    licence: ClassVar[str] = "CC BY 4.0 (UCI), shipped by scikit-learn"

    test_fraction: float = 0.25
    """Share of each class kept for testing."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""

    def read(self) -> Dataset:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.round(bunch.images * (255.0 / 16.0)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        train, test = split(labels, self.test_fraction, numpy_generator(self.split_seed, "digits", "split"))
        mean, std = channel_statistics(images, train)
        return Dataset(
            name="digits",
            images=images,
            labels=labels,
            classes=tuple(str(k) for k in range(10)),
            train=train,
            test=test,
            mean=mean,
            std=std,
            ids=np.array([f"digit-{row:04d}" for row in range(len(labels))]),
        )
