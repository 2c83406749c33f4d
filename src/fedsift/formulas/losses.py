"""Loss formulas, and the targets and selections that they use (mixup, sharpening, pseudo-labels, small losses).

Over the last axes: `[B, K]` for one site, `[C, B, K]` for a stacked cohort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.errors import ConfigError

# Mixup: each sample is blended with a partner of its own batch
# ------------------------------------------------------------------------------


def blend(values: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """lambda values + (1 - lambda) partners (FedCorr section 3.2); `share` is lambda: one number, or it broadcasts
    against the values.

    For dense targets, cross-entropy with the blended target equals lambda CE(z, y) + (1 - lambda) CE(z, y').
    """
    return share * values + (1 - share) * partners


def blend_in_place(values: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """`blend` without new memory, for images: both tensors are used up, the result is in the first."""
    return values.mul_(share).add_(partners.mul_(1 - share))


def mixup(inputs: Tensor, target: Tensor, partner: Tensor, share: float | Tensor) -> tuple[Tensor, Tensor]:
    """Inputs `[B, ...]` and targets `[B, K]` of one batch, each row blended with that of its partner, int64 `[B]`."""
    return blend(inputs, inputs[partner], share), blend(target, target[partner], share)


# Losses for one label a sample: logits and targets are `[..., B, K]`, the result is `[..., B]`
# ------------------------------------------------------------------------------

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
    log_teacher = teacher_log_probabilities(teacher_logits, temperature, present if absent == "renormalise" else None)
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


# Losses for several yes/no labels a sample: logits and 0/1 (or soft) targets are `[..., B, K]`
# ------------------------------------------------------------------------------


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


def all_confident(sure: Tensor, among: Tensor) -> Tensor:
    """Whether every entry of a sample that `among` names is sure, `[..., B, K] -> [..., B]`; true for none."""
    return (sure | (among == 0)).all(-1)


def binary_entropy(logits: Tensor) -> Tensor:
    """-p log p - (1 - p) log(1 - p) with p = sigmoid(z), of every entry: `[..., B, K] -> [..., B, K]`."""
    return -(torch.sigmoid(logits) * F.logsigmoid(logits) + torch.sigmoid(-logits) * F.logsigmoid(-logits))


def squared_error(logits: Tensor, global_logits: Tensor) -> Tensor:
    """(sigmoid(z) - sigmoid(g))^2 of every entry, g held constant: `[..., B, K] -> [..., B, K]`."""
    return (torch.sigmoid(logits) - torch.sigmoid(global_logits.detach())).square()


@dataclass(frozen=True)
class ConsistencyLoss:
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
) -> ConsistencyLoss:
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
    return ConsistencyLoss(loss, hard_sum, soft_sum, n_hard, n_soft)


def missing_class(logits: Tensor, teacher_logits: Tensor, active: Tensor, total: bool = False) -> Tensor:
    """Mean squared distance to a teacher over the classes not annotated: `[..., B, K] -> [..., B]`.

    With `partial_class(norm="known")` on two views this is the first stage of FedMLP's release. total: the sum instead
    of the mean.
    """
    missing = active == 0
    errors = torch.where(missing, squared_error(logits, teacher_logits), 0.0).sum(-1)
    return errors if total else errors / missing.sum(-1).clamp(min=1)


# Losses that bear wrong labels: logits and targets are `[..., B, K]`, the result is `[..., B]`
# ------------------------------------------------------------------------------


def generalised_cross_entropy(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    """sum_c t_c (1 - p_c^q) / q (GCE, Zhang and Sabuncu 2018, eq. 6): `[..., B, K] -> [..., B]`.

    q -> 0 is cross-entropy, q = 1 the mean absolute error 1 - p_y. From log p, so that a tiny probability keeps its
    gradient -p^q (1 - p_y) instead of an infinite factor p^(q-1).
    """
    return -expected_value(target, torch.expm1(q * F.log_softmax(logits, dim=-1))) / q


def running_prediction(memory: Tensor, logits: Tensor, beta: float = 0.7, least: float = 1e-4) -> Tensor:
    """beta t + (1 - beta) p, a constant, with p cut to [least, 1 - least] and rescaled (ELR eq. 9): `[..., B, K]`."""
    p = F.softmax(logits.detach(), dim=-1).clamp(least, 1 - least)
    return beta * memory + (1 - beta) * p / p.sum(-1, keepdim=True)


def early_learning(logits: Tensor, memory: Tensor, least: float = 1e-4) -> Tensor:
    """log(1 - <p, t>) with p cut to [least, 1 - least] (ELR, Liu et al. 2020, eq. 6): `[..., B, K] -> [..., B]`.

    Its gradient pulls p towards what the network said of the sample before, t.
    """
    p = F.softmax(logits, dim=-1).clamp(least, 1 - least)
    return torch.log1p(-(memory.detach() * p).sum(-1).clamp(max=1 - least))


def entropy(logits: Tensor) -> Tensor:
    """-sum_c p_c log p_c, `[..., B, K] -> [..., B]`."""
    log_p = F.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def mean_probability(logits: Tensor, present: Tensor) -> Tensor:
    """Mean of softmax(z) over the real rows of a batch, `[..., B, K] -> [..., K]`."""
    total = (F.softmax(logits, dim=-1) * present.unsqueeze(-1)).sum(-2)
    return total / present.sum(-1, keepdim=True).clamp(min=1)


def prior_divergence(logits: Tensor, present: Tensor, prior: Tensor | None = None) -> Tensor:
    """KL(pi || mean of p over the batch), `[..., B, K] -> [...]`: keeps a network from one answer for all.

    prior: pi, `[..., K]` (a class that it gives nothing adds nothing); None: all classes alike (JointOpt eq. 5,
    DivideMix eq. 10).
    """
    mean = mean_probability(logits, present).clamp(min=1e-12)
    pi = torch.full_like(mean, 1 / mean.shape[-1]) if prior is None else prior
    return (torch.xlogy(pi, pi) - pi * torch.log(mean)).sum(-1)


def smallest(values: Tensor, count: Tensor, present: Tensor) -> Tensor:
    """1 for the `count` smallest of the real values, ties to the first: `[..., B], [...] -> [..., B]`.

    The samples of small loss, likely clean (Co-teaching Alg. 1 lines 6-7, RoFL).
    """
    ranks = ranks_of(torch.where(present > 0, values.detach(), math.inf))
    return ((ranks < count.unsqueeze(-1)) & (present > 0)).to(values.dtype)


def ranks_of(values: Tensor) -> Tensor:
    """Rank of each value among the last axis, 0 for the smallest; ties by place: `[..., B] -> [..., B]`."""
    order = torch.argsort(values, dim=-1, stable=True)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def kept_count(present: Tensor, rate: Tensor) -> Tensor:
    """floor((1 - rate) B) of a batch of B real rows, `[..., B], [...] -> [...]`.

    A share that falls short of a whole number by rounding alone counts as that number.
    """
    return torch.floor((1 - rate.double()) * present.sum(-1) + 1e-6).to(torch.int64)


def small_loss(losses: Tensor, rate: Tensor, present: Tensor) -> Tensor:
    """1 for the floor((1 - rate) B) samples of smallest loss, `[..., B], [...] -> [..., B]`
    (Co-teaching, RoFL)."""
    return smallest(losses, kept_count(present, rate), present)


def confidence_and_rank(logits: Tensor, target: Tensor) -> Tensor:
    """The largest probability, and how many classes are likelier than the given one, `[..., B, K] -> [..., B, 2]`."""
    p = F.softmax(logits.detach(), dim=-1)
    rank = (p > expected_value(target, p).unsqueeze(-1)).sum(-1)
    return torch.stack([p.amax(-1), rank.to(p.dtype)], dim=-1)


def reweighted_cross_entropy(logits: Tensor, target: Tensor, transition: Tensor, floor: float = 1e-8) -> Tensor:
    """p_y / (T^T p)_y CE(z, y) (T-revision, Xia et al. 2019, eq. 4): `[..., B, K] -> [..., B]`.

    transition: T[i][j] = P(given j | true i), `[..., K, K]`. The p of the weight is a constant, T is not: a network
    could otherwise lower its loss by disowning hard samples, while a learnt T must see the weight.
    """
    p = F.softmax(logits.detach(), dim=-1)
    weight = expected_value(target, p) / expected_value(target, p @ transition).clamp(min=floor)
    return weight * cross_entropy(logits, target)


def revised_transition(transition: Tensor, change: Tensor, least: float = 1e-6) -> Tensor:
    """T + dT as a stochastic matrix: negative entries are cut, `least` is added so that no label is impossible and
    every entry has a gradient, rows are rescaled to 1; `[..., K, K]`."""
    revised = (transition + change).clamp(min=0) + least
    return revised / revised.sum(-1, keepdim=True)


def sharpened(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """p_c^(1/T) / sum_j p_j^(1/T), `[..., K] -> [..., K]` (MixMatch; DivideMix eqs. 5 and 8)."""
    powered = probabilities.clamp(min=0) ** (1 / temperature)
    return powered / powered.sum(-1, keepdim=True).clamp(min=1e-30)


# Distances between a network and its anchor, summed over all parameter tensors together
# ------------------------------------------------------------------------------


def squared_distance(params: Sequence[Tensor], anchors: Sequence[Tensor], lead: int = 0) -> Tensor:
    """||w - w_g||^2 over all tensors: `[]`, or `[C]` when each tensor has `lead` = 1 cohort axis in front.

    An anchor may lack the cohort axis; then it is the same for all sites.
    """
    if not params:
        raise ConfigError("a proximal term needs at least one parameter tensor")
    squares = []
    for param, anchor in zip(params, anchors, strict=True):
        difference = param - anchor
        squares.append(difference.reshape(*difference.shape[:lead], -1).square().sum(-1))
    return torch.stack(squares).sum(0)


def distance(params: Sequence[Tensor], anchors: Sequence[Tensor], lead: int = 0) -> Tensor:
    """||w - w_g||, `[]` or `[C]`; at the anchor the gradient is 0 where that of a plain root would be NaN."""
    squared = squared_distance(params, anchors, lead)
    away = squared > 0
    return torch.where(away, torch.sqrt(torch.where(away, squared, 1.0)), 0.0)


def inner_product(params: Sequence[Tensor], directions: Sequence[Tensor], lead: int = 0) -> Tensor:
    """<w, d> over all tensors: `[]`, or `[C]` with `lead` = 1 cohort axis in front; its gradient is d.

    A direction may lack the cohort axis; then it is the same for all sites.
    """
    products = []
    for param, direction in zip(params, directions, strict=True):
        product = param * direction.detach()
        products.append(product.reshape(*product.shape[:lead], -1).sum(-1))
    return torch.stack(products).sum(0)


def proximal(
    params: Sequence[Tensor],
    anchors: Sequence[Tensor],
    strength: float | Tensor,
    *,
    power: int = 2,
    skip: bool = False,
    lead: int = 0,
) -> Tensor:
    """strength * ||w - w_g||^power, `[]` or `[C]`.

    power 2: FedCorr eq. 5 with strength beta * mu_hat, FedProx with strength mu / 2; power 1: FedCorr's release.
    strength: one number, or `[C]` for a cohort.
    skip: the term is left out, as FedCorr's release does on the first batch of every local epoch: 0, not computed.
    """
    if power not in (1, 2):
        raise ConfigError(f"prox_power = {power}: choose 1 (the norm) or 2 (its square)")
    if skip:
        return torch.zeros(params[0].shape[:lead], dtype=params[0].dtype, device=params[0].device)
    length = squared_distance if power == 2 else distance
    return strength * length(params, anchors, lead)


# Losses by which sites learn from each other's predictions on shared, unlabelled samples
# ------------------------------------------------------------------------------


def divergence(teacher_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(z)), `[..., B, K] -> [..., B]`; here both sides get gradients."""
    log_teacher, log_student = F.log_softmax(teacher_logits, dim=-1), F.log_softmax(logits, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(-1)


def teacher_weights(scheme: str, n_sites: int, student: int, weights: Tensor | None = None, *, like: Tensor) -> Tensor:
    """a_i of every teacher i for one student, `[S]`; the student's own entry is 0.

    scheme: "uniform" 1/(S-1) (RHFL eq. 3), "own" the student's W_k (eq. 14 as printed), "teacher" W_i
    (release).
    like: a tensor whose type and device the result takes.
    """
    if scheme == "uniform":
        shares = torch.full((n_sites,), 1.0 / max(n_sites - 1, 1), dtype=like.dtype, device=like.device)
    elif scheme in ("own", "teacher"):
        if weights is None:
            raise ConfigError(f"scheme '{scheme}' needs the sites' confidence weights; without them use 'uniform'")
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
