"""Is there a clean site at all? What a comparison of sites with each other can never tell.

Sites that are all noisy look like one group, or like two of which the better one passes for clean. An absolute measure
is needed: the share of labels that look *blind*, drawn without a look at the sample. A network that has learnt anything
puts the right class of a sample that it is sure of high among all classes, however hard the data are; a blind label
lies anywhere. So among such samples the lower half of the ranks holds blind labels and little else, and their number
gives the share of all blind ones: Storey's estimate of the share of true null hypotheses (2002) with ranks for
p-values, lambda = 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

FEWEST_CLASSES = 3
"""Of two classes the wrong one is always in the lower half: hard samples would pass for blind labels."""
SURE = 0.25
"""Share of a site's samples that are looked at: those on which the network is surest."""
FEWEST = 40
"""And at least so many of them: fewer tell a share too coarsely."""
MANY = 0.2
"""A site with more blind labels than this is no reference."""
UNKNOWING = 0.85
"""Where even the best sites have more than this, it is the network that knows nothing."""
BEST = 0.1
"""Share of the sites that are taken for the best ones, two at least: one site alone may be so by chance."""


def looked_at(samples: int) -> int:
    """How many of a site's samples are looked at."""
    return min(samples, max(FEWEST, math.ceil(SURE * samples)))


def blind_share(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Estimated share of labels that were drawn without a look, `[n, K], [n] -> 0..1`; NaN below three classes.

    A class that ties with others counts as the highest of them.
    """
    p, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if not len(p):
        return math.nan
    own = p[np.arange(len(p)), given]
    return blind_share_of_ranks(p.max(axis=1), (p > own[:, None]).sum(axis=1), int(p.shape[1]))


def blind_share_of_ranks(confidence: ArrayLike, rank: ArrayLike, classes: int) -> float:
    """Twice (K / floor(K/2)) the share of given labels in the lower half of the classes, among the samples with the
    largest probability of any class, `[n], [n] -> 0..1`; NaN below three classes.

    confidence: that probability; rank: how many classes are likelier than the given one.
    """
    sure, place = np.asarray(confidence, dtype=np.float64), np.asarray(rank)
    if classes < FEWEST_CLASSES or not len(sure):
        return math.nan
    surest = np.argsort(-sure, kind="stable")[: looked_at(len(sure))]
    lower = classes // 2
    return min(1.0, float((place[surest] >= classes - lower).mean()) * classes / lower)


def best_share(shares: Sequence[float]) -> float:
    """Mean blind share of the best tenth of the sites, two at least; NaN where there is none."""
    known = sorted(share for share in shares if not math.isnan(share))
    return float(np.mean(known[: max(2, math.ceil(BEST * len(known)))])) if known else math.nan


def no_clean_reference(shares: Sequence[float]) -> bool:
    """Whether even the best sites have many blind labels, by a network that knows something."""
    return MANY < best_share(shares) <= UNKNOWING


def knows_something(share: float, samples: int, classes: int) -> bool:
    """Whether so many samples' labels look blind to a model less often than all would to one that knows nothing: by
    more than three standard deviations of a binomial count."""
    lower = classes // 2
    q = lower / classes
    return (1 - share) * q > 3 * math.sqrt(q * (1 - q) / looked_at(samples))
