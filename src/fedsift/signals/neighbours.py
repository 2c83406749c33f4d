"""FedRN's choice of neighbours: sites that fit their own labels well, and whose models answer alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.signals.selection import cosine


def scaled(values: ArrayLike) -> NDArray[np.float64]:
    """(v - min) / (max - min), `[n] -> [n]`; all 1 where all are alike, since nothing speaks against any of them."""
    v = np.asarray(values, dtype=np.float64)
    spread = np.ptp(v) if len(v) else 0.0
    return np.asarray((v - v.min()) / spread if spread > 0 else np.ones(len(v)))


def reliability(expertise: ArrayLike, outputs: ArrayLike, own: int, alpha: float) -> NDArray[np.float64]:
    """alpha e_j + (1 - alpha) s_j of every site j for one site, `[n], [n, D] -> [n]`.

    e: expertise, s: cosine between the sites' outputs and the site's own, both scaled to 0..1 over all sites; the own s
    is 1.
    """
    rows = np.asarray(outputs, dtype=np.float64)
    similarity = scaled(cosine(rows[own], rows))
    similarity[own] = 1.0
    return np.asarray(alpha * scaled(expertise) + (1 - alpha) * similarity)


def reliable(scores: ArrayLike, own: int, k: int) -> list[int]:
    """The k other sites with the largest scores, largest first; ties go to the earlier one."""
    values = np.asarray(scores, dtype=np.float64)
    order = [int(j) for j in np.argsort(-values, kind="stable") if j != own]
    return order[:k]
