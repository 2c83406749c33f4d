"""Annotator networks: a small network trained on one site's clean data says how likely each label is."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsift.contract.randomness import torch_generator
from fedsift.data.dataset import Labels
from fedsift.data.places import cache_root

SIDE = 32
"""Larger images are averaged down to this side: an annotator need not be sharp."""
BATCH = 32
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


def train(
    images: NDArray[Any], labels: Labels, n_classes: int, annotator: Annotator, seed: int
) -> NDArray[np.float64]:
    """Train in double precision, then predict the same samples."""
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
        if max(inputs.shape[2:]) > SIDE:
            inputs = functional.adaptive_avg_pool2d(inputs, SIDE)
        mean, std = inputs.mean((0, 2, 3), keepdim=True), inputs.std((0, 2, 3), keepdim=True)
    else:
        mean, std = inputs.mean(0, keepdim=True), inputs.std(0, keepdim=True, unbiased=False)
    return (inputs - mean) / torch.where(std > 1e-9, std, torch.ones_like(std))


def _network(inputs: Tensor, n_classes: int, width: int) -> nn.Module:
    if inputs.ndim == 2:
        layers: list[nn.Module] = [
            nn.Linear(inputs.shape[1], 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, n_classes),
        ]
    else:
        layers = [
            nn.Conv2d(inputs.shape[1], width, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2) if min(inputs.shape[2:]) >= 4 else nn.Identity(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4 if min(inputs.shape[2:]) >= 16 else 2),
            nn.Flatten(),
            nn.LazyLinear(n_classes),
        ]
    network = nn.Sequential(*layers).to(torch.float64)
    with torch.no_grad():
        network(inputs[:1])
    return network


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
    digest.update(f"1|{images.shape}|{images.dtype}|{n_classes}|{annotator}|{seed}".encode())
    digest.update(np.ascontiguousarray(images).tobytes())
    digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()
