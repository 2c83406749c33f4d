"""The stacked form of functions and tensor methods that networks call between their layers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.local.stacked import layout
from fedsift.local.stacked.operations import Pass, Unstackable, flatten, images_only


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda at, *arguments, **options: function(*arguments, **options)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(at: Pass, left: Any, right: Any) -> Any:
        if isinstance(left, Tensor) and isinstance(right, Tensor) and left.dim() != right.dim():
            raise Unstackable("images and vectors meet in one sum or product")
        return function(left, right)

    return run


def add_in_place(at: Pass, left: Tensor, right: Any) -> Any:
    """left + right in left's memory, unless the sum is larger than left."""
    if isinstance(right, Tensor) and right.shape == left.shape:
        return left.add_(right)
    return FUNCTIONS[torch.add](at, left, right)


def _flatten(at: Pass, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if (start_dim, end_dim) not in ((1, -1), (1, 3)):
        raise Unstackable(f"flatten of axes {start_dim} to {end_dim}")
    return flatten(at, x)


def _reshape(at: Pass, x: Tensor, *shape: Any) -> Tensor:
    """Only the flattening of all but the batch axis, in the ways in which people write it."""
    wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    flat = flatten(at, x)
    if len(wanted) == 2 and wanted[0] in (-1, flat.shape[1]) and wanted[1] in (-1, flat.shape[2]):
        return flat
    raise Unstackable(f"a reshape to {wanted}")


def _size(at: Pass, x: Tensor, axis: int | None = None) -> Any:
    """Sizes as one site sees them."""
    own = (x.shape[1], x.shape[2]) if x.dim() == 3 else (x.shape[0], x.shape[1] // at.sites, *x.shape[2:])
    return own if axis is None else own[axis]


def _shape(at: Pass, x: Tensor, name: str) -> Any:
    if name != "shape":
        raise Unstackable(f"the attribute '{name}' of a tensor")
    return _size(at, x)


def _item(at: Pass, values: Any, index: Any) -> Any:
    if not isinstance(values, tuple) or not isinstance(index, int):
        raise Unstackable("indexing of a tensor")
    return values[index]


def _concatenate(
    at: Pass, tensors: list[Tensor] | tuple[Tensor, ...], dim: int = 0, axis: int | None = None
) -> Tensor:
    along = dim if axis is None else axis
    kinds = {x.dim() for x in tensors}
    if len(kinds) != 1 or along not in ((1, -3) if kinds == {4} else (1, -1)):
        raise Unstackable(f"concatenation along axis {along}")
    if kinds == {3}:
        return torch.cat(list(tensors), dim=-1)
    return layout.images_from_pixels(torch.cat([layout.pixels(x, at.sites) for x in tensors], dim=-1))


def _mean(at: Pass, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    axes = sorted(a % 4 for a in dim) if isinstance(dim, list | tuple) else None
    if x.dim() != 4 or axes != [2, 3]:
        raise Unstackable(f"a mean over axes {dim}")
    pooled = x.mean((2, 3), keepdim=True)
    return pooled if keepdim else flatten(at, pooled)


def _pool(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda at, x, *arguments, **options: function(images_only(x, "pool"), *arguments, **options)


_UNARY: tuple[Callable[..., Tensor], ...] = (
    F.relu, F.relu6, F.gelu, F.silu, F.leaky_relu, F.elu, F.selu, F.mish, F.softplus, F.hardswish,
    F.hardsigmoid, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: _elementwise(function) for function in _UNARY},
    **{
        function: _arithmetic(function)
        for function in (operator.add, operator.iadd, operator.sub, operator.mul, operator.truediv)
    },
    torch.add: _arithmetic(torch.add),
    torch.mul: _arithmetic(torch.mul),
    torch.flatten: _flatten,
    torch.cat: _concatenate,
    torch.mean: _mean,
    torch.reshape: _reshape,
    operator.getitem: _item,
    getattr: _shape,
    F.max_pool2d: _pool(F.max_pool2d),
    F.avg_pool2d: _pool(F.avg_pool2d),
    F.adaptive_avg_pool2d: _pool(F.adaptive_avg_pool2d),
    F.adaptive_max_pool2d: _pool(F.adaptive_max_pool2d),
}

METHODS: dict[str, Callable[..., Any]] = {
    "relu": _elementwise(torch.relu),
    "tanh": _elementwise(torch.tanh),
    "sigmoid": _elementwise(torch.sigmoid),
    "add": _arithmetic(torch.add),
    "mul": _arithmetic(torch.mul),
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "size": _size,
    "mean": _mean,
    "contiguous": lambda at, x: x,
}

READ_BY_SITE: tuple[Callable[..., Any], ...] = (flatten, _flatten, _reshape)
"""Operations that take images however they lie."""
