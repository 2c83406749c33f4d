"""FedMD: the consensus, the digest step by hand, and every switch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods.fedmd import FedMD
from fedsift.training.own_models import own_model
from fedsift.training.public_learning import Collaborate, PublicLesson, PublicPart, learn
from fedsift.training.recipe import Recipe
from tests.methods.rhfl_small import WIDER, distance, federated, federation, models_of, play, site

BASE = FedMD(rounds=2, pretrain_rounds=1, pretrain_epochs=2, local=Recipe(batch_size=4, lr=0.2))


def test_digest_by_hand() -> None:
    """mean |z - c| over two classes and two rows: the gradient of each logit is sign(z - c) / 4.

    From W = 0 on rows e_1, e_2 with scores (1, -2) and (-3, 0.5) and step 1: W = [[1, -1], [-1, 1]] / 4.
    """
    rows = torch.eye(2)
    part = PublicPart(0, 0, 2)
    scores = torch.tensor([[1.0, -2.0], [-3.0, 0.5]])[part.positions(7, 2)]
    here = site(rows, [0, 1], rows, weights={"weight": torch.zeros(2, 2)})
    moved = learn(here, own_model(here), PublicLesson(part, scores, "l1", Recipe(batch_size=2, lr=1.0), "visit"))
    assert torch.allclose(moved["weight"], torch.tensor([[0.25, -0.25], [-0.25, 0.25]]))
    # the squared difference instead: gradient 2 (z - c) / 4
    squared = PublicLesson(part, scores, "mse", Recipe(batch_size=2, lr=1.0), "visit")
    moved = learn(here, own_model(here), squared)
    assert torch.allclose(moved["weight"], torch.tensor([[0.5, -1.5], [-1.0, 0.25]]))
    # KL(softmax(c) || softmax(z)): gradient (p - softmax(c)) / 2
    diverging = PublicLesson(part, scores, "kl", Recipe(batch_size=2, lr=1.0), "visit")
    moved = learn(here, own_model(here), diverging)
    expected = (torch.softmax(torch.tensor([[1.0, -2.0], [-3.0, 0.5]]), -1) - 0.5) / 2
    assert torch.allclose(moved["weight"], expected.T)


def test_the_consensus_is_the_mean_of_all_scores_the_students_own_included() -> None:
    asked: list[Any] = []

    class Watched(type(federation())):  # type: ignore[misc]
        def deliver(self, envelopes: Any, deadline: float) -> Any:
            asked.append({site: envelope.request for site, envelope in envelopes.items()})
            return super().deliver(envelopes, deadline)

    fed = federation(kind=Watched, models={"site-1": WIDER})
    before = play(BASE, fed, stop=1)
    play(BASE, federation(kind=Watched, models={"site-1": WIDER}), stop=2)
    consensus = torch.stack(list(before.scores.values())).mean(0)
    assert len(before.scores) == 3
    for request in asked[-1].values():
        assert isinstance(request, Collaborate)
        assert request.learn is not None
        assert torch.allclose(request.learn.target, consensus)
        assert request.learn.part == PublicPart(0, 0, 10)
        assert request.show is not None
        assert request.show.part == PublicPart(1, 0, 10)
        assert request.show.kind == "logits"


def test_models_stay_and_the_last_round_shows_nothing() -> None:
    fed = federation()
    state = play(BASE, fed)
    assert state.weights == {}
    assert state.scores == {}
    assert set(models_of(fed)) == set(fed.sites)
    assert BASE.model(state) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 3},
        {"pretrain_rounds": 2},
        {"pretrain_rounds": 0},
        {"pretrain_epochs": 3},
        {"alignment": 4},
        {"digest": "mse"},
        {"digest": "kl"},
        {"digest_epochs": 2},
        {"digest_lr": 0.01},
    ],
    ids=str,
)
def test_every_switch_does_something(change: dict[str, Any]) -> None:
    results = []
    for method in (BASE, dataclasses.replace(BASE, **change)):
        fed = federation()
        play(method, fed)
        results.append(models_of(fed))
    assert distance(*results) > 1e-6


def test_alignment_draws_other_samples_each_round() -> None:
    method = dataclasses.replace(BASE, alignment=4)
    first, second = (set(method.part(number, 10).positions(3, 10).tolist()) for number in (0, 1))
    assert len(first) == len(second) == 4
    assert first != second
    assert dataclasses.replace(BASE, alignment=99).part(0, 10) == PublicPart(0, 0, 10)


def test_one_site_is_its_own_consensus() -> None:
    play(BASE, federation(federated(sites=1)))


@pytest.mark.parametrize("wrong", [{"alignment": 1}, {"digest_epochs": 0}, {"pretrain_rounds": -1}], ids=str)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedMD(**wrong)
