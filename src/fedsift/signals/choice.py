"""Choosing by loss: sites that learn most (power-of-choice), how many samples are left out (Co-teaching)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedsift.contract.errors import ConfigError


def power_of_choice(candidates: Sequence[int], losses: ArrayLike, m: int) -> list[int]:
    """The m candidates with the largest loss, largest first; `losses` is indexed by site number.

    Draw the candidates without replacement in proportion to the sites' sizes.
    """
    values = np.asarray(losses, dtype=np.float64)
    pool = np.sort(np.asarray(candidates, dtype=np.int64))
    return [int(site) for site in pool[np.argsort(-values[pool], kind="stable")][:m]]


def forget_rate(t: float, rate: float, warm: float, form: Literal["paper", "official"] = "paper") -> float:
    """Share of samples left out at epoch t (Co-teaching).

    "paper": rate min(t / warm, 1), "official": rate min(t / (warm - 1), 1).
    """
    if form not in ("paper", "official"):
        raise ConfigError(f"forget_rate form = '{form}': choose 'paper' or 'official'")
    span = warm if form == "paper" else warm - 1
    return rate * min(t / span, 1.0) if span > 0 else rate
