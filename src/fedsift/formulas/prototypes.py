"""FedMLP's prototypes: the mean feature of a class's negatives and positives (eq. 5-6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import ConfigError


def cosine(vector: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """Cosine between one vector and every row, `[d], [n, d] -> [n]`; 0 with a zero vector."""
    v, m = np.asarray(vector, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(m, axis=1) * np.linalg.norm(v)
    return np.where(norms > 0, (m @ v) / np.where(norms > 0, norms, 1.0), 0.0)


@dataclass(frozen=True)
class Prototypes:
    """Mean features by class and side; finite everywhere, so that they can be sent."""

    vectors: NDArray[np.float64]
    """`[K, 2, d]`: side 0 negatives, side 1 positives; zeros where none is held."""
    held: NDArray[np.bool_]
    """`[K, 2]`: whether there is one."""

    def get(self, c: int, side: int) -> NDArray[np.float64] | None:
        return np.asarray(self.vectors[c, side]) if self.held[c, side] else None


def local_prototypes(features: ArrayLike, labels: ArrayLike, active: Sequence[int]) -> Prototypes:
    """Mean feature of each annotated class's negatives and positives (eq. 5): `[n, d], [n, K]`."""
    rows, given = np.asarray(features, dtype=np.float64), np.asarray(labels)
    vectors = np.zeros((given.shape[1], 2, rows.shape[1]))
    held = np.zeros((given.shape[1], 2), dtype=np.bool_)
    for c in active:
        for side in (0, 1):
            members = rows[(given[:, c] > 0.5) == bool(side)]
            if len(members):
                vectors[c, side], held[c, side] = members.mean(axis=0), True
    return Prototypes(vectors, held)


def global_prototypes(
    local: Sequence[Prototypes], sizes: ArrayLike, weighting: Literal["equal", "size"] = "size"
) -> Prototypes:
    """Average over the sites that hold a side; not held if nobody does (eq. 6).

    weighting: "equal" as printed, "size" as released.
    """
    if weighting not in ("equal", "size"):
        raise ConfigError(f"prototype weighting = '{weighting}': choose 'equal' or 'size'")
    held = np.stack([one.held for one in local])
    vectors = np.stack([one.vectors for one in local])
    weights = np.ones(len(local)) if weighting == "equal" else np.asarray(sizes, dtype=np.float64)
    return Prototypes(*mean_of_holders(vectors, held, weights))


def mean_of_holders(
    vectors: NDArray[np.float64], held: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Weighted mean of each vector over the sites that hold it, `[S, *, d], [S, *], [S] -> [*, d]`; and which anybody
    holds, `[*]`: the others are zeros."""
    shares = weights.reshape(-1, *[1] * (held.ndim - 1)) * held
    total = shares.sum(axis=0)
    found = total > 0
    sums = (shares[..., None] * vectors).sum(axis=0)
    return np.where(found[..., None], sums / np.where(found, total, 1.0)[..., None], 0.0), found
