"""How many of a site's labels are wrong, for methods that leave that share of the samples out.

FedCorr's estimate, the larger component of a mixture of two over the losses, parts right labels too: a site without a
wrong label of a hard task would leave out half of its samples. So it counts as an upper bound, beside what a network
says of the samples that it is surest of: there a label that it disowns is mostly wrong, however hard the rest is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.signals.mixture import suspects

SUREST = 0.1
"""Share of the samples that the network is asked about."""
FEWEST = 20
"""And at least so many of them."""


def disowned_share(confidence: ArrayLike, owned: ArrayLike) -> float:
    """Share of labels other than the network's own among the samples it is surest of, `[n], [n] -> 0..1`; 0 for none.

    confidence: its largest probability; owned: whether that is the given label's.
    """
    sure, own = np.asarray(confidence, dtype=np.float64), np.asarray(owned, dtype=bool)
    if not len(sure):
        return 0.0
    surest = np.argsort(-sure, kind="stable")[: max(FEWEST, math.ceil(SUREST * len(sure)))]
    return float((~own[surest]).mean())


def noise_rate(losses: ArrayLike, confidence: ArrayLike, owned: ArrayLike) -> tuple[float, NDArray[np.int64]]:
    """The smaller of both estimates, and the samples of the mixture's larger component, `[n] x 3`."""
    noisy = suspects(losses)
    share = len(noisy) / max(1, len(np.asarray(losses)))
    return min(share, disowned_share(confidence, owned)), noisy
