"""The stacked form of each kind of layer and function, found by its type.

A builder looks at one layer once, refuses what has no stacked form (`Unstackable`), and returns an operation
that runs it for all active sites. Images are 4-dimensional, vectors 3-dimensional (see `layout`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedsift.models.network import Dropout, dropout_mask
from fedsift.training import native
from fedsift.training.stacked import convolutions as winograd
from fedsift.training.stacked import layout
from fedsift.training.stacked.convolutions import Geometry, convolve_by_products

# Batch norm over the real rows of unequal sites
# ------------------------------------------------------------------------------


def masked_batch_norm(
    x: Tensor,
    present: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch norm in training, each site's statistics from its real rows alone.

    x: `[B, C*ch, H, W]` or `[B, C*F]`; present: `[C, B]`, 1 for real rows; all else: `[C*ch]`. Running statistics are
    updated in place as nn.BatchNorm does (the unbiased variance enters). Rows of padding are scaled like the others;
    they get no gradient.
    """
    images = x if x.dim() == 4 else x[:, :, None, None]
    channels = images.shape[1] // len(present)
    keep = present.t().to(x.dtype).repeat_interleave(channels, dim=1)  # [B, C*ch]
    count = keep.sum(0) * images[0, 0].numel()
    mean, variance = _statistics(images.detach(), keep, count)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), momentum)
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    values: Tensor = _Normalise.apply(images, weight, bias, mean, variance, keep, count, eps)  # type: ignore[no-untyped-call]
    return values if x.dim() == 4 else values[:, :, 0, 0]


def _statistics(images: Tensor, keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every channel over the rows that count, in two passes: `[C*ch]` each.

    Sums run over the pixels of a row first, with the channels side by side as they lie in memory.
    """
    rows, channels, height, width = images.shape
    pixels = images.permute(0, 2, 3, 1).reshape(rows, height * width, channels)
    mean = (keep * pixels.sum(1)).sum(0) / count
    spread = (pixels - mean).square_().sum(1)
    return mean, (keep * spread).sum(0) / count


class _Normalise(torch.autograd.Function):
    """weight * (x - mean) / sqrt(variance + eps) + bias, with mean and variance functions of the rows kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        keep: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance, keep, count)
        ctx.eps = eps
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w s (g - sum g / n - xhat sum(g xhat) / n) on rows that count, where s = 1 / sqrt(variance + eps).

        The first term and both sums are what the norm with fixed statistics gives back; the rest is linear in x.
        """
        x, weight, mean, variance, keep, count = ctx.saved_tensors
        own, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        scale = torch.rsqrt(variance + ctx.eps)
        slope = weight * scale.square() * by_weight / count
        offset = weight * scale * by_bias / count - slope * mean
        along = (*keep.shape, 1, 1)
        own.addcmul_(x, (keep * slope).view(along), value=-1.0)
        own.sub_((keep * offset).view(along))
        return own, by_weight, by_bias, None, None, None, None, None


class Unstackable(Exception):
    """The network, or a layer of it, has no stacked form; one site at a time is the way."""


@dataclass
class ForwardPass:
    """One forward pass over the active sites."""

    sites: int
    train: bool
    state: Mapping[str, Tensor]
    """Parameters and buffers of the active sites by name, `[C, ...]`; linear weights are `[C, in, out]`."""
    present: Tensor | None = None
    """float `[C, B]`, 1 for real rows and 0 for padding; None when every row is real."""
    generators: Sequence[torch.Generator] = ()
    """One for each active site; dropout draws from it."""


Operation: TypeAlias = Callable[[ForwardPass, Tensor], Tensor]
LayerBuilder: TypeAlias = Callable[[Any, str], Operation]

LAYERS: dict[type[nn.Module], LayerBuilder] = {}


def layer(*kinds: type[nn.Module]) -> Callable[[LayerBuilder], LayerBuilder]:
    """Register a builder `(layer, its name) -> operation` for exactly these types."""

    def keep(build: LayerBuilder) -> LayerBuilder:
        LAYERS.update(dict.fromkeys(kinds, build))
        return build

    return keep


def build_layer(module: nn.Module, name: str) -> Operation:
    kind = type(module)
    if kind in ELEMENTWISE:
        return lambda at, x: module(x)
    if kind not in LAYERS:
        raise Unstackable(f"layer '{name}' is a {kind.__name__}, which has no stacked form")
    return LAYERS[kind](module, name)


ELEMENTWISE: frozenset[type[nn.Module]] = frozenset(
    {
        nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU,
        nn.Mish, nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid,
        nn.Identity,
    }
)  # fmt: skip
"""Layers without weights that treat every number alike: they need no stacked form."""


def images_only(x: Tensor, name: str) -> Tensor:
    if x.dim() != 4:
        raise Unstackable(f"layer '{name}' is given something else than images")
    return x


def vectors_only(x: Tensor, name: str) -> Tensor:
    if x.dim() != 3:
        raise Unstackable(f"layer '{name}' is given something else than one vector a sample")
    return x


@layer(nn.Conv2d)
def convolution(conv: nn.Conv2d, name: str) -> Operation:
    return convolve(conv, name, conv.bias is not None)


def convolve(conv: nn.Conv2d, name: str, biased: bool) -> Operation:
    """A convolution with its bias, or without it where a later operation adds it (`with_bias`)."""
    if conv.padding_mode != "zeros":
        raise Unstackable(f"layer '{name}' pads by '{conv.padding_mode}'")
    geometry, padding = Geometry.of(conv), winograd.padding_of(conv)

    def run(at: ForwardPass, x: Tensor) -> Tensor:
        weight = at.state[f"{name}.weight"]
        bias = at.state[f"{name}.bias"].flatten() if biased else None
        if geometry is not None and geometry.suits(images_only(x, name), weight):
            return _plus(convolve_by_products(x, weight, geometry), bias)
        if padding is not None and winograd.suits(images_only(x, name), weight, padding):
            return _plus(winograd.convolve_by_tiles(x, weight, padding), bias)
        return F.conv2d(
            images_only(x, name),
            weight.flatten(0, 1),
            bias,
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups * at.sites,
        )

    return run


def _plus(images: Tensor, bias: Tensor | None) -> Tensor:
    return images if bias is None else images + bias.view(1, -1, 1, 1)


def with_bias(operation: Operation, name: str) -> Operation:
    """An operation that makes new images, then the bias of the layer `name` in their memory."""
    return lambda at, x: operation(at, x).add_(at.state[f"{name}.bias"].view(1, -1, 1, 1))


@layer(nn.Linear)
def linear(_: nn.Linear, name: str) -> Operation:
    def run(at: ForwardPass, x: Tensor) -> Tensor:
        weight, bias = at.state[f"{name}.weight"], at.state.get(f"{name}.bias")
        if bias is None:
            return torch.bmm(vectors_only(x, name), weight)
        return torch.baddbmm(bias.unsqueeze(1), vectors_only(x, name), weight)

    return run


@layer(nn.BatchNorm2d, nn.BatchNorm1d)
def batch_norm(norm: nn.BatchNorm2d | nn.BatchNorm1d, name: str) -> Operation:
    return joined_norm(norm, name, relu=False)


def joined_norm(norm: nn.BatchNorm2d | nn.BatchNorm1d, name: str, relu: bool) -> Callable[..., Tensor]:
    """Batch norm of the first argument, plus the second if there is one, and ReLU if asked for."""
    if norm.momentum is None:
        raise Unstackable(f"layer '{name}' keeps a cumulative average (momentum=None)")
    momentum = float(norm.momentum)
    tracked, affine = norm.track_running_stats, norm.affine

    def run(at: ForwardPass, x: Tensor, other: Tensor | None = None) -> Tensor:
        mean = at.state[f"{name}.running_mean"].flatten() if tracked else None
        variance = at.state[f"{name}.running_var"].flatten() if tracked else None
        weight = at.state[f"{name}.weight"].flatten() if affine else None
        bias = at.state[f"{name}.bias"].flatten() if affine else None
        by_batch = at.train or not tracked
        if at.train and tracked:
            at.state[f"{name}.num_batches_tracked"].add_(1)
        same = other is None or other.shape == x.shape
        if by_batch and at.present is None and same and native.norm_suits(x):
            running = None if mean is None or variance is None else (mean, variance)
            return native.batch_norm(x, running, weight, bias, momentum, norm.eps, other, relu)
        values = layout.columns_from_vectors(x) if x.dim() == 3 else x
        if by_batch and at.present is not None:
            values = masked_batch_norm(values, at.present, mean, variance, weight, bias, momentum, norm.eps)
        else:
            values = F.batch_norm(values, mean, variance, weight, bias, by_batch, momentum, norm.eps)
        values = layout.vectors_from_columns(values, at.sites) if x.dim() == 3 else values
        if other is not None:
            values = values.add_(other) if same else values + other
        return values.relu_() if relu else values

    return run


@layer(nn.GroupNorm)
def group_norm(norm: nn.GroupNorm, name: str) -> Operation:
    affine = norm.affine

    def run(at: ForwardPass, x: Tensor) -> Tensor:
        values = layout.columns_from_vectors(x) if x.dim() == 3 else x
        weight = at.state[f"{name}.weight"].flatten() if affine else None
        bias = at.state[f"{name}.bias"].flatten() if affine else None
        values = F.group_norm(values, norm.num_groups * at.sites, weight, bias, norm.eps)
        return layout.vectors_from_columns(values, at.sites) if x.dim() == 3 else values

    return run


@layer(nn.LayerNorm)
def layer_norm(norm: nn.LayerNorm, name: str) -> Operation:
    if len(norm.normalized_shape) != 1:
        raise Unstackable(f"layer '{name}' normalises over {len(norm.normalized_shape)} axes")

    def run(at: ForwardPass, x: Tensor) -> Tensor:
        values = F.layer_norm(vectors_only(x, name), norm.normalized_shape, eps=norm.eps)
        if f"{name}.weight" in at.state:
            values = values * at.state[f"{name}.weight"].unsqueeze(1)
        if f"{name}.bias" in at.state:
            values = values + at.state[f"{name}.bias"].unsqueeze(1)
        return values

    return run


@layer(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
def pooling(pool: nn.Module, name: str) -> Operation:
    if getattr(pool, "return_indices", False):
        raise Unstackable(f"layer '{name}' returns indices")
    # Pooling works channel by channel, so that a cohort's images are pooled as any others.
    return lambda at, x: pool(images_only(x, name))


@layer(nn.ChannelShuffle)
def channel_shuffle(shuffle: nn.ChannelShuffle, name: str) -> Operation:
    groups = int(shuffle.groups)

    def run(at: ForwardPass, x: Tensor) -> Tensor:
        own = layout.pixels(images_only(x, name), at.sites)
        grouped = own.reshape(*own.shape[:-1], groups, own.shape[-1] // groups)
        return layout.images_from_pixels(grouped.transpose(-1, -2).flatten(-2))

    return run


@layer(nn.Flatten)
def flatten_layer(flat: nn.Flatten, name: str) -> Operation:
    if (flat.start_dim, flat.end_dim) != (1, -1):
        raise Unstackable(f"layer '{name}' flattens axes {flat.start_dim} to {flat.end_dim}")
    return flatten


def flatten(at: ForwardPass, x: Tensor) -> Tensor:
    if x.dim() == 5:
        return x.flatten(2)
    return layout.vectors_from_images(x, at.sites) if x.dim() == 4 else x


@layer(Dropout)
def dropout(drop: Dropout, name: str) -> Operation:
    """Each site draws for its own real rows, as it would alone."""

    def run(at: ForwardPass, x: Tensor) -> Tensor:
        if not at.train or drop.p == 0.0:
            return x
        if len(at.generators) < at.sites:
            raise ValueError("dropout in a cohort needs one generator for each site")
        masks = x.new_zeros(_own_shape(x, at.sites))
        real = torch.ones(masks.shape[:2], dtype=torch.bool) if at.present is None else at.present != 0
        for site, rows in enumerate(real.sum(-1).tolist()):
            drawn = dropout_mask((rows, *masks.shape[2:]), drop.p, at.generators[site])
            masks[site, real[site]] = drawn.to(masks.dtype)
        return x * (layout.images_from_samples(masks) if x.dim() == 4 else masks)

    return run


def _own_shape(x: Tensor, sites: int) -> tuple[int, ...]:
    """`[C, B, ...]` of stacked values."""
    if x.dim() == 3:
        return tuple(x.shape)
    rows, channels, height, width = x.shape
    return sites, rows, channels // sites, height, width
