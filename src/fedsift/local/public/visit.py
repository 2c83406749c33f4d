"""One visit to a site that keeps its model: learn, train, measure, show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedsift.contract.messages import Reply, SiteFacts, disclosed
from fedsift.local.objective import Objective
from fedsift.local.own import MeasuredOn, keep_model, mean_objective, own_model
from fedsift.local.public.learning import Lesson, learn
from fedsift.local.public.showing import Show
from fedsift.local.recipe import Augment, Recipe
from fedsift.local.requests import TrainingRequest, count_refusal
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result


@dataclass(frozen=True)
class Collaborated(Reply):
    """What leaves a site that keeps its model: predictions for public samples, and scalars."""

    outputs: Tensor | None = disclosed("the site's predictions for the public, unlabelled samples, [N0, K]")
    private_loss: float | None = disclosed(
        "mean loss of the site's model over its own samples and labels", least=0.0
    )
    loss: float = disclosed("mean training loss over the local steps (0 without training)")
    samples: int = disclosed("how many samples the site has")

    def refusal(self, request: Collaborate, facts: SiteFacts) -> str | None:
        problem = count_refusal("samples", self.samples, facts.samples)
        if problem is None and request.show is not None:
            problem = request.show.refusal(self.outputs)
        if problem is None and request.show is None and self.outputs is not None:
            problem = "the reply holds public predictions that were not asked for"
        if problem is None and request.measure is not None:
            problem = _loss_refusal(self.private_loss)
        return problem


def _loss_refusal(value: Any) -> str | None:
    if not isinstance(value, float):
        return f"the private loss is {value!r}, not a number"
    return f"the private loss is {value:.3g}: it cannot be negative" if value < 0 else None


@dataclass(frozen=True)
class Collaborate(TrainingRequest[Collaborated]):
    """One visit, in this order, each part optional: learn from the others, train privately, measure, show."""

    reply_type: ClassVar[type[Reply]] = Collaborated

    learn: Lesson | None = None
    train: Recipe | None = None
    measure: Objective | None = None
    """Tell the mean of this objective over the private samples."""
    measure_augment: Augment | None = None
    """Measure on augmented images, as released code does; None measures on the images themselves."""
    measure_on: MeasuredOn = "own"
    show: Show | None = None

    def job(self, site: Site) -> Job | None:
        weights = own_model(site)
        if self.learn is not None:
            weights = learn(site, weights, self.learn)
        site.workbench["trained"] = weights
        return None if self.train is None else Job(site, weights, self.train)

    def reply(self, site: Site, result: Result | None) -> Collaborated:
        weights = site.workbench["trained"] if result is None else result.weights
        if self.learn is not None or self.train is not None:
            keep_model(site, weights)
        private_loss = None
        if self.measure is not None:
            private_loss = mean_objective(site, weights, self.measure, self.measure_augment, self.measure_on)
        outputs = None if self.show is None else self.show.outputs(site, weights)
        loss = 0.0 if result is None else result.loss
        return Collaborated(outputs, private_loss, loss, len(site.samples))
