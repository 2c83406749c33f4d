"""The best plain PyTorch loop: tensors in memory, an epoch augmented in one gather, channels last, fused updates."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from benchmarks.speed.workload import CLASSES, MEAN, PADDING, SHAPE, STD, Workload
from torch import Tensor, nn

from fedsift.models.factory import build_model

State = dict[str, Tensor]


@lru_cache(maxsize=4)
def network_of(model: str, channels_last: bool) -> nn.Module:
    network = build_model(model, SHAPE, CLASSES)
    return network.to(memory_format=torch.channels_last) if channels_last else network


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Normalised, flipped and cropped copies: one gather for all images of an epoch."""
    n, channels, height, width = images.shape
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    padded = F.pad((images.float() / 255 - mean) / std, (PADDING,) * 4)
    shift = torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator)
    flip = torch.rand(n, generator=generator) < 0.5
    columns = torch.where(flip[:, None], width - 1 - torch.arange(width), torch.arange(width))
    rows = (shift[:, :1] + torch.arange(height))[:, None, :, None]
    columns = (shift[:, 1:] + columns)[:, None, None, :]
    which, channel = torch.arange(n)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[which, channel, rows, columns]


def train_plain(state: State, images: Tensor, labels: Tensor, work: Workload, seed: int, channels_last: bool) -> State:
    """One local epoch of one site."""
    generator = torch.Generator().manual_seed(seed)
    network = network_of(work.model, channels_last)
    network.load_state_dict(state)
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), work.lr, momentum=work.momentum, fused=True)
    order = torch.randperm(len(images), generator=generator)
    inputs, targets = augmented(images[order], generator), labels[order]
    if channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    for start in range(0, len(inputs), work.batch):
        loss = F.cross_entropy(network(inputs[start : start + work.batch]), targets[start : start + work.batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: value.clone() for name, value in network.state_dict().items()}


def average(states: list[State]) -> State:
    """FedAvg of sites of one size."""
    return {
        name: torch.stack([own[name].float() for own in states]).mean(0).to(value.dtype)
        for name, value in states[0].items()
    }
