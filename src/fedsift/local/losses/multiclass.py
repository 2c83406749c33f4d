"""Losses for one label a sample: logits and targets are `[..., B, K]`, the result is `[..., B]`.

Targets are dense floats: one-hot, mixed or soft rows. A class prior broadcasts against the logits: `[K]`
for one site, `[C, 1, K]` for a stacked cohort.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.errors import ConfigError

ABSENT = ("masked", "zero", "renormalise")


def expected_value(target: Tensor, values: Tensor) -> Tensor:
    """sum_c target_c * values_c over the last axis, where 0 * inf is 0: `[..., K] -> [...]`."""
    return torch.where(target != 0, target * values, 0.0).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_c target_c log softmax(z)_c, `[..., B, K] -> [..., B]`.

    A logit of -inf is a class that cannot be: it adds nothing and gets no gradient unless the target asks
    for it.
    """
    return -expected_value(target, F.log_softmax(logits, dim=-1))


def log_prior(counts: Tensor) -> Tensor:
    """log(counts / sum counts) over the last axis, -inf for a class not held: `[..., K] -> [..., K]`.

    A site without any label has no prior: its row is 0, which adjusts nothing.
    """
    counts = counts if counts.is_floating_point() else counts.to(torch.get_default_dtype())
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, torch.log(counts / total.clamp(min=torch.finfo(counts.dtype).tiny)), 0.0)


def adjusted_logits(logits: Tensor, log_prior: Tensor, strength: float = 1.0) -> Tensor:
    """z + tau log pi (FedNoRo section 4.1): a class not held gets probability 0 and gradient 0, exactly.

    strength: tau; at 0 the logits are returned as they are (0 times -inf would not be a number).
    """
    return logits + strength * log_prior if strength else logits


def over_prior(logits: Tensor, counts: Tensor) -> Tensor:
    """z - log pi with pi = counts / sum counts: what a network says of a sample apart from how frequent each class is,
    `[..., B, K], [..., K] -> [..., B, K]`; -inf for a class not held."""
    prior = log_prior(counts).unsqueeze(-2)
    return logits - torch.where(torch.isinf(prior), torch.inf, prior)


def teacher_log_probabilities(
    teacher_logits: Tensor, temperature: float = 1.0, present: Tensor | None = None
) -> Tensor:
    """log softmax(teacher / T), a constant (FedNoRo eq. 4): `[..., B, K] -> [..., B, K]`.

    present: true for the classes to rescale on; the others get -inf.
    """
    scaled = teacher_logits.detach() / temperature
    return F.log_softmax(scaled if present is None else torch.where(present, scaled, -math.inf), dim=-1)


def distillation(
    logits: Tensor,
    teacher_logits: Tensor,
    log_prior: Tensor | None = None,
    temperature: float = 1.0,
    absent: str = "masked",
) -> Tensor:
    """KL(softmax(teacher / T) || softmax(z + log pi)) of FedNoRo eq. 5: `[..., B, K] -> [..., B]`.

    The temperature is the teacher's alone, the prior the student's alone. `absent` says what happens to the
    classes whose prior is -inf, where the divergence would be infinite:

    "masked"       they are left out of the sum;
    "zero"         their log-probability counts as 0, so they add q log q (as released; the same gradient);
    "renormalise"  they are left out, and the teacher is rescaled to sum to 1 on the others.
    """
    if absent not in ABSENT:
        raise ConfigError(f"absent = '{absent}': choose one of {', '.join(ABSENT)}")
    if log_prior is None:
        log_teacher = teacher_log_probabilities(teacher_logits, temperature)
        return (log_teacher.exp() * (log_teacher - F.log_softmax(logits, dim=-1))).sum(-1)
    present = (log_prior > -math.inf).expand_as(logits)
    log_student = torch.where(present, F.log_softmax(logits + log_prior, dim=-1), 0.0)
    log_teacher = teacher_log_probabilities(
        teacher_logits, temperature, present if absent == "renormalise" else None
    )
    gaps = log_teacher - log_student
    if absent == "zero":
        return (log_teacher.exp() * gaps).sum(-1)
    return torch.where(present, log_teacher.exp() * gaps, 0.0).sum(-1)


def reverse_cross_entropy(
    logits: Tensor, target: Tensor, log0: float = math.log(1e-4), clamp: float | None = 1e-7
) -> Tensor:
    """sum_c -a_c log t_c with log 0 := log0 and a = max(p, clamp) (RHFL eq. 6): `[..., B, K] -> [..., B]`.

    For a one-hot target and no clamp this is -log0 (1 - p_y). A soft target t counts with max(log t_c, log0).
    clamp: the smallest probability; entries below it pass no gradient. None: probabilities as they are.
    """
    probability = F.softmax(logits, dim=-1)
    if clamp is not None:
        probability = probability.clamp(min=clamp)
    return -(probability * torch.log(target).clamp(min=log0)).sum(-1)


def symmetric_cross_entropy(
    logits: Tensor,
    target: Tensor,
    alpha: float = 0.1,
    beta: float = 1.0,
    log0: float = math.log(1e-4),
    clamp: float | None = 1e-7,
) -> Tensor:
    """alpha CE + beta RCE (RHFL eq. 7); defaults as in its release: `[..., B, K] -> [..., B]`."""
    return alpha * cross_entropy(logits, target) + beta * reverse_cross_entropy(logits, target, log0, clamp)


def double_softmax_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """log sum_j e^{p_j} - p_y, a cross-entropy fed with probabilities: `[..., B, K] -> [..., B]`.

    FedCorr's release ranks samples and fits its mixtures by this loss, which lies between
    log(e + K - 1) - 1 and log(e + K - 1).
    """
    return cross_entropy(F.softmax(logits, dim=-1), target)


def sample_loss(logits: Tensor, target: Tensor, kind: str = "ce_on_softmax") -> Tensor:
    """The loss by which FedCorr splits and ranks samples: "ce" (paper) or "ce_on_softmax" (release)."""
    if kind == "ce":
        return cross_entropy(logits, target)
    if kind == "ce_on_softmax":
        return double_softmax_cross_entropy(logits, target)
    raise ConfigError(f"sample_loss = '{kind}': choose 'ce' or 'ce_on_softmax'")


def forward_correction(logits: Tensor, target: Tensor, transition: Tensor, floor: float = 1e-8) -> Tensor:
    """-sum_c target_c log max((T^T p)_c, floor) (FedDPCont eq. 1): `[..., B, K] -> [..., B]`.

    transition: T[i][j] = P(given j | true i), `[K, K]` or `[C, K, K]`. An estimated T may give a label no
    probability at all, hence the floor; 0 is none.
    """
    # In log space, so that a tiny probability keeps its gradient. A zero of T is a very small number
    # instead of -inf, because a column of nothing but -inf has no gradient.
    log_t = torch.log(transition).clamp(min=-1e30)
    paths = F.log_softmax(logits, dim=-1).unsqueeze(-1) + log_t.unsqueeze(-3)
    log_given = torch.logsumexp(paths, dim=-2)
    if floor > 0:
        log_given = log_given.clamp(min=math.log(floor))
    return -expected_value(target, log_given)


def contrastive_penalty(logits: Tensor, contrast: Tensor, eps: float = 1e-8) -> Tensor:
    """sum_c contrast_c h(c) with h(c) = -log(p_c + eps), `[..., B, K] -> [..., B]`.

    contrast: one-hot rows of sampled labels, or the label shares q themselves (then the expectation over
    samples).
    """
    log_p = F.log_softmax(logits, dim=-1)
    if eps > 0:
        log_p = torch.log(log_p.exp() + eps)
    return -expected_value(contrast, log_p)


def contrastive_cross_entropy(
    logits: Tensor, target: Tensor, contrast: Tensor, beta: float = 1.0, eps: float = 1e-8
) -> Tensor:
    """CE(z, y) - beta h(y') (FedDPCont eq. 2): `[..., B, K] -> [..., B]`.

    contrast: `[..., B, K]` one-hot rows of labels y' drawn from the global shares q, or q itself
    (broadcasting) for the expectation over y'. With beta = 1 and eps = 0 the value is z_y' - z_y: linear in
    the logits and unbounded below, which is why eps is not 0 by default.
    """
    return cross_entropy(logits, target) - beta * contrastive_penalty(logits, contrast, eps)
