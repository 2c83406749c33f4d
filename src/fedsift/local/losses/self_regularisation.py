"""FedLSR's loss on two augmented looks at the same samples: logits of each are `[..., B, K]`, results `[..., B]`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def log_sharpened_mixture(first: Tensor, second: Tensor, share: Tensor, temperature: float = 0.5) -> Tensor:
    """log p_s with p_s = p^(1/T) / sum_j p_j^(1/T) of p = lambda softmax(z1) + (1 - lambda) softmax(z2).

    share: lambda, `[...]`, one for each batch. In log space, so that a tiny probability keeps its gradient:
    `[..., B, K] -> [..., B, K]`.
    """
    weight = share.to(first.dtype)[..., None, None].clamp(1e-7, 1 - 1e-7)
    mixed = torch.logaddexp(
        F.log_softmax(first, dim=-1) + weight.log(), F.log_softmax(second, dim=-1) + (1 - weight).log()
    )
    return F.log_softmax(mixed / temperature, dim=-1)


def jensen_shannon(first: Tensor, second: Tensor, sharpness: float = 3.0, least: float = 1e-6) -> Tensor:
    """(KL(a || m) + KL(b || m)) / 2 with a = softmax(s z1), b = softmax(s z2), m = (a + b) / 2.

    least: probabilities count as at least this, as released. `[..., B, K] -> [..., B]`.
    """
    a = F.softmax(sharpness * first, dim=-1).clamp(min=least)
    b = F.softmax(sharpness * second, dim=-1).clamp(min=least)
    log_m = ((a + b) / 2).log()
    return ((a * (a.log() - log_m)).sum(-1) + (b * (b.log() - log_m)).sum(-1)) / 2
