"""The interface of all networks: `features(x) -> [B, F]` and `head(features) -> [B, K]`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsift.core.errors import ConfigError


class Network(nn.Module):
    """Base of the registered networks: an encoder and a linear head.

    Subclasses set `self.head` and write `features`. Methods that read representations (prototypes, frozen
    encoders) rely on this split; a plug-in network may lack it, see `require_features`.
    """

    head: nn.Linear
    stem: str = "none"
    """How the input enters: decides whether small images keep their resolution."""

    def features(self, x: Tensor) -> Tensor:
        """Samples `[B, *shape]` to representations `[B, F]`."""
        raise TypeError(f"{type(self).__name__} does not say its features")

    def forward(self, x: Tensor) -> Tensor:
        """Samples `[B, *shape]` to logits `[B, K]`."""
        logits: Tensor = self.head(self.features(x))
        return logits


def has_features(module: nn.Module) -> bool:
    """Whether the module splits into `features` and `head`."""
    return callable(getattr(module, "features", None)) and callable(getattr(module, "head", None))


def require_features(module: nn.Module, who: str) -> None:
    """Refuse a network without `features` and `head`; `who` is what needs them."""
    if not has_features(module):
        raise ConfigError(
            f"{who} needs a network with features(x) -> [B, F] and head(features) -> [B, K]; "
            f"{type(module).__name__} lacks them: add the two to your class, or use a registered model"
        )


def image_sides(name: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of image samples, or an error that says what to do instead."""
    if len(shape) != 3:
        raise ConfigError(
            f"model '{name}' needs images (channels, height, width) but a sample here is {shape}: use 'mlp'"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"model '{name}' needs images of at least {smallest}x{smallest} but these are {height}x{width}: "
            "use 'mlp', or resize the images"
        )
    return channels, height, width


# Dropout whose draws can be repeated
# -----------------------------------


class Dropout(nn.Dropout):
    """nn.Dropout that draws by `dropout_mask`, so that another trainer can draw the very same masks.

    It draws from torch's own stream, which the trainer seeds for each site.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        return input * dropout_mask(input.shape, self.p).to(input)


def dropout_mask(shape: torch.Size | tuple[int, ...], p: float, generator: torch.Generator | None = None) -> Tensor:
    """0 with probability p, else 1 / (1 - p); from torch's own stream when no generator is given."""
    if p >= 1.0:
        return torch.zeros(shape)
    kept = torch.rand(shape, generator=generator) >= p
    return kept.to(torch.float32).div_(1.0 - p)


def with_repeatable_dropout(module: nn.Module) -> nn.Module:
    """Exchange plain nn.Dropout layers (of plug-in networks) for `Dropout`; other kinds are left alone."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    return module
