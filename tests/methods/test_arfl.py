"""ARFL's round: a model far from the others' counts less, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.methods.arfl import ARFL, residual_average
from fedsift.protocol.federation import FederationFacts
from fedsift.protocol.messages import Reply, Request, Weights
from fedsift.protocol.method import State
from fedsift.testing import Scripted
from fedsift.training.requests import Train, Trained

RNG = np.random.default_rng(4)
HONEST = [RNG.normal(size=6) for _ in range(9)]


def federation(last: Any, sizes: int = 10) -> Scripted:
    places = [*HONEST, last]

    def answer(name: str, request: Request[Any]) -> Reply | None:
        assert isinstance(request, Train)
        return Trained({"w": torch.tensor(places[int(name)], dtype=torch.float32)}, sizes, 1.0)

    return Scripted({str(k): sizes for k in range(10)}, answer, {"w": torch.zeros(6)})


def models(last: Any) -> list[Weights]:
    return [{"w": torch.tensor(own, dtype=torch.float32)} for own in [*HONEST, last]]


def test_the_round_is_the_tested_average() -> None:
    last = RNG.normal(size=6)
    network = federation(last)
    state = ARFL().train(State({"w": torch.zeros(6)}), network)
    found = residual_average(models(last))
    assert torch.equal(state.weights["w"], found.weights["w"])
    shares = network.recorded_sites["aggregation_weight"]
    assert list(shares.values()) == found.shares.tolist()
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_model_far_off_cannot_carry_the_others_away() -> None:
    network = federation(np.full(6, 1e4))
    state = ARFL().train(State({"w": torch.zeros(6)}), network)
    shares = network.recorded_sites["aggregation_weight"]
    assert shares["9"] < 0.01 < min(share for site, share in shares.items() if site != "9")
    assert np.abs(state.weights["w"].numpy()).max() < 3  # the honest lie within


def test_models_that_are_alike_count_alike() -> None:
    def same(name: str, request: Request[Any]) -> Reply | None:
        return Trained({"w": torch.ones(3)}, 10, 1.0)

    network = Scripted({str(k): 10 for k in range(5)}, same, {"w": torch.zeros(3)})
    state = ARFL().train(State({"w": torch.zeros(3)}), network)
    assert torch.equal(state.weights["w"], torch.ones(3))
    assert list(network.recorded_sites["aggregation_weight"].values()) == pytest.approx([0.2] * 5)


def test_one_site_alone_is_taken_as_it_is() -> None:
    network = Scripted({"0": 10}, federation(0).answer, {"w": torch.zeros(6)})
    state = ARFL().train(State({"w": torch.zeros(6)}), network)
    assert np.allclose(state.weights["w"].numpy(), HONEST[0], atol=1e-6)


@pytest.mark.parametrize(("sites", "fraction", "fits"), [(10, 1.0, True), (10, 0.3, False), (3, 1.0, False)])
def test_it_says_when_a_round_is_too_small_to_doubt_anybody(sites: int, fraction: float, fits: bool) -> None:
    found = ARFL(fraction=fraction).fits(FederationFacts(sites=sites))
    assert (found is None) == fits
    assert fits or "too few" in found.reason  # type: ignore[union-attr]
