"""RHFL's client confidence re-weighting: a site whose loss is low and falling teaches more (eq. 9-13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError, DataError

Mode = Literal["official", "abs", "clip", "held-out"]

_NOTHING = 1e-12
"""A normaliser this close to 0 says nothing: all shares are 0."""


@dataclass(frozen=True)
class Credibility:
    """One round's figures, `[S]` each; the middle three are None in the first round and by held-out losses."""

    quality: NDArray[np.float64]
    """Q = 1 / L_t; by held-out losses the skill s."""
    drop: NDArray[np.float64] | None
    """P = L_{t-1} - L_t."""
    confidence: NDArray[np.float64] | None
    """F = Q P."""
    raw: NDArray[np.float64] | None
    """w = 1 / (S - 1) + eta share."""
    weights: NDArray[np.float64]
    """W: softmax(w), or 1 / (S - 1) in the first round."""


def shares_of_confidence(confidence: ArrayLike, mode: Mode = "official") -> NDArray[np.float64]:
    """Each site's share of the confidence, `[S] -> [S]`.

    "official": F / sum F, as printed; "abs": F / sum |F|; "clip": the positive part of F over its sum.

    F may be negative: "official" then favours the site whose loss rose most if all rise, and explodes when
    the sum is small; the other two do not. A sum of 0 gives shares of 0.
    """
    values = np.asarray(confidence, dtype=np.float64)
    if mode == "clip":
        values = np.maximum(values, 0.0)
    elif mode not in ("official", "abs"):
        raise ConfigError(
            f"ccr_mode = '{mode}': choose 'official', 'abs' or 'clip', or weigh by held-out losses"
        )
    total = np.abs(values).sum() if mode == "abs" else values.sum()
    return values / total if abs(total) >= _NOTHING else np.zeros_like(values)


def held_out_credibility(losses: ArrayLike, chance: float) -> Credibility:
    """Weights of all sites from their losses on samples that they never trained on, `[S]` (ours, not the paper's).

    s = 1 - L / chance, between 0 and 1, where chance is the loss of a model that says every class alike; then
    W = S / (S - 1) s / sum s. Equal sites get the 1 / (S - 1) of eq. 3; one that knows its labels by heart and nothing
    else gets 0. If nobody is better than chance, all count alike.
    """
    now = _checked(losses)
    skill = np.clip(1.0 - now / chance, 0.0, 1.0)
    total = skill.sum()
    even = np.full(len(now), 1.0 / len(now)) if total < _NOTHING else skill / total
    return Credibility(skill, None, None, None, even * len(now) / max(len(now) - 1, 1))


def _checked(losses: ArrayLike) -> NDArray[np.float64]:
    now = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(now).all() or (now < 0).any():
        raise DataError(f"losses {now.tolist()} cannot be weighed: they must be finite and not negative")
    return now


def credibility(
    losses: ArrayLike, previous: ArrayLike | None = None, eta: float = 0.5, mode: Mode = "official"
) -> Credibility:
    """Weights of all sites from their mean losses, `[S]`; previous: the round before, None in the first."""
    now = _checked(losses)
    base = 1.0 / max(len(now) - 1, 1)
    quality = 1.0 / np.maximum(now, _NOTHING)
    if previous is None:
        return Credibility(quality, None, None, None, np.full(len(now), base))
    drop = np.asarray(previous, dtype=np.float64) - now
    confidence = quality * drop
    raw = base + eta * shares_of_confidence(confidence, mode)
    exponentials = np.exp(raw - raw.max())
    return Credibility(quality, drop, confidence, raw, exponentials / exponentials.sum())
