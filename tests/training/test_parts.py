"""A visit that trains in several parts: each goes on from the last, and a site's failure is its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsift.protocol.messages import Reply, Weights, disclosed
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import CrossEntropy, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import TrainingRequest
from fedsift.training.trainer import train_one
from tests.training.small import linear_weights, make_site

RECIPE = Recipe(lr=0.1, batch_size=2, objective=as_objective(CrossEntropy()))
START = linear_weights(2, 2)


@dataclass(frozen=True)
class PartsDone(Reply):
    parts: int = disclosed("how many parts were trained", "setting")


@dataclass(frozen=True)
class InParts(TrainingRequest[PartsDone]):
    """As many parts as the notebook says; -1 breaks in the second."""

    reply_type: ClassVar[type[Reply]] = PartsDone

    weights: Weights

    def job(self, site: Site) -> TrainingJob | None:
        site.workbench["done"] = 0
        return TrainingJob(site, self.weights, RECIPE) if site.notebook["parts"] else None

    def further(self, site: Site, result: TrainingResult) -> TrainingJob | None:
        site.workbench["done"] += 1
        if site.notebook["parts"] == -1:
            raise ValueError("broken in the second part")
        if site.workbench["done"] == site.notebook["parts"]:
            return None
        return TrainingJob(site, result.weights, RECIPE, purpose=f"part {site.workbench['done']}")

    def reply(self, site: Site, result: TrainingResult | None) -> PartsDone:
        site.notebook["model"] = None if result is None else result.weights
        return PartsDone(site.workbench["done"])


def made(parts: int) -> Site:
    site = make_site(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 1, 0]), 2)
    site.notebook["parts"] = parts
    return site


def test_sites_of_one_process_train_as_many_parts_as_each_wants() -> None:
    sites = [made(parts) for parts in (2, 0, -1, 1, 3)]
    outcomes: list[Any] = InParts.answer_many([(InParts(START), site) for site in sites])
    assert [outcome.parts for outcome in outcomes if isinstance(outcome, PartsDone)] == [2, 0, 1, 3]
    assert isinstance(outcomes[2], ValueError) and "second part" in str(outcomes[2])
    assert sites[1].notebook["model"] is None


def test_a_part_goes_on_from_the_last() -> None:
    site = made(2)
    assert InParts(START).answer(site).parts == 2
    first = train_one(TrainingJob(site, START, RECIPE))
    second = train_one(TrainingJob(site, first.weights, RECIPE, purpose="part 1"))
    torch.testing.assert_close(site.notebook["model"]["layer.weight"], second.weights["layer.weight"])
