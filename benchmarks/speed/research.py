"""How the papers' released code trains: a DataLoader, transforms image by image, a deep copy of the network a site.

The transforms do, image by image, what the usual library of vision transforms does: random numbers drawn as tensors,
a PIL picture in between, the mean made a tensor anew for every image.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.speed.workload import MEAN, PADDING, STD, Workload
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class RandomCrop:
    def __init__(self, side: int, padding: int) -> None:
        self.side, self.padding = side, padding

    def __call__(self, picture: Image.Image) -> Image.Image:
        padded = ImageOps.expand(picture, border=self.padding, fill=0)
        width, height = padded.size
        top = int(torch.randint(0, height - self.side + 1, size=(1,)).item())
        left = int(torch.randint(0, width - self.side + 1, size=(1,)).item())
        return padded.crop((left, top, left + self.side, top + self.side))


class RandomFlip:
    def __call__(self, picture: Image.Image) -> Image.Image:
        if torch.rand(1) < 0.5:
            return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return picture


class ToTensor:
    def __call__(self, picture: Image.Image) -> Tensor:
        values = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        values = values.view(picture.size[1], picture.size[0], len(picture.getbands()))
        return values.permute((2, 0, 1)).contiguous().to(dtype=torch.get_default_dtype()).div(255)


class Normalise:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Tensor) -> Tensor:
        image = image.clone()
        mean = torch.as_tensor(self.mean, dtype=image.dtype, device=image.device)
        std = torch.as_tensor(self.std, dtype=image.dtype, device=image.device)
        if (std == 0).any():
            raise ValueError("a standard deviation of 0")
        return image.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


class Pictures(Dataset[tuple[Tensor, int]]):
    """The whole dataset; every access makes a picture and sends it through the transforms."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images.permute(0, 2, 3, 1).numpy()
        self.labels = labels.tolist()
        self.transforms: list[Callable[[Any], Any]] = [
            RandomCrop(32, PADDING),
            RandomFlip(),
            ToTensor(),
            Normalise(MEAN, STD),
        ]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture: Any = Image.fromarray(self.images[index])
        for transform in self.transforms:
            picture = transform(picture)
        return picture, self.labels[index]


class OneSite(Dataset[tuple[Tensor, int]]):
    """One site's part of it."""

    def __init__(self, dataset: Pictures, rows: list[int]) -> None:
        self.dataset, self.rows = dataset, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.dataset[self.rows[index]]


def train_research(network: nn.Module, dataset: Pictures, rows: list[int], work: Workload) -> dict[str, Any]:
    """One local epoch of one site, from a copy of the global network."""
    own = copy.deepcopy(network)
    own.train()
    loader = DataLoader(OneSite(dataset, rows), batch_size=work.batch, shuffle=True)
    optimiser = torch.optim.SGD(own.parameters(), lr=work.lr, momentum=work.momentum)
    losses = []
    for inputs, targets in loader:
        own.zero_grad()
        loss = F.cross_entropy(own(inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return copy.deepcopy(own.state_dict())
