"""Krum and multi-Krum: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.aggregate.distance_aware import pair_distances
from fedsift.contract.messages import Weights


def krum_scores(squared: Tensor, hostile: int) -> Tensor:
    """s(i) = sum of ||w_i - w_j||^2 over the m - f - 2 models j nearest to i, float64 `[m]`.

    squared: squared distances `[m, m]`; hostile: f, models that may be anything. At least one neighbour counts, so that
    small cohorts have a score as well.
    """
    m = len(squared)
    neighbours = min(max(m - hostile - 2, 1), m - 1)
    others = squared.clone()
    others.fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)


def krum_choice(models: Sequence[Weights], hostile: int, keep: int = 1) -> list[int]:
    """Positions of the `keep` models with the smallest scores, in their own order; ties go to the earlier one."""
    if len(models) <= keep:
        return list(range(len(models)))
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    scores = krum_scores(pair_distances(models, models, names, "l2").square(), hostile)
    return sorted(torch.argsort(scores, stable=True)[:keep].tolist())
