"""What all aggregators share: shares from sizes, checks that models fit together, and flat views of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsift.contract.errors import DataError
from fedsift.contract.messages import Weights


def shares_of(sizes: Sequence[float] | Tensor) -> Tensor:
    """N_k / sum N as float64 `[C]` (FedNoRo eq. 2)."""
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    if counts.numel() == 0:
        raise DataError("nothing to aggregate: no site's reply was accepted")
    if not bool(torch.isfinite(counts).all()) or bool((counts < 0).any()):
        raise DataError(f"sizes {counts.tolist()} cannot weigh models: they must be finite and not negative")
    total = counts.sum()
    if total <= 0:
        raise DataError("all sites to aggregate have size 0: at least one must hold a sample")
    return counts / total


def check_alike(models: Sequence[Weights]) -> None:
    """Refuse models whose names, shapes or types differ."""
    if not models:
        raise DataError("nothing to aggregate: no site's reply was accepted")
    first = models[0]
    for position, model in enumerate(models[1:], start=1):
        if model.keys() != first.keys():
            odd = sorted(set(model) ^ set(first))
            raise DataError(f"model {position} does not fit model 0: tensors {odd} are in one of them only")
        for name, tensor in model.items():
            if tensor.shape != first[name].shape or tensor.dtype != first[name].dtype:
                raise DataError(
                    f"model {position} does not fit model 0: '{name}' is "
                    f"{tensor.dtype} {tuple(tensor.shape)}, "
                    f"there it is {first[name].dtype} {tuple(first[name].shape)}"
                )


def merge_integers(tensors: Sequence[Tensor]) -> Tensor:
    """One integer buffer of all models (a count of batches seen), its type kept: the largest."""
    return torch.stack(list(tensors)).amax(0)


def combine(models: Sequence[Weights], merge: Callable[[list[Tensor]], Tensor]) -> Weights:
    """Apply `merge` to every floating tensor and take the largest of integers; order and types are kept."""
    merged: Weights = {}
    for name, first in models[0].items():
        tensors = [model[name] for model in models]
        if first.is_floating_point():
            merged[name] = merge(tensors).to(first.dtype)
        else:
            merged[name] = merge_integers(tensors)
    return merged


def flatten(models: Sequence[Weights], names: Sequence[str]) -> Tensor:
    """The named tensors of all models as one matrix `[C, P]`."""
    return torch.stack([torch.cat([model[name].reshape(-1) for name in names]) for model in models])


def unflatten(vector: Tensor, like: Weights, names: Sequence[str]) -> Weights:
    """The reverse of `flatten` for one row: names, shapes and types as in `like`."""
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.reshape(like[name].shape).to(like[name].dtype) for name, part in zip(names, parts)}
