"""What a network says of all classes where one of them is present (FedIRM), for several yes/no labels a sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedsift.contract.errors import ConfigError

LEAST = 1e-6
"""Probabilities count as at least this in a divergence."""


def relation_matrix(logits: Tensor, members: Tensor, temperature: float = 2.0) -> tuple[Tensor, Tensor]:
    """Row c: sigmoid(mean over the members of class c of z / T), `[..., B, K] -> [..., K, K]`; and which rows exist.

    members: `[..., B, K]`, 1 where a sample stands for a class. A class without a member has no row (1/2 throughout).
    """
    weights = members.to(logits.dtype)
    count = weights.sum(-2)
    mean = weights.transpose(-1, -2) @ logits / count.clamp(min=1).unsqueeze(-1)
    return torch.sigmoid(mean / temperature), count > 0


def relation_divergence(own: Tensor, other: Tensor, kind: Literal["plain", "binary"] = "plain") -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 of each row, `[..., K, K] -> [..., K]`.

    "plain" takes the probabilities of a row as they stand, as released: (p - q)(log p - log q) / 2, which is never
    negative though a row need not add up to 1. "binary" takes each of them for a yes/no distribution, so that the
    other side counts too: (p - q)(logit p - logit q) / 2.
    """
    p, q = own.clamp(LEAST, 1 - LEAST), other.to(own.dtype).clamp(LEAST, 1 - LEAST)
    if kind == "plain":
        apart = p.log() - q.log()
    elif kind == "binary":
        apart = torch.logit(p) - torch.logit(q)
    else:
        raise ConfigError(f"divergence = '{kind}': choose 'plain' or 'binary'")
    return ((p - q) * apart).sum(-1) / 2
