"""Classes as a person writes them, in a module of their own and registered nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import fedsift
from fedsift.methods._base import size_weighted, train_round
from fedsift.training.objective import CrossEntropy
from fedsift.training.requests import Train


@dataclass(frozen=True)
class Flat(fedsift.Term):
    """Half the squared logits, averaged over classes: a loss term of one's own."""

    def value(self, view: fedsift.View) -> Tensor:
        return view.mean(view.logits.square().mean(-1)) / 2


@dataclass(frozen=True)
class Calm(fedsift.TrainingMethod):
    """FedAvg whose sites pay for large logits."""

    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    rounds: int = 2
    weight: float = 0.1

    def stages(self) -> list[fedsift.Stage]:
        return [fedsift.Stage("calm training", self.rounds, self.step, (Train,))]

    def step(self, state: fedsift.State, federation: fedsift.Federation) -> fedsift.State:
        recipe = self.recipe(CrossEntropy() + self.weight * Flat())
        return fedsift.State(size_weighted(train_round(federation, state.weights, recipe)))


@dataclass(frozen=True)
class FirstWrong(fedsift.Noise):
    """The first sites call everything class 0."""

    sites: int = 1

    def corrupt(self, scene: fedsift.Scene) -> fedsift.Spoiled:
        noisy = tuple(scene.sites[: self.sites])
        given = {
            site: np.zeros_like(labels) if site in noisy else labels.copy() for site, labels in scene.clean.items()
        }
        level = {site: float(site in noisy) for site in scene.sites}
        return fedsift.Spoiled(given=given, level=level, noisy=noisy)


@dataclass(frozen=True)
class Halves(fedsift.Partition):
    """The first half to one site, the rest to another."""

    def assign(self, pool: fedsift.Pool, rng: np.random.Generator) -> fedsift.Placement:
        middle = len(pool) // 2
        rows = [np.arange(middle, dtype=np.int64), np.arange(middle, len(pool), dtype=np.int64)]
        return fedsift.Placement(rows, names=("first", "second"))


@dataclass(frozen=True)
class Stripes(fedsift.Source):
    """8x8 pictures of one bright column each; the class is the column."""

    n: int = 60
    seeds: tuple[int, ...] = field(default=(0,))

    def read(self) -> fedsift.Dataset:
        rng = np.random.default_rng(list(self.seeds))
        labels = np.arange(self.n, dtype=np.int64) % 4
        images = rng.integers(0, 60, (self.n, 1, 8, 8), dtype=np.uint8)
        images[np.arange(self.n), 0, :, labels * 2] = 250
        cut = self.n * 3 // 4
        rows = np.arange(self.n, dtype=np.int64)
        return fedsift.Dataset("stripes", images, labels, ("a", "b", "c", "d"), rows[:cut], rows[cut:])


class Line(nn.Module):
    """One linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.flatten(x, 1))
        return logits


NOT_A_METHOD = 3
