"""What every network here offers: `features(x) -> [B, F]` and `head(features) -> [B, K]`."""

from __future__ import annotations

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
