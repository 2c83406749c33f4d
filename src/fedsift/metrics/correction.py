"""What label correction did, against the truth: fixed, harmed, missed, kept (FedCorr Figs 7-8)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import DataError


@dataclass(frozen=True)
class Correction:
    """Counts over samples (or over entries of multi-label data); fixed + harmed + missed + kept = n."""

    n: int
    fixed: int
    """Wrong before, right after."""
    harmed: int
    """Right before, wrong after."""
    missed: int
    """Wrong before and after."""
    kept: int
    """Right before and after."""
    missed_untouched: int
    missed_rewritten: int
    """Wrong before, given another wrong label."""
    touched: int
    """Changed at all."""

    @property
    def noise_before(self) -> float:
        return (self.fixed + self.missed) / self.n if self.n else 0.0

    @property
    def noise_after(self) -> float:
        return (self.harmed + self.missed) / self.n if self.n else 0.0

    def __add__(self, other: Correction) -> Correction:
        """The same over two sites."""
        mine, theirs = asdict(self), asdict(other)
        return Correction(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Fates:
    """What became of every sample, as boolean arrays of the labels' shape."""

    fixed: NDArray[np.bool_]
    harmed: NDArray[np.bool_]
    missed: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    touched: NDArray[np.bool_]


def fates(true: ArrayLike, before: ArrayLike, after: ArrayLike) -> Fates:
    """Compare true, given and corrected labels: `[n]`, or `[n, K]` for multi-label data."""
    truth, given, final = np.asarray(true), np.asarray(before), np.asarray(after)
    if not truth.shape == given.shape == final.shape:
        raise DataError(
            f"labels differ in shape: true {truth.shape}, before {given.shape}, after {final.shape}"
        )
    was, now = given == truth, final == truth
    return Fates(~was & now, was & ~now, ~was & ~now, was & now, final != given)


def _count(found: Fates, where: NDArray[np.bool_] | slice = slice(None)) -> Correction:
    def total(mask: NDArray[Any]) -> int:
        return int(mask[where].sum())

    return Correction(
        n=total(np.ones_like(found.fixed)),
        fixed=total(found.fixed),
        harmed=total(found.harmed),
        missed=total(found.missed),
        kept=total(found.kept),
        missed_untouched=total(found.missed & ~found.touched),
        missed_rewritten=total(found.missed & found.touched),
        touched=total(found.touched),
    )


def correction(true: ArrayLike, before: ArrayLike, after: ArrayLike) -> Correction:
    """Count what correction did: `[n]` class numbers, or `[n, K]` 0/1 rows counted by entry."""
    return _count(fates(true, before, after))


def correction_per_class(
    true: ArrayLike, before: ArrayLike, after: ArrayLike, n_classes: int
) -> list[Correction]:
    """The same for the samples of each true class; for multi-label data, for each column."""
    found, truth = fates(true, before, after), np.asarray(true)
    if truth.ndim == 2:
        columns = np.broadcast_to(np.arange(truth.shape[1]), truth.shape)
        return [_count(found, columns == c) for c in range(n_classes)]
    return [_count(found, truth == c) for c in range(n_classes)]
