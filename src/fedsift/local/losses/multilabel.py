"""Losses for several yes/no labels a sample: logits and 0/1 (or soft) targets are `[..., B, K]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.errors import ConfigError


def binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)) for every entry, `[..., B, K] -> [..., B, K]`."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


def binary_cross_entropy_where(chosen: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """`binary_cross_entropy` of the chosen entries, exactly 0 elsewhere, even where a logit is infinite."""
    return torch.where(chosen, binary_cross_entropy(torch.where(chosen, logits, 0.0), target), 0.0)


def class_prior(n_pos: Tensor, n: int | Tensor, clamp: bool = True) -> Tensor:
    """pi = n_pos / n, `[..., K]`, clamped to [1/(n+1), n/(n+1)] so that its logit stays finite."""
    prior = n_pos / n
    if not clamp:
        return prior
    bound = torch.as_tensor(n, dtype=prior.dtype, device=prior.device)
    return torch.minimum(torch.maximum(prior, 1 / (bound + 1)), bound / (bound + 1))


def shift_of_prior(prior: Tensor) -> Tensor:
    """log(pi / (1 - pi)): what FedMLP eq. 3 does to a probability, as a shift of its logit."""
    return torch.logit(prior)


def multilabel_logit_shift(n_pos: Tensor, n: int | Tensor, clamp: bool = True) -> Tensor:
    """log(pi / (1 - pi)) from positive counts `[..., K]`; sigmoid(z + shift) is FedMLP eq. 3."""
    return shift_of_prior(class_prior(n_pos, n, clamp))


def shifted(logits: Tensor, shift: Tensor | None) -> Tensor:
    """z + shift, or z itself without one; the shift broadcasts: `[K]` or `[C, 1, K]`."""
    return logits if shift is None else logits + shift


def partial_class(
    logits: Tensor,
    target: Tensor,
    known: Tensor,
    shift: Tensor | None = None,
    norm: Literal["classes", "known"] = "classes",
    present: Tensor | None = None,
) -> Tensor:
    """FedMLP's loss on annotated and tagged entries alone (eq. 4): `[..., B, K] -> [...]`, one value a site.

    known: 1 for these entries; it broadcasts: `[K]`, `[C, 1, K]` or `[..., B, K]`. The sum over them is divided by all
    B * K entries ("classes", the paper) or by their number ("known", the release).
    present: `[..., B]`, 0 for rows that only pad a shorter batch.
    """
    counted = (known != 0).expand_as(logits)
    if present is not None:
        counted = counted & (present != 0).unsqueeze(-1)
    total = binary_cross_entropy_where(counted, shifted(logits, shift), target).sum((-2, -1))
    if norm == "known":
        return total / counted.sum((-2, -1)).clamp(min=1)
    if norm != "classes":
        raise ConfigError(f"norm = '{norm}': choose 'classes' or 'known'")
    if present is None:
        return total / (logits.shape[-2] * logits.shape[-1])
    return total / (present.sum(-1) * logits.shape[-1]).clamp(min=1)


def confident_tags(probabilities: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Pseudo-labels of sure entries: 1 where p > threshold, 0 where p < 1 - threshold; `[..., K]` labels and who is
    sure.

    threshold: one number, or `[K]` for one a class; at least 1/2, else an entry could be both.
    """
    high, low = probabilities > threshold, probabilities < 1 - threshold
    return high.to(probabilities.dtype), high | low


def sure_throughout(sure: Tensor, among: Tensor) -> Tensor:
    """Whether every entry of a sample that `among` names is sure, `[..., B, K] -> [..., B]`; true for none."""
    return (sure | (among == 0)).all(-1)


def binary_entropy(logits: Tensor) -> Tensor:
    """-p log p - (1 - p) log(1 - p) with p = sigmoid(z), of every entry: `[..., B, K] -> [..., B, K]`."""
    return -(torch.sigmoid(logits) * F.logsigmoid(logits) + torch.sigmoid(-logits) * F.logsigmoid(-logits))


def squared_error(logits: Tensor, global_logits: Tensor) -> Tensor:
    """(sigmoid(z) - sigmoid(g))^2 of every entry, g held constant: `[..., B, K] -> [..., B, K]`."""
    return (torch.sigmoid(logits) - torch.sigmoid(global_logits.detach())).square()


@dataclass(frozen=True)
class Consistency:
    """FedMLP's second-stage loss and its parts, each `[...]`: one value a site."""

    loss: Tensor
    hard_sum: Tensor
    """Binary cross-entropy over annotated or tagged entries."""
    soft_sum: Tensor
    """Squared distance to the global model's probabilities over the others."""
    n_hard: Tensor
    n_soft: Tensor


def consistency(
    logits: Tensor,
    target: Tensor,
    global_logits: Tensor,
    mask: Tensor,
    shift: Tensor | None = None,
    norm: Literal["joint", "separate"] = "joint",
    present: Tensor | None = None,
) -> Consistency:
    """Labels where they are known, the global model elsewhere (FedMLP section 2.4): `[..., B, K] -> [...]`.

    mask: 1 where annotated or tagged. The adjustment touches the labelled entries alone. "joint" divides
    the sum of both parts by the number of entries; "separate" averages each over its own entries, an empty
    part being 0.
    present: `[..., B]`, 0 for rows that only pad a shorter batch.
    """
    hard = mask != 0
    soft = ~hard
    if present is not None:
        real = (present != 0).unsqueeze(-1)
        hard, soft = hard & real, soft & real
    hard_sum = binary_cross_entropy_where(hard, shifted(logits, shift), target).sum((-2, -1))
    soft_sum = torch.where(soft, squared_error(logits, global_logits), 0.0).sum((-2, -1))
    n_hard, n_soft = hard.sum((-2, -1)), soft.sum((-2, -1))
    if norm == "joint":
        loss = (hard_sum + soft_sum) / (n_hard + n_soft).clamp(min=1)
    elif norm == "separate":
        loss = hard_sum / n_hard.clamp(min=1) + soft_sum / n_soft.clamp(min=1)
    else:
        raise ConfigError(f"norm = '{norm}': choose 'joint' or 'separate'")
    return Consistency(loss, hard_sum, soft_sum, n_hard, n_soft)


def missing_class(logits: Tensor, teacher_logits: Tensor, active: Tensor, total: bool = False) -> Tensor:
    """Mean squared distance to a teacher over the classes not annotated: `[..., B, K] -> [..., B]`.

    With `partial_class(norm="known")` on two views this is the first stage of FedMLP's release. total: the sum instead
    of the mean.
    """
    missing = active == 0
    errors = torch.where(missing, squared_error(logits, teacher_logits), 0.0).sum(-1)
    return errors if total else errors / missing.sum(-1).clamp(min=1)
