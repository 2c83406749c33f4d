"""Losses by which sites learn from each other's predictions on shared, unlabelled samples.

Logits of all sites are stacked `[K_sites, B, K]`. Teachers are always constants.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.errors import ConfigError
from fedsift.local.losses.multiclass import cross_entropy


def divergence(teacher_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(z)), `[..., B, K] -> [..., B]`; here both sides get gradients."""
    log_teacher, log_student = F.log_softmax(teacher_logits, dim=-1), F.log_softmax(logits, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(-1)


def teacher_weights(
    scheme: str, n_sites: int, student: int, weights: Tensor | None = None, *, like: Tensor
) -> Tensor:
    """a_i of every teacher i for one student, `[S]`; the student's own entry is 0.

    scheme: "uniform" 1/(S-1) (RHFL eq. 3), "own" the student's W_k (eq. 14 as printed), "teacher" W_i
    (release).
    like: a tensor whose type and device the result takes.
    """
    if scheme == "uniform":
        shares = torch.full((n_sites,), 1.0 / max(n_sites - 1, 1), dtype=like.dtype, device=like.device)
    elif scheme in ("own", "teacher"):
        if weights is None:
            raise ConfigError(
                f"scheme '{scheme}' needs the sites' confidence weights; without them use 'uniform'"
            )
        confident = weights.to(like)
        shares = confident[student].repeat(n_sites) if scheme == "own" else confident.clone()
    else:
        raise ConfigError(f"scheme = '{scheme}': choose 'uniform', 'own' or 'teacher'")
    shares[student] = 0.0
    return shares


def teacher_mixture(probabilities: Tensor, shares: Tensor) -> Tensor:
    """sum_i a_i p_i, all that a student needs of its teachers (RHFL eq. 3 and 14): `[S, B, K], [S] -> [B, K]`.

    shares: a_i, `[S]`, 0 for the student itself (see `teacher_weights`). The student's sum_i a_i KL(p_i || p) is
    `mixture_loss(z, mixture)` less a constant, sum_i a_i H(p_i).
    """
    return torch.einsum("s,sbk->bk", shares, probabilities)


def mixture_loss(logits: Tensor, mixture: Tensor) -> Tensor:
    """-sum_c m_c log softmax(z)_c for a mixture m, whose sum need not be 1: `[..., B, K] -> [..., B]`."""
    return cross_entropy(logits, mixture.detach())


def mean_scores(logits: Tensor) -> Tensor:
    """Mean logits of all sites, the student included (FedMD, FedDF): `[S, B, K] -> [B, K]`."""
    return logits.detach().mean(0)


def score_distance(logits: Tensor, consensus: Tensor) -> Tensor:
    """Mean absolute difference to the consensus (FedMD): `[..., B, K] -> [..., B]`."""
    return (logits - consensus.detach()).abs().mean(-1)


def ensemble_distillation(logits: Tensor, consensus: Tensor) -> Tensor:
    """KL(softmax(consensus) || softmax(z)) (FedDF): `[..., B, K] -> [..., B]`."""
    return divergence(consensus.detach(), logits)
