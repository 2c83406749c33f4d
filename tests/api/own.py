"""Classes as a person writes them, in a module of their own and registered nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsift.extend import (
    Dataset,
    Federation,
    Noise,
    NoiseInput,
    NoisyLabels,
    Partition,
    Placement,
    Pool,
    Source,
    Stage,
    State,
    Term,
    TrainingMethod,
    View,
)
from fedsift.methods._base import size_weighted, train_round
from fedsift.training.objective import CrossEntropy
from fedsift.training.requests import Train


@dataclass(frozen=True)
class Flat(Term):
    """Half the squared logits, averaged over classes: a loss term of one's own."""

    def value(self, view: View) -> Tensor:
        return view.mean(view.logits.square().mean(-1)) / 2


@dataclass(frozen=True)
class Calm(TrainingMethod):
    """FedAvg whose sites pay for large logits."""

    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    rounds: int = 2
    weight: float = 0.1

    def stages(self) -> list[Stage]:
        return [Stage("calm training", self.rounds, self.step, (Train,))]

    def step(self, state: State, federation: Federation) -> State:
        recipe = self.recipe(CrossEntropy() + self.weight * Flat())
        return State(size_weighted(train_round(federation, state.weights, recipe)))


@dataclass(frozen=True)
class FirstWrong(Noise):
    """The first sites call everything class 0."""

    sites: int = 1

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        noisy = tuple(scene.sites[: self.sites])
        given = {
            site: np.zeros_like(labels) if site in noisy else labels.copy() for site, labels in scene.clean.items()
        }
        level = {site: float(site in noisy) for site in scene.sites}
        return NoisyLabels(given=given, level=level, noisy=noisy)


@dataclass(frozen=True)
class Halves(Partition):
    """The first half to one site, the rest to another."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        middle = len(pool) // 2
        rows = [np.arange(middle, dtype=np.int64), np.arange(middle, len(pool), dtype=np.int64)]
        return Placement(rows, names=("first", "second"))


@dataclass(frozen=True)
class Stripes(Source):
    """8x8 pictures of one bright column each; the class is the column."""

    n: int = 60
    seeds: tuple[int, ...] = field(default=(0,))

    def read(self) -> Dataset:
        rng = np.random.default_rng(list(self.seeds))
        labels = np.arange(self.n, dtype=np.int64) % 4
        images = rng.integers(0, 60, (self.n, 1, 8, 8), dtype=np.uint8)
        images[np.arange(self.n), 0, :, labels * 2] = 250
        cut = self.n * 3 // 4
        rows = np.arange(self.n, dtype=np.int64)
        return Dataset("stripes", images, labels, ("a", "b", "c", "d"), rows[:cut], rows[cut:])


class Line(nn.Module):
    """One linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.flatten(x, 1))
        return logits


NOT_A_METHOD = 3
