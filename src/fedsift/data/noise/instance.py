"""Noise model `instance`: labels of each noisy site are drawn by its own annotator network (heterogeneous,
instance-dependent).

Wu et al.: FedNoRo, IJCAI 2023, eq. 1 and Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.numbers import floor_count
from fedsift.data.csv_tables import read_table
from fedsift.data.dataset import Dataset, Labels
from fedsift.data.input_files import read_array
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, need_rate, noises
from fedsift.data.noise.fedcorr import choose_noisy_sites, draw_levels

Soft = NDArray[np.float64]
FLOOR = 1e-6


@noises.register("instance")
@dataclass(frozen=True)
class InstanceNoise(Noise):
    """⌊ρK⌋ sites are noisy, site i at rate η_i ~ U(η_l, η_u); ⌊η_i N_i⌋ of its labels are wrong, exactly.

    Samples that the site's annotator gets wrong more easily are drawn first (eq. 1), and their new label is
    what the annotator would rather say; never the true one.
    """

    summary: ClassVar[str] = "instance-dependent, by an annotator network trained at each noisy site (FedNoRo)"

    rho: float = 0.4
    """ρ: share of noisy sites."""
    low: float = 0.5
    """η_l: lower bound of a noisy site's rate."""
    high: float = 0.7
    """η_u: upper bound of a noisy site's rate."""
    soft_labels: Path | None = None
    """Read soft labels (.npy `[n, C]` or CSV, one row a training sample) instead of training annotators."""
    counting: Literal["forgiving", "truncated"] = "forgiving"
    """How ⌊ρK⌋ and ⌊ηN⌋ are counted: forgiving one rounding error, or cut off as in the released code."""
    epochs: int = 10
    """Epochs that an annotator is trained on its site's clean data."""
    lr: float = 0.003
    """The annotators' learning rate (Adam)."""
    width: int = 16
    """Channels of the annotators' first layer."""
    cache: Path | None = None
    """Where annotators' soft labels are kept (default: the user's cache folder)."""

    def __post_init__(self) -> None:
        for symbol in ("rho", "low", "high"):
            need_rate("instance", symbol, getattr(self, symbol))
        if self.high < self.low:
            raise ConfigError(f"noise 'instance': high = {self.high} is below low = {self.low}")

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        forgiving = self.counting == "forgiving"
        noisy = choose_noisy_sites(scene, self.rho, exact=True, forgiving=forgiving)
        level = draw_levels(scene, noisy, self.low, self.high)
        given = {site: labels.copy() for site, labels in scene.clean.items()}
        right: list[float] = []
        stored = self._stored(scene)
        for site in noisy:
            soft = stored[scene.rows[site]] if stored is not None else self._annotate(scene, site)
            right.append(float((soft.argmax(axis=1) == scene.clean[site]).mean()))
            count = floor_count(level[site] * len(soft), forgiving=forgiving)
            given[site] = corrupt_by(soft, scene.clean[site], count, scene.generator(site, "labels"))
        notes = (f"annotators agree with {np.mean(right):.0%} of the true labels on average",) if right else ()
        return NoisyLabels(given=given, level=level, noisy=noisy, notes=notes)

    def _annotate(self, scene: NoiseInput, site: str) -> Soft:
        if scene.dataset is None:
            raise DataError("noise 'instance' trains annotators and needs the images, or a file of soft labels")
        from fedsift.data.annotator import Annotator, soft_labels  # needs torch, which listings do not

        annotator = Annotator(epochs=self.epochs, lr=self.lr, width=self.width)
        images = scene.dataset.images[scene.rows[site]]
        seed = int(scene.generator(site, "annotator").integers(2**62))
        return soft_labels(images, scene.clean[site], scene.n_classes, annotator, seed, cache=self.cache)

    def _stored(self, scene: NoiseInput) -> Soft | None:
        if self.soft_labels is None:
            return None
        if scene.dataset is None:
            raise DataError("soft labels from a file need the dataset whose rows they belong to")
        return read_soft_labels(self.soft_labels, scene.dataset)


def floored(soft: Soft, floor: float = FLOOR) -> Soft:
    """Probabilities of at least `floor` (before renormalising), so that every sample can be drawn and
    flipped."""
    raised = np.maximum(np.asarray(soft, np.float64), floor)
    result: Soft = raised / raised.sum(axis=1, keepdims=True)
    return result


def misclassification(soft: Soft, labels: Labels) -> Soft:
    """m_j = 1 - s_j[y_j] `[n]`, summed over the other classes so that small values keep their digits (eq.
    1)."""
    others = np.array(soft, np.float64)
    others[np.arange(len(labels)), labels] = 0.0
    total: Soft = others.sum(axis=1)
    return total


def draw_weights(soft: Soft, labels: Labels) -> Soft:
    """m / Σm `[n]`: the weight with which a sample is drawn within its site."""
    wrong = misclassification(soft, labels)
    shares: Soft = wrong / wrong.sum()
    return shares


def flip_distribution(soft: Soft, labels: Labels) -> Soft:
    """The new label's distribution `[n, C]`: the soft label without the true class, renormalised."""
    others = np.array(soft, np.float64)
    others[np.arange(len(labels)), labels] = 0.0
    result: Soft = others / others.sum(axis=1, keepdims=True)
    return result


def draw_without_replacement(weights: Soft, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` positions drawn one after the other in proportion to their weights, in ascending order.

    The `count` smallest of Exp(1)/weight are distributed exactly like successive draws, in one pass.
    """
    with np.errstate(divide="ignore"):
        keys = rng.standard_exponential(len(weights)) / weights
    return np.sort(np.argsort(keys, kind="stable")[:count]).astype(np.int64)


def corrupt_by(soft: Soft, labels: Labels, count: int, rng: np.random.Generator, floor: float = FLOOR) -> Labels:
    """`count` labels changed, drawn and replaced by what the soft labels say (Algorithm 1, lines 5-11)."""
    if soft.shape[1] < 2 or len(labels) == 0:
        return labels.copy()
    soft = floored(soft, floor) if floor else soft
    chosen = draw_without_replacement(draw_weights(soft, labels), count, rng)
    edges = np.cumsum(flip_distribution(soft[chosen], labels[chosen]), axis=1)
    # Draws lie below the row's own total, so rounding never reaches past the last class with any weight.
    draws = rng.random(len(chosen)) * edges[:, -1]
    given = labels.copy()
    given[chosen] = (draws[:, None] >= edges).sum(axis=1)
    return given


def read_soft_labels(path: Path, dataset: Dataset) -> Soft:
    """Soft labels for every row of the dataset (zeros where the file has none).

    A .npy file holds a row for each dataset row or training row. A CSV holds one column a class, by name or
    in order, after a first column with the sample's id (or anything, if rows follow the training order).
    """
    if path.suffix == ".npy":
        values, ids = read_array(path).astype(np.float64), None
    else:
        table = read_table(path)
        names = list(table)[1:]
        columns = dataset.classes if set(dataset.classes) <= set(names) else names
        values = np.array([table[name] for name in columns], np.float64).T
        ids = next(iter(table.values()))
    if values.ndim != 2 or values.shape[1] != dataset.n_classes:
        raise DataError(f"{path} has {values.shape[-1]} columns of soft labels for {dataset.n_classes} classes")
    if not np.isfinite(values).all() or (values < 0).any():
        raise DataError(f"{path} has soft labels that are negative or not numbers")
    soft = np.zeros((len(dataset.images), dataset.n_classes))
    soft[_soft_rows(path, dataset, ids, len(values))] = values
    if (soft[dataset.train].sum(axis=1) <= 0).any():
        missing = int((soft[dataset.train].sum(axis=1) <= 0).sum())
        raise DataError(f"{path} has no soft label for {missing} training samples")
    return soft


def _soft_rows(path: Path, dataset: Dataset, ids: list[str] | None, count: int) -> NDArray[np.int64]:
    """Which dataset rows the file's rows belong to."""
    if ids is not None and dataset.ids is not None:
        row = {str(name): k for k, name in enumerate(dataset.ids)}
        if all(name in row for name in ids):
            return np.array([row[name] for name in ids], np.int64)
    if count == len(dataset.train):
        return dataset.train
    if count == len(dataset.images):
        return np.arange(count, dtype=np.int64)
    raise DataError(f"{path} has {count} rows: neither the {len(dataset.train)} training samples nor their ids")
