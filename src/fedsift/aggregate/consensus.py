"""RSCFed's aggregation: random groups of sites agree on a model each, and these are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.aggregate.average import average
from fedsift.aggregate.distance_aware import pair_distances
from fedsift.contract.messages import Weights


def consensus_shares(
    models: Sequence[Weights], sizes: Sequence[float], groups: Sequence[Sequence[int]], scale: float
) -> Tensor:
    """What each model counts for in the mean of all groups' models, float64 `[C]`, sum 1.

    Within a group site i counts n_i exp(-scale d_i / n_i), d_i the sum of its tensors' distances to the group's plain
    mean; the groups count alike. A site in no group counts nothing. groups: positions in `models`.
    """
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    shares = torch.zeros(len(models), dtype=torch.float64)
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    for group in groups:
        own = [models[i] for i in group]
        away = pair_distances(own, [average(own)], names, "layer_sum")[:, 0]
        n = counts[list(group)]
        # in logarithms: with a large scale all factors of a group may underflow
        shares[list(group)] += torch.softmax(n.log() - scale * away / n, 0) / len(groups)
    return shares
