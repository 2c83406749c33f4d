"""Parts of the label audit: when a network is one linear layer, and how linear models of all sites become one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsift.contract import Replies, Weights
from fedsift.local.label_messages import FoldsFitted
from fedsift.models.head import PREFIX


def questions_of(classes: int, multilabel: bool) -> tuple[int, int]:
    """Q and C: one question with K answers, or a yes or no for each class."""
    return (classes, 2) if multilabel else (1, classes)


def is_linear(network: str) -> bool:
    """Whether a network's name means one linear layer."""
    return network == "linear" or (network.startswith(PREFIX) and "+" not in network)


def linear_width(weights: Weights, classes: int) -> int | None:
    """F of a model that is one linear layer of K outputs, None for any other."""
    matrices = [value for value in weights.values() if value.dim() == 2]
    rest = [value for value in weights.values() if value.dim() != 2]
    if (
        len(matrices) != 1
        or matrices[0].shape[0] != classes
        or any(value.shape != (classes,) for value in rest)
    ):
        return None
    return int(matrices[0].shape[1])


def averaged(replies: Replies[FoldsFitted]) -> tuple[Tensor, Tensor]:
    """The sites' models averaged by their samples, and the summed likelihoods of what they left out."""
    sizes = torch.tensor([reply.samples for reply in replies.values()], dtype=torch.float64)
    total = sum(
        (share * reply.models.double() for share, reply in zip(sizes / sizes.sum(), replies.values())),
        torch.zeros((), dtype=torch.float64),
    )
    return total.float(), torch.stack([reply.likelihoods for reply in replies.values()]).sum(0)
