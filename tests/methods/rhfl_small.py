"""A federation small enough to follow by hand: linear networks on rows of features, with public rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsift.data.dataset import Dataset, FederatedDataset, PublicSet
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import RequestMoment, SiteFacts, Weights
from fedsift.protocol.method import Method
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Samples, Site
from fedsift.runtime.in_process import InProcess
from fedsift.training.requests import LocalSite

torch.set_num_threads(1)

LINEAR = "tests.methods.rhfl_small:linear"
WIDER = "tests.methods.rhfl_small:wider"
NORMED = "tests.methods.rhfl_small:normed"


def linear(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """z = W x, no bias."""
    return nn.Linear(shape[0], n_classes, bias=False)


def wider(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, n_classes))


def normed(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], n_classes))


def site(
    private: Tensor,
    labels: Sequence[int],
    public: Tensor,
    *,
    model: str = LINEAR,
    weights: Weights | None = None,
    classes: int = 2,
    name: str = "a",
) -> Site:
    """A site with these rows, whose own model has these weights."""
    facts = SiteFacts(name, len(private), model=model, public=len(public))
    return LocalSite(
        facts=facts,
        samples=Samples(private, torch.arange(len(private))),
        given=torch.tensor(labels),
        classes=tuple("abcdef"[:classes]),
        moment=RequestMoment(7, "stage", 0, 0),
        notebook=Notebook(None if weights is None else {"model": weights}),
        public=Samples(public, torch.arange(len(public))),
    )


def federated(
    sites: int = 3, each: int = 4, public: int = 10, features: int = 3, classes: int = 3, test: int = 9
) -> FederatedDataset:
    """Rows of noise with labels by a fixed rule; the last site's labels are wrong."""
    generator = np.random.default_rng(5)
    total = sites * each + test
    images = generator.normal(size=(total, features)).astype(np.float32)
    labels = np.abs(images).argmax(1).astype(np.int64) % classes
    names = tuple(f"site-{k}" for k in range(sites))
    rows = {name: np.arange(k * each, (k + 1) * each) for k, name in enumerate(names)}
    given = {name: labels[rows[name]] for name in names}
    given[names[-1]] = (given[names[-1]] + 1) % classes
    dataset = Dataset(
        name="rows",
        images=images,
        labels=labels,
        classes=tuple("abcdef"[:classes]),
        train=np.arange(sites * each),
        test=np.arange(sites * each, total),
    )
    rows_of_public = generator.normal(size=(public, features)).astype(np.float32)
    shared = PublicSet("public rows", rows_of_public, np.arange(public))
    return FederatedDataset(dataset, names, rows, given, truth=None, public=shared)


def federation(data: FederatedDataset | None = None, kind: type[InProcess] = InProcess, **options: Any) -> InProcess:
    return kind(data or federated(), run="r", seed=3, **{"model": LINEAR, **options})


def play(method: Method, fed: InProcess, stop: int | None = None) -> Any:
    """All rounds of a method, or the first few; returns the last state."""
    fed.begin(Round("start", 0, -1), ())
    state = method.start(fed)
    number = 0
    for stage in method.stages():
        for index in range(stage.rounds):
            if stop is not None and number >= stop:
                return state
            fed.begin(Round(stage.name, index, number), stage.asks)
            state = stage.step(state, fed)
            number += 1
    return state


def models_of(fed: InProcess) -> dict[str, Weights]:
    """The models in the sites' notebooks."""
    return {name: pages["model"] for name, pages in fed.notebooks.items()}


def distance(one: Mapping[str, Weights], two: Mapping[str, Weights]) -> float:
    """Largest difference of any weight."""
    assert one.keys() == two.keys()
    return max(float((one[s][k] - two[s][k]).abs().max()) for s in one for k in one[s])
