"""FedMLP's pseudo tags: how hard a missing class is, and which samples are tagged each round (eq. 7-10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError
from fedsift.signals.counting import floor_count

UNTAGGED = -1


def local_difficulty(probabilities: ArrayLike, low: float = 0.3, high: float = 0.7) -> NDArray[np.float64]:
    """Share of a site's samples with p_c < low or p_c > high, `[n, K] -> [K]`; large for an easy class."""
    p = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(((p < low) | (p > high)).mean(axis=0)) if len(p) else np.zeros(p.shape[1])


def global_difficulty(
    local: ArrayLike, sizes: ArrayLike, active: ArrayLike, over: Literal["missing", "active"] = "missing"
) -> NDArray[np.float64]:
    """Size-weighted mean over the sites that miss a class, or that annotate it (eq. 10): `[S, K] -> [K]`.

    active: true where a site annotates a class. A class with no such site gets 1.
    """
    if over not in ("missing", "active"):
        raise ConfigError(f"difficulty_over = '{over}': choose 'missing' or 'active'")
    values, annotated = np.asarray(local, dtype=np.float64), np.asarray(active, dtype=np.bool_)
    weights = np.asarray(sizes, dtype=np.float64)[:, None] * (annotated if over == "active" else ~annotated)
    total = weights.sum(axis=0)
    found = total > 0
    return np.where(found, (weights * values).sum(axis=0) / np.where(found, total, 1.0), 1.0)


def cosine(vector: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """Cosine between one vector and every row, `[d], [n, d] -> [n]`; 0 with a zero vector."""
    v, m = np.asarray(vector, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(m, axis=1) * np.linalg.norm(v)
    return np.where(norms > 0, (m @ v) / np.where(norms > 0, norms, 1.0), 0.0)


@dataclass(frozen=True)
class Tagging:
    """One round of tagging for one missing class."""

    score: NDArray[np.float64]
    """z = cos(P0, f) - cos(P1, f), `[n]`; NaN for tagged samples, and for all without both prototypes."""
    leaning_negative: int
    """Untagged samples with z >= 0."""
    leaning_positive: int
    """Untagged samples with z < 0."""
    negative: NDArray[np.int64]
    """Newly tagged 0, by falling z."""
    positive: NDArray[np.int64]
    """Newly tagged 1, by rising z."""
    tags: NDArray[np.int64]
    """All tags after the round, `[n]`: 0, 1, or -1 for untagged."""


def tag(
    features: ArrayLike,
    negative: ArrayLike | None,
    positive: ArrayLike | None,
    tags: ArrayLike,
    difficulty: float,
    t0: float = 0.005,
    t1: float = 0.01,
    min_select: int = 0,
) -> Tagging:
    """Tag the surest samples of one missing class for good (eq. 7-9, tau = d_c T).

    features `[n, d]`; negative, positive: the class's prototypes `[d]`, None if there is none (then nothing
    is tagged); tags `[n]`: -1 untagged, tagged samples are not looked at again. Of the samples that lean to
    0 (z >= 0) the floor(d t0 ...) surest are tagged 0, of the others the floor(d t1 ...) surest 1; at least
    `min_select` while any are left, because the floor alone stalls. Each side is tagged whether or not the
    other finds anything.
    """
    current = np.asarray(tags, dtype=np.int64)
    score = np.full(len(current), np.nan)
    if negative is not None and positive is not None:
        open_ = current == UNTAGGED
        score[open_] = (cosine(negative, features) - cosine(positive, features))[open_]
    to_zero, to_one = np.flatnonzero(score >= 0), np.flatnonzero(score < 0)
    n0 = min(len(to_zero), max(floor_count(difficulty * t0 * len(to_zero)), min_select))
    n1 = min(len(to_one), max(floor_count(difficulty * t1 * len(to_one)), min_select))
    pick0 = to_zero[np.argsort(-score[to_zero], kind="stable")][:n0].astype(np.int64)
    pick1 = to_one[np.argsort(score[to_one], kind="stable")][:n1].astype(np.int64)
    updated = current.copy()
    updated[pick0], updated[pick1] = 0, 1
    return Tagging(score, len(to_zero), len(to_one), pick0, pick1, updated)
