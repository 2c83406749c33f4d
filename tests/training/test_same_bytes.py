"""The same study, the same bytes: whatever the number of workers, and when one of them is lost."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from fedsift.core.codec import digest_of
from fedsift.models.factory import initial_weights, models
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training import processes
from fedsift.training.objective import CrossEntropy, Proximal
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite, Train, Trained
from fedsift.training.workers import answer_many, cut, predict

CLASSES = tuple("abcd")
UNEQUAL = (5, 2, 7, 3, 6)
"""Sites of one, two and three steps of batches of 3, most of them with a shorter last one."""
LARGE = ("resnet18-imagenet", "resnet34-cifar", "resnet50-imagenet")


def sites(model: str, shape: tuple[int, ...], sizes: tuple[int, ...], **compute: Any) -> list[Site]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 256, (12, *shape), dtype=torch.uint8, generator=generator)
    settings = ComputeSettings(**compute)
    return [
        LocalSite(
            SiteFacts(f"site {number}", n, model=model),
            Samples(pool, torch.randperm(len(pool), generator=generator)[:n]),
            torch.randint(0, len(CLASSES), (n,), generator=generator),
            CLASSES,
            RequestMoment(3, "train", 0, 0),
            compute=settings,
        )
        for number, n in enumerate(sizes)
    ]


def digests(
    model: str, shape: tuple[int, ...], recipe: Recipe, sizes: tuple[int, ...] = UNEQUAL, **compute: Any
) -> list[str]:
    """A fingerprint of every reply, the weights to their last bit."""
    weights = initial_weights(model, shape, len(CLASSES), 0)
    work = [(Train(weights, recipe), site) for site in sites(model, shape, sizes, **compute)]
    replies = answer_many(Train, work)
    assert all(isinstance(reply, Trained) for reply in replies), replies
    return [digest_of(reply) for reply in replies]


MIXED = Recipe(batch_size=3, lr=0.02, momentum=0.5, augment=Augment(flip=True, crop=1), mixup=1.0)


@pytest.mark.parametrize("model", [name for name in models if name not in LARGE])
def test_workers_change_no_bit_of_any_network(model: str) -> None:
    here = digests(model, (3, 16, 16), MIXED, workers=0)
    assert len(set(here)) == len(UNEQUAL)
    assert digests(model, (3, 16, 16), MIXED, workers=2) == here
    if model in ("cnn", "lenet5", "resnet8-cifar"):
        assert digests(model, (3, 16, 16), MIXED, workers=1) == here


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["auto", "cohort", "one"])
@pytest.mark.parametrize("model", list(models))
@pytest.mark.parametrize("recipe", [MIXED, Recipe(batch_size=4, optimiser="adam", lr=0.001, epochs=2)])
def test_workers_change_no_bit_under_any_trainer(model: str, trainer: str, recipe: Recipe) -> None:
    many = UNEQUAL if model in LARGE else (*UNEQUAL, 4, 8, 1, 9, 3, 12, 2)
    here, *others = (
        digests(model, (3, 32, 32), recipe, many, workers=count, trainer=trainer) for count in (0, 1, 2, 3)
    )
    for there in others:
        assert there == here


@pytest.mark.parametrize("trainer", ["cohort", "one"])
@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_a_forced_trainer_has_the_same_bytes_too(model: str, trainer: str) -> None:
    objective = CrossEntropy() + 0.1 * Proximal()
    recipe = Recipe(batch_size=4, optimiser="adam", lr=0.001, epochs=2, objective=objective)
    here, there = (digests(model, (3, 16, 16), recipe, workers=count, trainer=trainer) for count in (0, 2))
    assert there == here


def test_more_threads_are_the_same_everywhere() -> None:
    before = torch.get_num_threads()
    here, there = (digests("cnn", (3, 32, 32), MIXED, workers=count, threads=2) for count in (0, 2))
    assert there == here
    assert torch.get_num_threads() == before


def test_a_lost_worker_costs_no_bit() -> None:
    here = digests("cnn", (3, 16, 16), MIXED, workers=0)
    assert digests("cnn", (3, 16, 16), MIXED, workers=2) == here
    current = processes._current
    assert current is not None
    lost = current._workers[0]
    assert lost is not None
    os.kill(lost._process.pid, signal.SIGKILL)
    assert digests("cnn", (3, 16, 16), MIXED, workers=2) == here


def test_predictions_are_the_same_to_the_last_bit() -> None:
    shape = (3, 16, 16)
    pool = torch.randint(0, 256, (2650, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    samples = Samples(pool, torch.arange(len(pool)))
    for model in ("cnn", "resnet8-cifar"):
        weights = initial_weights(model, shape, len(CLASSES), 1)
        here, there = (
            predict(model, weights, samples, len(CLASSES), ComputeSettings(workers=count)) for count in (0, 2)
        )
        assert here.shape == (2650, len(CLASSES))
        assert torch.equal(here, there)


def test_a_round_is_cut_by_its_sites_alone() -> None:
    work = [(None, site) for site in sites("mlp", (1, 4, 4), (3, 9, 1, 4))]
    assert cut(work) == [[1], [0, 2, 3]]
    assert cut(work, 3) == [[1], [3], [0, 2]]
    assert len(cut([(None, site) for site in sites("mlp", (1, 4, 4), (5,) * 20)])) == 2
    assert [len(part) for part in cut([(None, s) for s in sites("mlp", (1, 4, 4), (5,) * 36)])] == [9] * 4
    large = [(None, site) for site in sites("resnet18-cifar", (3, 16, 16), (3, 9, 1))]
    assert cut(large) == [[0], [1], [2]]
