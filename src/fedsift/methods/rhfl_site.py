"""RHFL at a site: the symmetric loss that sites train on, and the mean loss by which they are trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.contract import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.objective import Objective
from fedsift.local.own import MeasuredOn, held_out_of, mean_objective
from fedsift.local.recipe import Augment
from fedsift.local.requests import count_refusal
from fedsift.local.site import Site


@dataclass(frozen=True)
class PrivateLoss(Reply):
    """A site's mean loss."""

    value: float = disclosed("mean loss of the model over the site's own samples and labels", least=0.0)
    samples: int = disclosed("how many samples it was measured on")

    def refusal(self, request: MeasureLoss, facts: SiteFacts) -> str | None:
        if not isinstance(self.value, float) or self.value < 0:
            return f"the private loss is {self.value!r}: it must be a number that is not negative"
        measured = facts.held_out if request.on == "held out" else facts.samples
        return count_refusal("samples", self.samples, measured)


@dataclass(frozen=True)
class MeasureLoss(Request[PrivateLoss]):
    """L_k = mean of the objective over the site's samples (the denominator of eq. 9)."""

    reply_type: ClassVar[type[Reply]] = PrivateLoss

    weights: Weights | None
    objective: Objective
    augment: Augment | None = None
    on: MeasuredOn = "own"

    def answer(self, site: Site) -> PrivateLoss:
        value = mean_objective(site, site.weights_for(self.weights), self.objective, self.augment, self.on)
        return PrivateLoss(value, len(held_out_of(site)[0] if self.on == "held out" else site.samples))
