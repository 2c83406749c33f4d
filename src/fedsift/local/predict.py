"""Forward passes without training: logits over a site's samples, in batches, in inference mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsift.contract.messages import Weights
from fedsift.local import augment as augmentation
from fedsift.local.recipe import Augment
from fedsift.local.site import Samples, Site
from fedsift.models.network import require_features

BATCH = 100
"""Larger batches fall out of the processor's cache and are slower."""


def logits_of(
    network: nn.Module,
    samples: Samples,
    *,
    augment: Augment | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Logits of every sample in order, `[n, K]`, on the CPU."""
    return _map(network, lambda images: (network(images),), samples, augment, generator)[0]


def features_of(
    network: nn.Module,
    samples: Samples,
    *,
    augment: Augment | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Features `[n, F]` and logits `[n, K]` of every sample in order, on the CPU."""
    require_features(network, "a method that reads features")

    def both(images: Tensor) -> tuple[Tensor, ...]:
        features = network.features(images)  # type: ignore[operator]
        return features, network.head(features)  # type: ignore[operator]

    features, logits = _map(network, both, samples, augment, generator)
    return features, logits


def _map(
    network: nn.Module,
    compute: Callable[[Tensor], tuple[Tensor, ...]],
    samples: Samples,
    augment: Augment | None,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """What `compute` makes of all samples, in batches and in inference mode."""
    device = next(network.parameters()).device
    network.eval()
    n = len(samples)
    draws = None
    if augment is not None and augment.active:
        assert generator is not None
        draws = augmentation.draw(augment, n, generator)
    parts: list[tuple[Tensor, ...]] = []
    with torch.inference_mode():
        for start in range(0, n, BATCH):
            stop = min(start + BATCH, n)
            images = _channels_last(samples, start, stop).to(device)
            if draws is not None and augment is not None:
                images = augmentation.apply(images, augment, draws.part(start, stop))
            parts.append(tuple(output.cpu() for output in compute(images)))
    # a copy outside inference mode: callers may use it in ordinary autograd code
    return [torch.cat(column).clone() for column in zip(*parts)] if parts else [torch.empty(0, 0)] * 2


def _channels_last(samples: Samples, start: int, stop: int) -> Tensor:
    """Normalised samples; images in the memory order in which convolutions are fastest, turned while still bytes."""
    raw = samples.pool.index_select(0, samples.rows[start:stop])
    return samples.normalise(raw.contiguous(memory_format=torch.channels_last) if raw.dim() == 4 else raw)


def site_logits(site: Site, weights: Weights, *, augment: Augment | None = None) -> Tensor:
    """Logits of the site's training samples under these weights, `[n, K]`."""
    network = site.network(weights)
    return logits_of(network, site.samples, augment=augment, generator=site.random("statistics"))
