"""Adapters for loss formulas: the product's functions in float64, gradients by autograd."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from golden_harness import Adapters
from torch import Tensor
from torch.nn.functional import one_hot

from fedsift.formulas import losses
from fedsift.training.recipe import Recipe
from fedsift.training.trainer import make_optimiser

ADAPTERS = Adapters()
Inputs = dict[str, Any]
ALL = ("paper", "official", "both", "guarded", "alternative", "corrected", "paper_algorithm", "derived")
"""For operations that the inputs describe completely: the variant only says where the setting comes from."""


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def leaf(values: Any) -> Tensor:
    return tensor(values).requires_grad_()


def hot(labels: list[int], like: Tensor) -> Tensor:
    return one_hot(torch.tensor(labels), like.shape[-1]).to(like.dtype)


def mask_of(indices: list[int], n: int) -> Tensor:
    mask = torch.zeros(n, dtype=torch.float64)
    mask[indices] = 1.0
    return mask


def gradient(value: Tensor, *wrt: Tensor) -> list[Tensor]:
    if not value.requires_grad:  # a term that is left out
        return [torch.zeros_like(tensor) for tensor in wrt]
    grads = torch.autograd.grad(value, wrt, allow_unused=True, materialize_grads=True)
    return list(grads)


@ADAPTERS.add("fedcorr_sample_loss", "sample_loss", "paper", "official")
def sample_loss(i: Inputs, variant: str) -> dict[str, Any]:
    z = tensor(i["logits"])
    kind = {"paper": "ce", "official": "ce_on_softmax"}[variant]
    upper = math.log(math.e + z.shape[-1] - 1)  # bounds of a cross-entropy that is fed with probabilities
    per_sample = losses.sample_loss(z, hot(i["labels"], z), kind)
    return {"per_sample": per_sample, "lower_bound": upper - 1, "upper_bound": upper}


@ADAPTERS.add("fedcorr_prox", "prox", *ALL)
def fedcorr_prox(i: Inputs, variant: str) -> dict[str, Any]:
    w, anchors = [leaf(v) for v in i["w"]], [tensor(v) for v in i["w_global"]]
    skip = i["power"] == 1 and i["batch_index"] == 0
    value = losses.proximal(w, anchors, i["beta"] * i["mu_hat"], power=i["power"], skip=skip)
    return {"value": value, "grad": gradient(value, *w)}


@ADAPTERS.add("mixup", "mixup", *ALL)
def mixup(i: Inputs, variant: str) -> dict[str, Any]:
    z, share, order = leaf(i["logits"]), i["lambda"], torch.tensor(i["permutation"])
    own = one_hot(torch.tensor(i["labels"]), i["n_classes"]).double()
    mixed_x, mixed_targets = losses.mixup(tensor(i["x"]), own, order, share)
    both = losses.cross_entropy(z, own), losses.cross_entropy(z, own[order])
    two_terms = losses.blend(*both, share).mean()
    soft = losses.cross_entropy(z, mixed_targets).mean()
    return {
        "mixed_x": mixed_x,
        "mixed_targets": mixed_targets,
        "loss": two_terms,
        "loss_soft_target": soft,
        "grad_logits": gradient(soft, z)[0],
    }


@ADAPTERS.add("logit_adjustment", "la_ce", *ALL)
def la_ce(i: Inputs, variant: str) -> dict[str, Any]:
    z = leaf(i["logits"])
    prior = losses.log_prior(tensor(i["counts"]))
    adjusted = losses.adjusted_logits(z, prior, i["tau"])
    per_sample = losses.cross_entropy(adjusted, hot(i["labels"], z))
    return {
        "log_prior": prior,
        "prob": adjusted.softmax(-1),
        "per_sample": per_sample,
        "mean": per_sample.mean(),
        "grad_logits": gradient(per_sample.mean(), z)[0],
    }


@ADAPTERS.add("fednoro_kd_loss", "kd", "paper", "official", "both", "guarded", "alternative")
def kd(i: Inputs, variant: str) -> dict[str, Any]:
    z, teacher, share = leaf(i["logits"]), tensor(i["teacher_logits"]), i["lambda"]
    prior = losses.log_prior(tensor(i["counts"]))
    absent = i["absent"] or "masked"
    present = torch.isfinite(prior) if absent == "renormalise" else None
    kl = losses.distillation(z, teacher, prior, i["temperature"], absent).mean()
    ce = losses.cross_entropy(losses.adjusted_logits(z, prior), hot(i["labels"], z)).mean()
    loss = share * kl + (1 - share) * ce
    q = losses.teacher_log_probabilities(teacher, i["temperature"], present).exp()
    return {"q": q, "ce": ce, "kl": kl, "loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("rhfl_sce", "sce", *ALL)
def sce(i: Inputs, variant: str) -> dict[str, Any]:
    z = leaf(i["logits"])
    target = hot(i["labels"], z)
    loss = losses.symmetric_cross_entropy(z, target, i["alpha"], i["beta"], i["log0"], i["clamp"]).mean()
    return {
        "ce": losses.cross_entropy(z, target).mean(),
        "rce": losses.reverse_cross_entropy(z, target, i["log0"], i["clamp"]).mean(),
        "loss": loss,
        "grad_logits": gradient(loss, z)[0],
    }


@ADAPTERS.add("rhfl_kl", "kl_matrix", *ALL)
def kl_matrix(i: Inputs, variant: str) -> dict[str, Any]:
    z = tensor(i["logits"])
    return {"kl": losses.divergence(z.unsqueeze(1), z.unsqueeze(0)).mean(-1)}


@ADAPTERS.add("rhfl_kl", "collaborative", *ALL)
def collaborative(i: Inputs, variant: str) -> dict[str, Any]:
    teachers, student = tensor(i["logits"]), i["student"]
    z = teachers[student].clone().requires_grad_()
    weights = None if i["weights"] is None else tensor(i["weights"])
    shares = losses.teacher_weights(i["scheme"], len(teachers), student, weights, like=teachers)
    p = teachers.softmax(-1)
    # what trains is the cross-entropy with the teachers' mixture; their entropies are the constant between it and KL
    constant = shares @ torch.special.entr(p).sum(-1)
    loss = (losses.mixture_loss(z, losses.teacher_mixture(p, shares)) - constant).mean()
    return {"loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("rhfl_kl", "fresh_adam_step", *ALL)
def fresh_adam_step(i: Inputs, variant: str) -> dict[str, Any]:
    w = torch.zeros_like(tensor(i["grad"])).requires_grad_()
    w.grad = tensor(i["grad"])
    optimiser = make_optimiser([w], Recipe(optimiser="adam", lr=i["lr"]))
    for group in optimiser.param_groups:
        group["eps"] = i["adam_eps"]
    optimiser.step()
    return {"delta": w}


@ADAPTERS.add("fedmlp_wpc", "la", "paper", "both", "guarded")
def multilabel_la(i: Inputs, variant: str) -> dict[str, Any]:
    clamp = variant == "guarded"
    n_pos = tensor(i["n_pos"])
    shift = losses.multilabel_logit_shift(n_pos, i["n"], clamp)
    return {
        "prior": losses.class_prior(n_pos, i["n"], clamp),
        "logit_shift": shift,
        "adjusted_prob": torch.sigmoid(tensor(i["logits"]) + shift),
    }


NORMS: dict[str, Literal["classes", "known"]] = {"classes": "classes", "active": "known"}


@ADAPTERS.add("fedmlp_wpc", "wpc", *ALL)
def wpc(i: Inputs, variant: str) -> dict[str, Any]:
    z, target = leaf(i["logits"]), tensor(i["labels"])
    active = mask_of(i["active"], z.shape[-1])
    shift = None if i["n_pos"] is None else losses.multilabel_logit_shift(tensor(i["n_pos"]), i["n"])
    batch = i["nominal_batch"] or len(z)
    loss = losses.partial_class(z, target, active, shift, NORMS[i["norm"]]) * len(z) / batch
    return {"loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("fedmlp_consistency", "stage2", *ALL)
def stage2(i: Inputs, variant: str) -> dict[str, Any]:
    z = leaf(i["logits"])
    shift = None if i["prior"] is None else losses.shift_of_prior(tensor(i["prior"]))
    parts = losses.consistency(z, tensor(i["labels"]), tensor(i["global_logits"]), tensor(i["mask"]), shift, i["norm"])
    return {
        "bce_sum": parts.hard_sum,
        "se_sum": parts.soft_sum,
        "n_hard": parts.n_hard,
        "n_soft": parts.n_soft,
        "loss": parts.loss,
        "grad_logits": gradient(parts.loss, z)[0],
    }


@ADAPTERS.add("fedmlp_consistency", "stage1", *ALL)
def stage1(i: Inputs, variant: str) -> dict[str, Any]:
    views = [leaf(i["logits_view1"]), leaf(i["logits_view2"])]
    frozen = [tensor(i["global_view1"]), tensor(i["global_view2"])]
    target = tensor(i["labels"])
    active = mask_of(i["active"], target.shape[-1])
    batch = i["nominal_batch"] or len(target)
    halves = 2 * batch
    supervised = sum(losses.partial_class(z, target, active, norm="known") * len(z) for z in views) / halves
    consistency = sum(losses.missing_class(z, g, active).sum() for z, g in zip(views, frozen)) / halves
    loss = supervised + consistency
    grads = gradient(loss, *views)
    return {
        "supervised": supervised,
        "consistency": consistency,
        "loss": loss,
        "grad_view1": grads[0],
        "grad_view2": grads[1],
    }


def contrastive(i: Inputs, z: Tensor, contrast: Tensor) -> dict[str, Any]:
    target = hot(i["labels"], z)
    per_sample = losses.contrastive_cross_entropy(z, target, contrast, i["beta"], i["contrast_eps"])
    loss = per_sample.mean()
    return {"per_sample": per_sample, "loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("feddpcont_loss", "sampled", *ALL)
def sampled(i: Inputs, variant: str) -> dict[str, Any]:
    z = leaf(i["logits"])
    return contrastive(i, z, hot(i["contrast_labels"], z))


@ADAPTERS.add("feddpcont_loss", "expectation", *ALL)
def expectation(i: Inputs, variant: str) -> dict[str, Any]:
    return contrastive(i, leaf(i["logits"]), tensor(i["q"]))


@ADAPTERS.add("fedprox", "term", *ALL)
def fedprox_term(i: Inputs, variant: str) -> dict[str, Any]:
    w, anchors = [leaf(v) for v in i["w"]], [tensor(v) for v in i["w_global"]]
    value = losses.proximal(w, anchors, i["mu"] / 2)
    return {"value": value, "grad": gradient(value, *w)}


@ADAPTERS.add("fedprox", "local_steps", *ALL)
def fedprox_local_steps(i: Inputs, variant: str) -> dict[str, Any]:
    a, b, anchor = tensor(i["A"]), tensor(i["b"]), tensor(i["w_global"])
    w, path = anchor.clone(), []
    for _ in range(i["steps"]):
        w = w.detach().requires_grad_()
        loss = w @ a @ w / 2 - b @ w + losses.proximal([w], [anchor], i["mu"] / 2)
        w = w - i["lr"] * gradient(loss, w)[0]
        path.append(w.detach())
    return {"path": path}


@ADAPTERS.add("baseline_losses", "forward_correction", *ALL)
def forward_correction(i: Inputs, variant: str) -> dict[str, Any]:
    z = leaf(i["logits"])
    loss = losses.forward_correction(z, hot(i["labels"], z), tensor(i["T"]), floor=0.0).mean()
    return {"loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("baseline_losses", "fedmd", *ALL)
def fedmd(i: Inputs, variant: str) -> dict[str, Any]:
    everyone = tensor(i["logits"])
    z, consensus = everyone[i["student"]].clone().requires_grad_(), losses.mean_scores(everyone)
    loss = losses.score_distance(z, consensus).mean()
    return {"consensus": consensus, "loss": loss, "grad_logits": gradient(loss, z)[0]}


@ADAPTERS.add("baseline_losses", "feddf", *ALL)
def feddf(i: Inputs, variant: str) -> dict[str, Any]:
    everyone = tensor(i["logits"])
    z = everyone[i["student"]].clone().requires_grad_()
    loss = losses.ensemble_distillation(z, losses.mean_scores(everyone)).mean()
    return {"loss": loss, "grad_logits": gradient(loss, z)[0]}
