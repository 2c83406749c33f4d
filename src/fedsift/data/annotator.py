"""Annotator networks: a small network trained on one site's clean data says how likely each label is.

Wu et al.: FedNoRo, IJCAI 2023, Algorithm 1. Kept apart from `noise.instance`, so that listing noise models needs no
torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsift.core.files import cache_root
from fedsift.core.randomness import torch_generator
from fedsift.data.dataset import Labels

SIDE = 32
"""Larger images are averaged down to this side: an annotator need not be sharp."""
BATCH = 32
FORMAT = 1
"""Part of every cache key: raise it when annotators change."""
DECIMALS = 4
"""Soft labels are rounded, so that the last bits of another machine's arithmetic change no label."""


@dataclass(frozen=True)
class Annotator:
    """How annotators are built and trained."""

    epochs: int = 10
    lr: float = 0.003
    width: int = 16


def soft_labels(
    images: NDArray[Any],
    labels: Labels,
    n_classes: int,
    annotator: Annotator,
    seed: int,
    *,
    cache: Path | None = None,
) -> NDArray[np.float64]:
    """p(Y | x) `[n, C]` of a network trained on these samples (Algorithm 1, lines 3-5), from the cache if
    known."""
    folder = (cache or cache_root()) / "annotators"
    file = folder / f"{_key(images, labels, n_classes, annotator, seed)}.npy"
    if file.is_file():
        stored: NDArray[np.float64] = np.load(file, allow_pickle=False)
        return stored
    soft = np.round(train(images, labels, n_classes, annotator, seed), DECIMALS)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{file.stem}.{os.getpid()}.tmp"
    with unfinished.open("wb") as stream:
        np.save(stream, soft)
    unfinished.replace(file)
    return soft


def train(images: NDArray[Any], labels: Labels, n_classes: int, annotator: Annotator, seed: int) -> NDArray[np.float64]:
    """Train in double precision, then predict the same samples."""
    with _one_thread():
        return _train(images, labels, n_classes, annotator, seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and one thread sums in one order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    images: NDArray[Any], labels: Labels, n_classes: int, annotator: Annotator, seed: int
) -> NDArray[np.float64]:
    inputs, targets = _inputs(images), torch.from_numpy(labels)
    network = _network(inputs, n_classes, annotator.width)
    _initialise(network, torch_generator(seed, "weights"))
    order = torch_generator(seed, "order")
    optimiser = torch.optim.Adam(network.parameters(), lr=annotator.lr)
    for _ in range(annotator.epochs):
        shuffled = torch.randperm(len(inputs), generator=order)
        for start in range(0, len(inputs), BATCH):
            batch = shuffled[start : start + BATCH]
            optimiser.zero_grad()
            loss: Tensor = functional.cross_entropy(network(inputs[batch]), targets[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    with torch.no_grad():
        parts = [functional.softmax(network(part), dim=-1) for part in torch.split(inputs, 256)]
    soft: NDArray[np.float64] = torch.cat(parts).numpy()
    return soft


def _inputs(images: NDArray[Any]) -> Tensor:
    """Doubles `[n, c, h, w]` or `[n, features]`, each feature or channel standardised over the site."""
    inputs = torch.from_numpy(np.ascontiguousarray(images)).to(torch.float64)
    if inputs.ndim == 4:
        side = min(SIDE, *inputs.shape[2:])
        if inputs.shape[2] != side or inputs.shape[3] != side:
            inputs = functional.adaptive_avg_pool2d(inputs, side)
        mean, std = inputs.mean((0, 2, 3), keepdim=True), inputs.std((0, 2, 3), keepdim=True)
    else:
        mean, std = inputs.mean(0, keepdim=True), inputs.std(0, keepdim=True, unbiased=False)
    return (inputs - mean) / torch.where(std > 1e-9, std, torch.ones_like(std))


class _Patches(nn.Module):
    """A small convolutional network written as matrix products, which double precision is fast at.

    `[n, c, h, w]` is cut into patches, each embedded; a 3x3 neighbourhood is mixed; the mean is classified.
    """

    def __init__(self, channels: int, side: int, n_classes: int, width: int) -> None:
        super().__init__()
        self.patch = next(size for size in (4, 2, 1) if (side % size == 0 and side >= 4 * size) or size == 1)
        self.embed = nn.Linear(channels * self.patch**2, width)
        self.mix = nn.Linear(9 * width, 2 * width)
        self.classify = nn.Linear(4 * 2 * width, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = functional.pixel_unshuffle(images, self.patch)
        features = functional.relu(self.embed(patches.movedim(1, -1))).movedim(-1, 1)
        around = functional.unfold(features, 3, padding=1).transpose(1, 2)
        mixed = functional.relu(self.mix(around)).transpose(1, 2).reshape(len(images), -1, *features.shape[2:])
        output: Tensor = self.classify(functional.adaptive_avg_pool2d(mixed, 2).flatten(1))
        return output


def _network(inputs: Tensor, n_classes: int, width: int) -> nn.Module:
    if inputs.ndim == 2:
        hidden = 4 * width
        network: nn.Module = nn.Sequential(nn.Linear(inputs.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, n_classes))
    else:
        network = _Patches(inputs.shape[1], inputs.shape[2], n_classes, width)
    return network.to(torch.float64)


def _initialise(network: nn.Module, generator: torch.Generator) -> None:
    """He's normal weights and zero biases from the annotator's own generator."""
    for parameter in network.parameters():
        with torch.no_grad():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
                parameter.mul_((2.0 / fan_in) ** 0.5)
            else:
                parameter.zero_()


def _key(images: NDArray[Any], labels: Labels, n_classes: int, annotator: Annotator, seed: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{FORMAT}|{images.shape}|{images.dtype}|{n_classes}|{annotator}|{seed}".encode())
    digest.update(np.ascontiguousarray(images).tobytes())
    digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()
