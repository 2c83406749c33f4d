"""Adapters for aggregation: averages, distance-aware, robust, residual-based, SCAFFOLD and FedDyn."""

from __future__ import annotations

from typing import Any

import torch
from adapters_losses import ALL, gradient, tensor
from golden_harness import Adapters
from torch import Tensor

from fedsift.formulas import aggregation
from fedsift.formulas.losses import inner_product, proximal
from fedsift.methods import arfl as arfl_module
from fedsift.methods import feddyn as feddyn_module
from fedsift.methods import fednoro
from fedsift.methods import scaffold as scaffold_module
from fedsift.protocol.messages import Weights

ADAPTERS = Adapters()
Inputs = dict[str, Any]


def model(values: dict[str, Any]) -> Weights:
    return {name: tensor(value) for name, value in values.items()}


def whole(value: Any) -> bool:
    """Whether a nested list holds integers only."""
    return all(whole(entry) for entry in value) if isinstance(value, list) else isinstance(value, int)


def buffers(values: dict[str, Any]) -> Weights:
    return {name: torch.tensor(v) if whole(v) else tensor(v) for name, v in values.items()}


@ADAPTERS.add("fedavg_weights", "fedavg", *ALL)
def fedavg(i: Inputs, variant: str) -> dict[str, Any]:
    integers = [buffers(b) for b in i.get("integer_buffers") or [{} for _ in i["models"]]]
    models = [model(m) | b for m, b in zip(i["models"], integers)]
    averaged, shares = aggregation.average(models, i["sizes"]), aggregation.shares_of(i["sizes"])
    assert list(averaged) == list(models[0])
    assert all(averaged[name].dtype == models[0][name].dtype for name in averaged)
    return {
        "weights": shares,
        "averaged": averaged,
        "integer_buffers": {
            "max": {name: averaged[name] for name in integers[0]},
            # of the three rules that are right, the product has the first; the other two are the vectors' own
            "first": integers[0],
            "truncated_mean": {
                name: torch.floor(sum(s * b[name] for s, b in zip(shares, integers)) + 1e-9).long()
                for name in integers[0]
            },
        },
    }


@ADAPTERS.add("fedavg_weights", "server_step", "corrected", "both")  # "paper" prints the opposite sign
def server_step(i: Inputs, variant: str) -> dict[str, Any]:
    models = [model(m) for m in i["models"]]
    return {"w_new": aggregation.server_step(model(i["w_global"]), models, i["sizes"], i["server_lr"])}


@ADAPTERS.add("fednoro_daagg", "daagg", *ALL)
def daagg(i: Inputs, variant: str) -> dict[str, Any]:
    models = [model(m["params"]) | buffers(m.get("buffers") or {}) for m in i["models"]]
    done = fednoro.distance_aware(
        models,
        i["sizes"],
        i["clean"],
        distance=i["distance"],
        include_buffers=i["include_buffers"],
        buffers=set(i["models"][0].get("buffers") or {}),
    )
    return {"d": done.distance, "D": done.scaled, "weights": done.shares, "aggregated": done.weights}


@ADAPTERS.add("robust_aggregation", "median", *ALL)
def median(i: Inputs, variant: str) -> dict[str, Any]:
    return {"aggregated": aggregation.coordinate_median([model(m) for m in i["models"]])}


@ADAPTERS.add("robust_aggregation", "trimmed_mean", *ALL)
def trimmed_mean(i: Inputs, variant: str) -> dict[str, Any]:
    return {"aggregated": aggregation.trimmed_mean([model(m) for m in i["models"]], i["alpha"])}


@ADAPTERS.add("arfl_weights", "arfl", *ALL)
def arfl(i: Inputs, variant: str) -> dict[str, Any]:
    models = [model(m) for m in i["models"]]
    done = arfl_module.residual_average(models, i["lambda"], i["delta"])
    names = list(models[0])
    return {
        "score": done.score,
        "weights": done.shares,
        "restricted": [aggregation.unflatten(row, models[0], names) for row in done.restricted],
        "aggregated": done.weights,
    }


def quadratic_gradient(client: dict[str, Any], w: Tensor) -> Tensor:
    return tensor(client["A"]) @ w - tensor(client["b"])


@ADAPTERS.add("feddyn_scaffold", "scaffold", *ALL)
def scaffold(i: Inputs, variant: str) -> dict[str, Any]:
    clients, n = i["clients"], len(i["clients"])
    relative = aggregation.relative_sizes(i["sizes"], n)
    w = {"w": tensor(i["w"])}
    zero = {"w": torch.zeros_like(w["w"])}
    server, own, rounds = zero, [zero] * n, []
    for selected in i["selected_per_round"]:
        ends, changes = [], []
        for k in selected:
            y = w["w"].clone()
            correction = scaffold_module.scaffold_correction(own[k], server, relative[k])["w"]
            for _ in range(i["steps"]):
                y = y.detach().requires_grad_()
                [extra] = gradient(inner_product([y], [correction]), y)
                y = y - i["lr"] * (quadratic_gradient(clients[k], y) + extra)
            ends.append({"w": y.detach()})
            changes.append(scaffold_module.scaffold_change(server, w, ends[-1], i["steps"], i["lr"]))
            own[k] = scaffold_module.scaffold_variate(own[k], changes[-1])
        sizes = [relative[k] for k in selected]
        server = scaffold_module.scaffold_server_variate(server, changes, sizes, n)
        w = aggregation.server_step(w, ends, server_lr=i["server_lr"])
        rounds.append(
            {
                "client_models": [end["w"] for end in ends],
                "client_variates": [variate["w"] for variate in own],
                "server_variate": server["w"],
                "server_model": w["w"],
            }
        )
    return {"rounds": rounds}


@ADAPTERS.add("feddyn_scaffold", "feddyn", *ALL)
def feddyn(i: Inputs, variant: str) -> dict[str, Any]:
    clients, n = i["clients"], len(i["clients"])
    relative = aggregation.relative_sizes(i["sizes"], n)
    cloud = {"w": tensor(i["w"])}
    memory: list[Weights] = [{"w": torch.zeros_like(cloud["w"])} for _ in clients]
    rounds = []
    for selected in i["selected_per_round"]:
        ends = []
        for k in selected:
            v = {"w": cloud["w"].clone()}
            for _ in range(i["steps"]):
                w = v["w"].detach().requires_grad_()
                anchor = feddyn_module.feddyn_anchor(cloud, memory[k])["w"]
                [extra] = gradient(proximal([w], [anchor], i["alpha"] / relative[k] / 2), w)
                v = {"w": v["w"] - i["lr"] * (quadratic_gradient(clients[k], v["w"]) + extra)}
            ends.append(v)
        for k, end in zip(selected, ends):
            memory[k] = feddyn_module.feddyn_memory(memory[k], end, cloud)
        averaged = aggregation.average(ends)
        cloud = feddyn_module.feddyn_cloud(averaged, memory, n)
        rounds.append(
            {
                "client_models": [end["w"] for end in ends],
                "h": [h["w"] for h in memory],
                "average_model": averaged["w"],
                "cloud_model": cloud["w"],
            }
        )
    return {"rounds": rounds}
