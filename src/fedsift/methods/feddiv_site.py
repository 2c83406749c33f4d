"""FedDiv's training at a site: part its labels by the filter that all sites share, relabel what is doubtful but clear,
train on what stays consistent, and fit the filter anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.local.crossfit import part_of
from fedsift.local.predict import site_logits
from fedsift.local.requests import Train, Trained
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result
from fedsift.methods.feddiv_filter import (
    USUAL,
    WORDS,
    Rules,
    Sifted,
    consistent_labels,
    filter_losses,
    filter_refusal,
    sift,
    usual_prediction,
)
from fedsift.signals.debiased import debiased, running_prior
from fedsift.signals.two_gaussians import TwoGaussians, local_filter

CONSISTENT = "feddiv consistent labels"
"""The notebook page of y°, the debiased label of each sample at the end of the last visit, int64 `[n]`."""
VISITS = "feddiv visits"
"""The notebook page of how often the site has trained behind the filter."""
MOST_EM_STEPS = 10_000
"""Of the filter's fit, that a message may ask for."""
FEWEST = 2
"""Samples to train on."""


@dataclass(frozen=True)
class TrainedBehindFilter(Trained):
    """A model, and the site's filter."""

    filter: Tensor = disclosed(WORDS, least=0.0, default_factory=lambda: torch.ones(3, 2).double())

    def refusal(self, request: Train, facts: SiteFacts) -> str | None:
        return super().refusal(request, facts) or filter_refusal(self.filter)


@dataclass(frozen=True)
class TrainBehindFilter(Train):
    """One visit of Alg. 1: filter, relabel, train on consistent samples, fit the filter anew."""

    reply_type: ClassVar[type[Reply]] = TrainedBehindFilter

    filter: Tensor = field(default_factory=lambda: torch.ones(3, 2).double())
    """W^t: means, variances and shares, clean first, `[3, 2]`."""
    rules: Rules = field(default_factory=Rules)
    em_steps: int | None = field(default=None, metadata={"least": 1, "most": MOST_EM_STEPS})

    def work(self, facts: SiteFacts) -> float:
        """With a look at every sample before each epoch, and one of the filter before and after."""
        return super().work(facts) + (self.recipe.epochs + 1) * facts.samples

    def job(self, site: Site) -> Job | None:  # type: ignore[override]
        super().job(site)
        logits = site_logits(site, self.weights)
        found = sift(site, logits, self.filter, self.rules)
        bench = site.workbench
        bench["epochs"], bench["said"] = 0, found.said
        bench["labels"], bench["usable"], bench["choosy"] = self.believed(site, found)
        return self.part(site, self.weights, logits)

    def believed(self, site: Site, found: Sifted) -> tuple[Tensor, Tensor, bool]:
        """Labels `[n]`, samples that may be trained on `[n]`, and whether they must be consistent.

        A clean site has all of its own; a noisy one its clean samples with their labels, and of the rest those that
        the received model is sure of with its label (eqs. 8, 11).
        """
        if found.noise <= self.rules.noisy_above:
            return site.given, torch.ones_like(found.clean), False
        late = site.notebook.get(VISITS, 0) >= self.rules.pcs_after
        taken = ~found.clean & found.sure & (self.rules.relabel and late)
        return torch.where(taken, found.said, site.given), found.clean | taken, self.rules.pcs and late

    def part(self, site: Site, weights: Weights, logits: Tensor) -> Job | None:
        """The next epoch, or all of them where the choice of samples does not change; None where too few are left."""
        bench, rules = site.workbench, self.rules
        usable, recipe = bench["usable"], self.recipe
        if bench["choosy"] and rules.pcs_when == "epoch":
            usable = usable & (bench["said"] == consistent_labels(site, logits, rules))
            recipe = replace(recipe, epochs=1)
        elif bench["choosy"]:
            last: Tensor = site.notebook.get(CONSISTENT, bench["said"])
            usable = usable & (bench["said"] == last)
        if int(usable.sum()) < FEWEST:
            return None
        own = part_of(site, usable.nonzero().squeeze(-1), bench["labels"])
        bench["epochs"] += recipe.epochs
        return Job(own, weights, recipe, purpose=f"train to epoch {bench['epochs']}")

    def further(self, site: Site, result: Result) -> Job | None:
        if site.workbench["epochs"] >= self.recipe.epochs:
            return None
        return self.part(site, result.weights, site_logits(site, result.weights))

    def reply(self, site: Site, result: Result | None) -> TrainedBehindFilter:
        """The trained model, or the received one where nothing was trained, and the filter of its losses."""
        weights = self.weights if result is None else result.weights
        logits = site_logits(site, weights)
        own = local_filter(
            filter_losses(site, logits, self.rules.scale), TwoGaussians.of(self.filter.numpy()), self.em_steps
        )
        self.remember(site, logits)
        loss = 0.0 if result is None else result.loss
        return TrainedBehindFilter(weights, len(site.samples), loss, filter=torch.from_numpy(own.table))

    def remember(self, site: Site, logits: Tensor) -> None:
        """The site's usual prediction follows (eq. 10); y° is kept for a check at the next visit."""
        p, counted = F.softmax(logits.double(), dim=-1), None
        if self.rules.phat_conf > 0:
            scores = torch.from_numpy(debiased(logits.numpy(), usual_prediction(site), self.rules.xi))
            counted = (F.softmax(scores, dim=-1).max(-1).values > self.rules.phat_conf).numpy()
        usual = running_prior(usual_prediction(site), p.numpy(), self.rules.momentum, counted)
        site.notebook[CONSISTENT] = consistent_labels(site, logits, self.rules)
        site.notebook[USUAL] = torch.from_numpy(usual)
        site.notebook[VISITS] = site.notebook.get(VISITS, 0) + 1
