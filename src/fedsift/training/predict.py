"""Forward passes without training: logits over samples, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsift.models.network import require_features
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import Samples, Site
from fedsift.training import augment as augmentation
from fedsift.training import native
from fedsift.training.recipe import Augment
from fedsift.training.stacked.network import StackedNetwork
from fedsift.training.stacked.pixels import pixels_of

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
    return logits_of_each([network], samples, augment=augment, generator=generator)[0]


def logits_of_each(
    networks: Sequence[nn.Module],
    samples: Samples,
    *,
    augment: Augment | None = None,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Logits of every sample under each of some networks of one kind, `[n, K]` each: all look at the same views, which
    are made once."""
    forms = [_stacked_form(network.eval(), samples) for network in networks]
    own = [form for form in forms if form is not None]
    if len(own) < len(forms):
        return _map(networks[0], lambda images: tuple(net(images) for net in networks), samples, augment, generator)
    for form, network in zip(own, networks):
        form.load([network.state_dict()])

    def compute(images: Tensor) -> tuple[Tensor, ...]:
        return tuple(form.forward(images.unsqueeze(0), train=False)[0] for form in own)

    return _map(networks[0], compute, samples, augment, generator, own[0].by_site)


_stacked_forms: WeakKeyDictionary[nn.Module, StackedNetwork | None] = WeakKeyDictionary()


def _stacked_form(network: nn.Module, samples: Samples) -> StackedNetwork | None:
    """The network as a cohort of one, where native kernels make that the faster way; None where they do not."""
    if native.library() is None or len(samples) == 0 or _device(network).type != "cpu":
        return None
    if network not in _stacked_forms:
        _stacked_forms[network] = _checked(network, samples)
    return _stacked_forms[network]


def _checked(network: nn.Module, samples: Samples) -> StackedNetwork | None:
    # always the same made-up images: which data came first must not decide by which kernels a run is evaluated
    images = torch.randn(1, 4, *samples.shape, generator=torch.Generator().manual_seed(0))
    try:
        stacked = StackedNetwork(network)
        return stacked if stacked.agrees_with(network, images) else None
    except Exception:  # whatever user code raises when it is traced; the network itself may still be fine
        return None


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


def features_of(
    network: nn.Module,
    samples: Samples,
    *,
    augment: Augment | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Features `[n, F]` and logits `[n, K]` of every sample in order, on the CPU."""
    require_features(network, "a method that reads features")
    stacked = _stacked_form(network, samples)

    def both(images: Tensor) -> tuple[Tensor, ...]:
        features = network.features(images)  # type: ignore[operator]
        return features, network.head(features)  # type: ignore[operator]

    if stacked is None:
        features, logits = _map(network, both, samples, augment, generator)
        return features, logits
    own = stacked
    own.load([network.state_dict()])

    def compute(images: Tensor) -> tuple[Tensor, ...]:
        read, said = own.forward_both(images.unsqueeze(0), train=False, features=True)
        assert read is not None
        return read[0], said[0]

    features, logits = _map(network, compute, samples, augment, generator, own.by_site)
    return features, logits


def _map(
    network: nn.Module,
    compute: Callable[[Tensor], tuple[Tensor, ...]],
    samples: Samples,
    augment: Augment | None,
    generator: torch.Generator | None,
    by_site: bool = False,
) -> list[Tensor]:
    """What `compute` makes of all samples, in batches and in inference mode.

    by_site: images have their channels first in memory, not last.
    """
    device = _device(network)
    network.eval()
    n = len(samples)
    draws = augmentation.AugmentationDraws()
    if augment is not None and augment.active:
        assert generator is not None
        draws = augmentation.draw(augment, n, generator)
    source = pixels_of([samples], augment or Augment(), by_site) if native.library() is not None and n else None
    parts: list[tuple[Tensor, ...]] = []
    with torch.inference_mode():
        for start in range(0, n, BATCH):
            stop = min(start + BATCH, n)
            own = draws.part(start, stop)
            if source is None:
                images = _channels_last(samples, start, stop).to(device)
                images = images if augment is None else augmentation.apply(images, augment, own)
            else:
                rows = torch.arange(start, stop).unsqueeze(0)
                [window] = source.windows(rows, own.as_one_step())
                images = source.take(window, 1)[0].to(device)
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
