"""What a curious coordinator can read off a site's replies: its mix of labels, and whether a sample is there.

`python -m benchmarks.leakage` fills results/leakage.csv. Sites of digits with uneven classes; the coordinator knows
the global model, what it was told, and 200 labelled samples of its own that no site has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.attacks.lying import warmed_up
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.formulas.metrics import roc_area
from fedsift.formulas.privacy import GRID_BITS, clipping_share, discrete_gaussian
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import Samples
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Indicate, Train
from fedsift.training.workers import predict

Array = NDArray[np.float64]
OWN = 200
"""Labelled samples of the coordinator's own."""
MIN_COUNT = 10
SMALLEST = 1e-12
"""Stands for a share of nothing where something is divided by it."""
NOISES = (0.0, 0.1, 1.0)
"""Standard deviation of the noise in units of the clipping bound; 0: clipped alone."""


def study_of(seed: int) -> Study:
    return Study.from_table(
        {
            "name": "leakage",
            "seed": seed,
            "data": {"name": "digits"},
            "partition": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.6, "alpha": 2.0},
            "noise": {"name": "clean"},
            "model": {"name": "mlp"},
            "train": {"epochs": 3, "batch_size": 16, "lr": 0.1, "momentum": 0.5},
            "method": {"name": "fedavg", "rounds": 3},
            "engine": {"threads": 1},
        }
    )


@dataclasses.dataclass
class Scene:
    """A federation after a few rounds, and what one more exchange brings."""

    federation: InProcess
    start: Weights
    models: dict[str, Weights]
    losses: dict[str, Any]
    own: Samples
    own_labels: Tensor
    strangers: Samples
    """Samples that no site has and the coordinator does not know."""

    @property
    def classes(self) -> int:
        return len(self.federation.classes)

    def samples(self, site: str) -> Samples:
        return self.federation._samples(self.federation.federated.rows[site])

    def labels(self, site: str) -> Tensor:
        return torch.from_numpy(self.federation.federated.given[site])

    def shares(self, site: str) -> Array:
        """The secret: the site's mix of labels."""
        counts = np.bincount(self.labels(site).numpy(), minlength=self.classes).astype(float)
        return counts / counts.sum()

    def logits(self, weights: Weights, samples: Samples) -> Tensor:
        return predict(self.federation.model, weights, samples, self.classes, self.federation.compute)


def scene(seed: int) -> Scene:
    study = study_of(seed)
    federation = open_in_process(study, study.load_data(), f"leakage {seed}", InProcess)
    method: Any = study.method
    state = warmed_up(method, federation)
    federation.begin(Round("look", 0, method.rounds), (Train, Indicate))
    recipe: Recipe = method.recipe(method.objective(federation))
    trained = federation.ask(Train(state.weights, recipe))
    losses = federation.ask(Indicate(state.weights, len(federation.classes)))
    test = federation.test_set()
    assert test is not None
    samples, labels = test
    own = dataclasses.replace(samples, rows=samples.rows[:OWN])
    strangers = dataclasses.replace(samples, rows=samples.rows[OWN:])
    models = {site: reply.weights for site, reply in trained.items()}
    return Scene(federation, state.weights, models, dict(losses), own, labels[:OWN], strangers)


# What leaves under a policy -----------------------------------------------------------------------------------------


def noised(start: Weights, model: Weights, bound: float, noise: float, entropy: np.random.Generator) -> Weights:
    """The model that leaves when its update is clipped at `bound` and gets noise of `noise` times it."""
    names = [name for name, tensor in model.items() if tensor.is_floating_point()]
    flat = torch.cat([(model[name] - start[name]).double().reshape(-1) for name in names])
    flat = flat * clipping_share(float(flat.norm()), bound)
    if noise > 0:
        drawn = torch.from_numpy(discrete_gaussian(entropy.bytes, len(flat)))
        flat = flat + noise * bound * drawn / 2**GRID_BITS
    parts = torch.split(flat, [model[name].numel() for name in names])
    moved = {name: start[name] + part.reshape(start[name].shape).float() for name, part in zip(names, parts)}
    return {**model, **moved}


# Which labels does the site have? -----------------------------------------------------------------------------------


def from_losses(values: Array, held: NDArray[np.bool_]) -> Array:
    """Classes that are told are there, and more often where the model has learnt them better."""
    return as_shares(np.where(held, np.exp(-values), 0.0))


def from_presence(held: NDArray[np.bool_]) -> Array:
    """Equal shares of the classes for which a mean was sent: prototypes tell no more about their number."""
    return as_shares(held.astype(float))


def from_predictions(place: Scene, model: Weights) -> Array:
    """How much more often than the global model the site's predicts each class for samples of the coordinator's."""
    site = torch.softmax(place.logits(model, place.own), -1).mean(0).double().numpy()
    common = torch.softmax(place.logits(place.start, place.own), -1).mean(0).double().numpy()
    return from_ratio(site, common)


def from_ratio(site: Array, common: Array) -> Array:
    """Shares by how much more often the site predicts each class than is common, `[K], [K] -> [K]`."""
    return as_shares(np.maximum(site / np.maximum(common, SMALLEST) - 0.5, 0.0))


def as_shares(numbers: Array) -> Array:
    """Numbers that are not negative as shares; equal ones where there is nothing."""
    total = numbers.sum()
    return numbers / total if total > 0 else np.full(len(numbers), 1.0 / len(numbers))


def known(guess: Array, secret: Array) -> float:
    """1 - TV(guess, shares) / TV(equal shares, shares): 0 is what anybody knows, 1 is everything."""
    blind = np.abs(secret - 1.0 / len(secret)).sum()
    return float(1.0 - np.abs(guess - secret).sum() / blind)


# Is this sample at the site? ----------------------------------------------------------------------------------------


def membership(place: Scene, site: str, model: Weights, *, with_labels: bool) -> float:
    """AUC of telling the site's samples from strangers: by the fall of its loss, or by confidence alone."""
    inside, outside = place.samples(site), place.strangers
    truth = torch.from_numpy(place.federation.federated.dataset.labels)
    scores = []
    for samples in (inside, outside):
        after = place.logits(model, samples)
        if with_labels:
            labels = truth[samples.rows]
            before = F.cross_entropy(place.logits(place.start, samples), labels, reduction="none")
            scores.append((before - F.cross_entropy(after, labels, reduction="none")).numpy())
        else:
            scores.append(torch.softmax(after, -1).max(-1).values.numpy())
    return told_apart(*scores)


def told_apart(inside: Array, outside: Array) -> float:
    """AUC of scores of the site's samples against those of strangers."""
    marks = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    return float(roc_area(marks, np.concatenate([inside, outside])))


# Everything together ------------------------------------------------------------------------------------------------


def rows(place: Scene, seed: int) -> Iterator[tuple[str, str, str, float]]:
    """Kind of reply, protection, what is asked, how well it is answered: for every site."""
    lengths = [_length(place.start, model) for model in place.models.values()]
    bound = float(np.median(lengths))
    entropy = np.random.default_rng(seed)
    for site, model in place.models.items():
        forms = {"none": model}
        for noise in NOISES:
            name = "clipped" if noise == 0 else f"clipped, noise {noise:g}"
            forms[name] = noised(place.start, model, bound, noise, entropy)
        for name, sent in forms.items():
            yield "model", name, "labels", known(from_predictions(place, sent), place.shares(site))
            yield "model", name, "member", membership(place, site, sent, with_labels=True)
        yield (
            "public predictions",
            "none",
            "labels",
            known(from_predictions(place, model), place.shares(site)),
        )
        yield "public predictions", "none", "member", membership(place, site, model, with_labels=False)
        counts = np.bincount(place.labels(site).numpy(), minlength=place.classes)
        told = place.losses[site]
        values, held = told.values.numpy().astype(float), told.held.numpy()
        above = held & (counts >= MIN_COUNT)
        yield "per-class losses", "none", "labels", known(from_losses(values, held), place.shares(site))
        yield (
            "per-class losses",
            f"floor {MIN_COUNT}",
            "labels",
            known(from_losses(values, above), place.shares(site)),
        )
        yield "prototypes", "none", "labels", known(from_presence(held), place.shares(site))
        yield "prototypes", f"floor {MIN_COUNT}", "labels", known(from_presence(above), place.shares(site))


def _length(start: Weights, model: Weights) -> float:
    squares = [((t - start[n]).double() ** 2).sum() for n, t in model.items() if t.is_floating_point()]
    return float(torch.stack(squares).sum().sqrt())


def measured(seeds: int) -> dict[str, Any]:
    """Means over sites and seeds."""
    found: dict[str, list[float]] = {}
    for seed in range(1, seeds + 1):
        for kind, protection, what, value in rows(scene(seed), seed):
            found.setdefault(f"{kind}, {protection}, {what}", []).append(value)
    return {key: round(float(np.mean(values)), 3) for key, values in found.items()}
