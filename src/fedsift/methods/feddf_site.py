"""FedDF at a site: distil the group's average, train it privately, send it back with its public scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsift.contract import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.own import OwnEvaluated, judge
from fedsift.local.plan import reach
from fedsift.local.public import Lesson, Show, learn
from fedsift.local.recipe import Recipe
from fedsift.local.requests import TrainingRequest, count_refusal, weights_refusal
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result


@dataclass(frozen=True)
class Contributed(Reply):
    """A site's model and what it predicts for the public samples."""

    weights: Weights = disclosed("the site's model after local training", update="weights")
    outputs: Tensor | None = disclosed("that model's logits for the public, unlabelled samples, [N0, K]")
    samples: int = disclosed("how many samples it trained on")
    loss: float = disclosed("mean training loss over the local steps")

    def refusal(self, request: Contribute, facts: SiteFacts) -> str | None:
        problem = weights_refusal(self.weights, request.weights)
        problem = problem or count_refusal("samples", self.samples, facts.samples)
        if problem is None and request.show is not None:
            problem = request.show.refusal(self.outputs)
        if problem is None and request.show is None and self.outputs is not None:
            problem = "the reply holds public predictions that were not asked for"
        return problem

    def moves(self, request: Contribute) -> tuple[tuple[Weights, Weights], ...]:
        return ((self.weights, request.weights),)


@dataclass(frozen=True)
class Contribute(TrainingRequest[Contributed]):
    """Distil the ensemble into these weights, train them privately, send them with their public scores."""

    reply_type: ClassVar[type[Reply]] = Contributed

    weights: Weights
    lesson: Lesson | None
    recipe: Recipe
    show: Show | None

    def reach(self, samples: int) -> float:
        return reach(samples, self.recipe)

    def job(self, site: Site) -> Job:
        return Job(site, student_of(site, self.weights, self.lesson), self.recipe)

    def reply(self, site: Site, result: Result | None) -> Contributed:
        assert result is not None
        outputs = None if self.show is None else self.show.outputs(site, result.weights)
        return Contributed(result.weights, outputs, len(site.samples), result.loss)


def student_of(site: Site, weights: Weights, lesson: Lesson | None) -> Weights:
    """The group's student. Every site of a group makes the same one: order and dropout are shared."""
    return weights if lesson is None else learn(site, weights, lesson)


@dataclass(frozen=True)
class EvaluateStudent(Request[OwnEvaluated]):
    """Judge the student that the ensemble makes of these weights."""

    reply_type: ClassVar[type[Reply]] = OwnEvaluated

    weights: Weights
    lesson: Lesson | None

    def answer(self, site: Site) -> OwnEvaluated:
        return judge(site, student_of(site, self.weights, self.lesson))
