"""How sure a model is of a site's labels; noisy sites score lower (the confidence row of FedNoRo Table 3)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError

Kind = Literal["given", "max"]


def confidence(probabilities: ArrayLike, labels: ArrayLike, kind: Kind = "given") -> NDArray[np.float64]:
    """p of the given label ("given") or the largest p ("max") of every sample: `[n, K], [n] -> [n]`."""
    p: NDArray[np.float64] = np.asarray(probabilities, dtype=np.float64)
    if kind == "max":
        return np.asarray(p.max(axis=1))
    if kind == "given":
        return np.asarray(p[np.arange(len(p)), np.asarray(labels, dtype=np.int64)])
    raise ConfigError(f"confidence = '{kind}': choose 'given' or 'max'")
