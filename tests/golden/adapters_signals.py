"""Adapters for signals: mixtures, LID, relabelling, prototypes, selection, credibility, privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from adapters_losses import ALL
from golden_harness import Adapters, NullIsUnchecked

from fedsift.detection import indicators, mixtures
from fedsift.formulas import privacy
from fedsift.formulas.losses import contrastive_cross_entropy
from fedsift.formulas.losses import small_loss as by_small_loss
from fedsift.methods import _forgetting, fedcorr, fedmlp, fednoro, rhfl
from fedsift.methods import power_of_choice as power_of_choice_module
from fedsift.methods.fedcorr import score_sites

ADAPTERS = Adapters()
Inputs = dict[str, Any]


def table(rows: list[list[float | None]]) -> np.ndarray:
    """Nulls to NaN."""
    return np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=np.float64)


def nulls(values: np.ndarray) -> Any:
    """NaN to null."""
    if values.ndim == 0:
        return None if math.isnan(values) else float(values)
    return [nulls(np.asarray(v)) for v in values]


@ADAPTERS.add("fedcorr_lid", "lid", "paper", "official", "guarded")
def lid(i: Inputs, variant: str) -> dict[str, Any]:
    points = np.array(i["points"], dtype=np.float64)
    return {
        "per_sample": indicators.lid(points, i["k"], variant, i["eps"]),
        "client_score": indicators.site_lid(points, i["k"], variant, i["eps"]),
    }


@ADAPTERS.add("fedcorr_gmm_split", "split_values", "paper", "official", "both", "guarded")
def split_values(i: Inputs, variant: str) -> dict[str, Any]:
    split = mixtures.split_values(i["values"])
    return {"noisy": split.noisy, "noisy_fraction": split.fraction}


@ADAPTERS.add("fedcorr_gmm_split", "cumulative_lid", "paper", "official", "both", "guarded")
def cumulative_lid(i: Inputs, variant: str) -> dict[str, Any]:
    rounds = np.array(i["lid_rounds"], dtype=np.float64)
    cumulative = [score_sites(rounds[: t + 1], "cumulative") for t in range(len(rounds))]
    return {
        "cumulative": cumulative,
        "noisy_per_round": [mixtures.split_values(row).noisy for row in cumulative],
    }


@ADAPTERS.add("fedcorr_gmm_split", "clean_set", "paper", "official", "both", "guarded", "paper_algorithm")
def clean_set(i: Inputs, variant: str) -> dict[str, Any]:
    strict = variant == "paper_algorithm"
    clean, remaining = fedcorr.clean_set(i["mu_hat"], i["kappa"], strict=strict, fallback=i["fallback"])
    return {"clean": clean, "remaining": remaining}


@ADAPTERS.add("fedcorr_gmm_split", "relabel_clients", "paper", "official")
def relabel_clients(i: Inputs, variant: str) -> dict[str, Any]:
    return {"relabel": fedcorr.relabel_sites(i["mu_hat"], i["kappa"], i["gmm_noisy"], variant)}


@ADAPTERS.add("fedcorr_relabel", "relabel", "paper", "official")
def relabel(i: Inputs, variant: str) -> dict[str, Any]:
    done = fedcorr.relabel(i["labels"], i["losses"], i["noisy"], i["probs"], i["ratio"], i["theta"], variant)
    return {
        "count": len(done.candidates),
        "candidates": done.candidates,
        "relabelled": done.relabelled,
        "new_labels": done.labels,
        "changed": done.changed,
    }


@ADAPTERS.add("fedcorr_relabel", "relabel_all", "paper", "official")
def relabel_all(i: Inputs, variant: str) -> dict[str, Any]:
    done = fedcorr.relabel_all(i["labels"], i["probs"], i["theta"], variant)
    return {"relabelled": done.relabelled, "new_labels": done.labels, "changed": done.changed}


@ADAPTERS.add("fednoro_rampup", "rampup", *ALL)
def rampup(i: Inputs, variant: str) -> dict[str, Any]:
    return {"lambda": [fednoro.rampup(t, i["begin"], i["end"], i["maximum"]) for t in i["rounds"]]}


@ADAPTERS.add("fednoro_indicator", "per_class_mean", *ALL)
def per_class_mean(i: Inputs, variant: str) -> dict[str, Any]:
    losses, labels, clients = (np.array(i[name]) for name in ("losses", "labels", "clients"))
    rows = []
    for client in range(i["n_clients"]):
        own = clients == client
        rows.append(nulls(indicators.per_class_mean(losses[own], labels[own], i["n_classes"])))
    return {"table": rows}


@ADAPTERS.add("fednoro_indicator", "normalise", *ALL)
def normalise(i: Inputs, variant: str) -> dict[str, Any]:
    done = indicators.normalise(table(i["table"]))
    return {"filled": nulls(done.filled), "normalised": done.values, "informative": done.informative}


@ADAPTERS.add("fednoro_client_split", "split_matrix", *ALL)
def split_matrix(i: Inputs, variant: str) -> dict[str, Any]:
    return {"noisy": mixtures.split_by_vote(i["matrix"], rule=i["rule"]).noisy}


@ADAPTERS.add("fednoro_client_split", "noisy_component", *ALL)
def noisy_component(i: Inputs, variant: str) -> dict[str, Any]:
    return {"component": mixtures.noisy_component(i["means"], i["rule"])}


@ADAPTERS.add("fednoro_client_split", "vote", *ALL)
def vote(i: Inputs, variant: str) -> dict[str, Any]:
    noisy, votes = mixtures.vote(i["sets"])
    return {"noisy": noisy, "votes": votes}


@ADAPTERS.add("rhfl_ccr", "ccr", *ALL)
def ccr(i: Inputs, variant: str) -> dict[str, Any]:
    rounds, previous = [], None
    for losses in i["losses"]:
        now = rhfl.credibility(losses, previous, i["eta"], i["mode"])
        rounds.append({"Q": now.quality, "P": now.drop, "F": now.confidence, "w": now.raw, "W": now.weights})
        previous = losses
    return {"rounds": rounds}


def as_dict(found: fedmlp.Prototypes, classes: Any) -> dict[str, Any]:
    return {str(c): [found.get(c, 0), found.get(c, 1)] for c in classes}


@ADAPTERS.add("fedmlp_prototypes", "local", *ALL)
def local_prototypes(i: Inputs, variant: str) -> dict[str, Any]:
    found = fedmlp.local_prototypes(i["features"], i["labels"], i["active"])
    return {"prototypes": as_dict(found, i["active"])}


@ADAPTERS.add("fedmlp_prototypes", "global", *ALL)
def global_prototypes(i: Inputs, variant: str) -> dict[str, Any]:
    n, sides = (
        i["n_classes"],
        [v for one in i["local"] for pair in one.values() for v in pair if v is not None],
    )
    width = len(sides[0]) if sides else 0
    local = []
    for client in i["local"]:
        vectors, held = np.zeros((n, 2, width)), np.zeros((n, 2), dtype=np.bool_)
        for name, pair in client.items():
            for side, vector in enumerate(pair):
                if vector is not None:
                    vectors[int(name), side], held[int(name), side] = vector, True
        local.append(fedmlp.Prototypes(vectors, held))
    found = fedmlp.global_prototypes(local, i["sizes"], i["weighting"])
    return {"prototypes": as_dict(found, range(n))}


@ADAPTERS.add("fedmlp_selection", "difficulty", *ALL)
def difficulty(i: Inputs, variant: str) -> dict[str, Any]:
    local = np.stack([fedmlp.local_difficulty(p, i["low"], i["high"]) for p in i["probs"]])
    active = np.zeros(local.shape, dtype=np.bool_)
    for client, classes in enumerate(i["active_sets"]):
        active[client, classes] = True
    sizes = [len(p) for p in i["probs"]]
    return {"local": local, "global": fedmlp.global_difficulty(local, sizes, active, i["over"])}


@ADAPTERS.add("fedmlp_selection", "rounds", *ALL)
def rounds(i: Inputs, variant: str) -> dict[str, Any]:
    tags = np.full(len(i["features_per_round"][0]), fedmlp.UNTAGGED)
    done = []
    for features, p0, p1, d in zip(
        i["features_per_round"], i["p0_per_round"], i["p1_per_round"], i["difficulty_per_round"]
    ):
        now = fedmlp.tag(features, p0, p1, tags, d, i["t0"], i["t1"], i["min_select"])
        tags = now.tags
        done.append(
            {
                "z": nulls(now.score),
                "n_ge0": now.leaning_negative,
                "n_lt0": now.leaning_positive,
                "n0": len(now.negative),
                "n1": len(now.positive),
                "pick0": now.negative,
                "pick1": now.positive,
                "tagged": {str(k): tags[k] for k in np.flatnonzero(tags != fedmlp.UNTAGGED)},
            }
        )
    return {"rounds": done}


@ADAPTERS.add("feddpcont_matrix", "matrix", *ALL)
def matrix(i: Inputs, variant: str) -> dict[str, Any]:
    epsilon, n = i["epsilon"], i["n_classes"]
    keep, other = privacy.response_probabilities(epsilon, n)
    t = np.where(np.eye(n, dtype=np.bool_), keep, other)
    # undoing the response of one label is a column of the inverse
    columns = [privacy.posterior(unit, epsilon).raw for unit in np.eye(n)]
    with np.errstate(divide="ignore", over="ignore"):
        ratio = float((t.max(axis=0) / t.min(axis=0)).max())
    return {
        "T": t,
        "inverse_transpose": None if columns[0] is None else np.stack(columns, axis=1),
        "diagonal": keep,
        "max_likelihood_ratio": NullIsUnchecked(ratio),
    }


@ADAPTERS.add("feddpcont_matrix", "diagonal", *ALL)
def diagonal(i: Inputs, variant: str) -> dict[str, Any]:
    pairs = [privacy.response_probabilities(e, k) for e, k in zip(i["epsilon"], i["n_classes"])]
    return {"diagonal": [keep for keep, _ in pairs], "off_diagonal": [other for _, other in pairs]}


@ADAPTERS.add("feddpcont_posterior", "posterior", *ALL)
def posterior(i: Inputs, variant: str) -> dict[str, Any]:
    found = privacy.posterior(i["counts"], i["epsilon"])
    return {
        "p_released": found.released,
        "raw": found.raw,
        "clipped": found.clipped,
        "projected": found.projected,
    }


@ADAPTERS.add("feddpcont_loss", "client_balance", *ALL)
def client_balance(i: Inputs, variant: str) -> dict[str, Any]:
    """The mean push of the logits is minus the gradient of the loss, at zero logits and with beta = 1."""
    counts = np.array(i["client_label_counts"], dtype=np.float64)
    sizes = counts.sum(axis=1)
    q = counts.sum(axis=0) / sizes.sum()
    push = np.stack([mean_push(own, q) for own in counts])
    return {
        "q": q,
        "per_client_push": push,
        "weighted_push": (sizes / sizes.sum()) @ push,
        "per_client_push_with_local_q": [mean_push(own, own / own.sum()) for own in counts],
    }


def mean_push(counts: np.ndarray, q: np.ndarray) -> np.ndarray:
    """`[K]`: a step against the gradient of the mean contrastive loss over a site's labels."""
    z = torch.zeros(len(counts), dtype=torch.float64, requires_grad=True)
    own = torch.eye(len(counts), dtype=torch.float64)
    losses = contrastive_cross_entropy(z.expand(len(counts), -1), own, torch.from_numpy(q), eps=0.0)
    (torch.from_numpy(counts / counts.sum()) @ losses).backward()
    assert z.grad is not None
    return -z.grad.numpy()


@ADAPTERS.add("baseline_losses", "small_loss", *ALL)
def small_loss(i: Inputs, variant: str) -> dict[str, Any]:
    values = torch.tensor(i["losses"], dtype=torch.float64)
    kept = by_small_loss(values, torch.tensor(i["rate"], dtype=torch.float64), torch.ones_like(values))
    chosen = torch.nonzero(kept).flatten()
    return {"selected": chosen[values[chosen].argsort(stable=True)].tolist()}


@ADAPTERS.add("baseline_losses", "forget_rate", "paper", "official")
def forget_rate(i: Inputs, variant: str) -> dict[str, Any]:
    return {"forget_rate": [_forgetting.forget_rate(t, i["rate"], i["warm"], variant) for t in i["t"]]}


@ADAPTERS.add("baseline_losses", "power_of_choice", *ALL)
def power_of_choice(i: Inputs, variant: str) -> dict[str, Any]:
    return {"selected": power_of_choice_module.power_of_choice(i["candidates"], i["losses"], i["m"])}
