"""What every side of the comparison does: one local epoch of some sites, on images of bytes in memory.

Speed does not depend on what the images show, so they are random; every side gets the same ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
SHAPE, CLASSES = (3, 32, 32), 10
PADDING = 4


@dataclass(frozen=True)
class Workload:
    """A round: `chosen` of `sites` train one epoch on `samples` images each, flipped and cropped at random."""

    name: str
    model: str
    batch: int
    samples: int
    chosen: int = 10
    sites: int = 100
    lr: float = 0.01
    momentum: float = 0.5

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        return cls(**json.loads(text))

    def rows(self, site: int) -> Tensor:
        """Rows of a site's images; sites may overlap, which costs no side anything."""
        return (torch.arange(self.samples) + site * self.samples) % POOL

    def sites_of(self, round_number: int) -> list[int]:
        return [(round_number * self.chosen + i) % self.sites for i in range(self.chosen)]


POOL = 20_000

WORKLOADS = {
    "w1": Workload("w1", "lenet5", batch=10, samples=500),
    "w2-resnet8": Workload("w2-resnet8", "resnet8-cifar", batch=16, samples=96),
    "w2-resnet18": Workload("w2-resnet18", "resnet18-cifar", batch=16, samples=64, chosen=2),
}


def make_pool() -> tuple[Tensor, Tensor]:
    """Images uint8 `[N, 3, 32, 32]` and labels `[N]`."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (POOL, *SHAPE), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, CLASSES, (POOL,), generator=generator)
