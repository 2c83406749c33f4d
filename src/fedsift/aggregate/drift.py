"""Corrections of client drift: the update rules of SCAFFOLD and FedDyn, on parameters by name.

Both take the relative size s_k of a site (1 for all in the papers): N_k N / sum N, as FedDyn's release
weighs sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsift.aggregate.weights import shares_of
from fedsift.contract.messages import Weights


def relative_sizes(sizes: Sequence[float] | None, n_sites: int) -> list[float]:
    """s_k = N_k N / sum N of every site; 1 for all without sizes."""
    return [1.0] * n_sites if sizes is None else (shares_of(sizes) * n_sites).tolist()


def _each(rule: Callable[..., Tensor], first: Weights, *others: Weights) -> Weights:
    return {name: rule(tensor, *(other[name] for other in others)) for name, tensor in first.items()}


def scaffold_correction(own: Weights, server: Weights, relative_size: float = 1.0) -> Weights:
    """What a site adds to its gradient: c / s_k - c_k."""
    return _each(lambda c_k, c: c / relative_size - c_k, own, server)


def scaffold_change(server: Weights, start: Weights, end: Weights, steps: float, lr: float) -> Weights:
    """How a site's control variate changes (option II): (w - y) / (steps lr) - c, w its start, y its end."""
    return _each(lambda c, w, y: (w - y) / (steps * lr) - c, server, start, end)


def scaffold_variate(own: Weights, change: Weights) -> Weights:
    """A site's new control variate: c_k + change."""
    return _each(lambda c_k, delta: c_k + delta, own, change)


def scaffold_server_variate(
    server: Weights, changes: Sequence[Weights], relative: Sequence[float], n_sites: int
) -> Weights:
    """c + (1 / N) sum over the round's sites of s_k (c_k+ - c_k); N counts all sites, in the round or not."""
    updated: Weights = {}
    for name, variate in server.items():
        total = torch.zeros_like(variate)
        for size, change in zip(relative, changes, strict=True):
            total += size * change[name]
        updated[name] = variate + total / n_sites
    return updated


def feddyn_anchor(cloud: Weights, memory: Weights) -> Weights:
    """Where a site's proximal term pulls to: w - h_k. With (alpha_k / 2) ||v - (w - h_k)||^2 in its loss, the gradient
    gains alpha_k (v - w + h_k), with alpha_k = alpha / s_k."""
    return _each(lambda h, w: w - h, memory, cloud)


def feddyn_memory(memory: Weights, end: Weights, cloud: Weights) -> Weights:
    """A site's memory after training: h_k + v - w."""
    return _each(lambda h, v, w: h + v - w, memory, end, cloud)


def feddyn_cloud(averaged: Weights, memories: Sequence[Weights], n_sites: int) -> Weights:
    """The model that the next round starts from: average of the round's models + mean of h over all sites.

    memories: of the sites that have one; the others' are 0 and count in `n_sites`.
    """
    cloud: Weights = {}
    for name, tensor in averaged.items():
        total = torch.zeros_like(tensor)
        for memory in memories:
            total += memory[name]
        cloud[name] = tensor + total / n_sites
    return cloud
