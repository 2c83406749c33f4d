"""How many of a site's labels are wrong, for methods that leave that share of the samples out.

FedCorr's estimate, the larger component of a mixture of two over the losses, parts right labels too: a site without a
wrong label of a hard task would leave out half of its samples, and one that a network knows nothing of yet nearly all.
So it counts as an upper bound, and two more besides, of what a network says of the samples that it is surest of: the
share of labels that it disowns there, and the share that looks blind (signals/reference.py). The last one does not ask
whether the network is right, nor whether it is as sure as it should be, only whether it knows anything: the right class
of a sample then ranks high, if not first. Labels that are mistaken for a look-alike class rank high too, and are not
counted: for such noise the rate must be given.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.signals.mixture import suspects
from fedsift.signals.reference import FEWEST_CLASSES, blind_share_of_ranks, knows_something

SUREST = 0.1
"""Share of the samples among which disowned labels are counted."""
FEWEST = 20
"""And at least so many of them."""


def disowned_share(confidence: ArrayLike, rank: ArrayLike) -> float:
    """Share of labels other than the network's own among the samples it is surest of, `[n], [n] -> 0..1`; 0 for none.

    confidence: its largest probability; rank: how many classes it holds for likelier than the given one.
    """
    sure, place = np.asarray(confidence, dtype=np.float64), np.asarray(rank)
    if not len(sure):
        return 0.0
    surest = np.argsort(-sure, kind="stable")[: max(FEWEST, math.ceil(SUREST * len(sure)))]
    return float((place[surest] > 0).mean())


def noise_rate(
    losses: ArrayLike, confidence: ArrayLike, rank: ArrayLike, classes: int
) -> tuple[float, NDArray[np.int64]]:
    """The smallest of the three estimates, and the samples of the mixture's larger component, `[n] x 3`.

    0 where the network knows nothing that could speak against a label. Two classes have no blind share: the other one
    is always in the lower half.
    """
    noisy, n = suspects(losses), len(np.asarray(losses))
    rate = min(len(noisy) / max(1, n), disowned_share(confidence, rank))
    if classes < FEWEST_CLASSES or not n:
        return rate, noisy
    blind = blind_share_of_ranks(confidence, rank, classes)
    return (min(rate, blind) if knows_something(blind, n, classes) else 0.0), noisy
