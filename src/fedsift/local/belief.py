"""Which of a site's labels a model believes, by its losses."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.local import losses
from fedsift.signals.mixture import clean_probability


def clean_votes(
    logits: Tensor, labels: Tensor, guarded: bool = True, balanced: bool = True, iterations: int = 100
) -> NDArray[np.float64]:
    """P(clean) of every sample by a mixture of two over the losses of these logits, `[n, K], [n] -> [n]`
    (DivideMix section 3.1, FedRN).

    guarded: a label that the model itself would give is clean. A mixture parts any losses in two, those of right labels
    too, and a site would never learn from its harder samples.
    balanced: a class is judged beside its share pi_c of the labels at hand, by softmax(z - log pi), the classes that
    are not among them left out. The labels of a rare class have large losses because it is rare: all of them would be
    dropped, and the model would end with the most frequent class for everything.
    """
    z = logits.double()
    if balanced:
        z = losses.over_prior(z, torch.bincount(labels, minlength=z.shape[-1]).double())
    loss = losses.cross_entropy(z, F.one_hot(labels, z.shape[-1]).double()).numpy()
    found = clean_probability(loss, max_iter=iterations)
    return np.where((z.argmax(-1) == labels).numpy(), 1.0, found) if guarded else found
