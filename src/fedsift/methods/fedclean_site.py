"""FedClean at a site: a learner of its own disputes labels, the global model settles the disputes, and the site trains
on what counts as right so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.crossfit import part_of
from fedsift.local.pairs import TrainPair
from fedsift.local.predict import site_logits
from fedsift.local.requests import Train, Trained, TrainingRequest, count_refusal
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result
from fedsift.signals.disputes import Settled, settle_by_agreement, settle_by_model

NAME = "fedclean"
LOCAL = "fedclean local labels"
"""The notebook page of y_bar, what the site's own learner says of each sample, int64 `[n]`."""
PARTS = "fedclean parts"
"""The notebook page of the part that each sample belongs to, int64 `[n]`."""

TOGETHER = "fedclean collaborative loss"
"""The notebook page of L_co, float64 `[n]`; NaN where the models do not agree against the given label."""


class Part(IntEnum):
    """Where a sample stands."""

    DISPUTED = 0
    """The site's own learner says otherwise."""
    AGREED = 1
    """A_k: it says the same."""
    FIRST = 2
    """B_k: both models say otherwise, its label is theirs now."""
    SECOND = 3
    """C_k: the global model is sure of another label, which it has now."""
    CLEARED = 4
    """H2: disputed, but the global model finds nothing wrong."""


@dataclass(frozen=True)
class Counted(Reply):
    """How many samples a site trains on from now on; which, stays there."""

    used: int = disclosed("how many of its labels count as right, given ones and corrected ones together")

    def refusal(self, request: Request[Counted], facts: SiteFacts) -> str | None:
        return count_refusal("used", self.used, facts.samples, least=0)


def counted(site: Site) -> Counted:
    return Counted(site.told(int((site.notebook[PARTS] != Part.DISPUTED).sum())))


# Preprocessing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SortByOwnLearner(TrainingRequest[Counted]):
    """Train a model for this site alone by a central noisy-label method; labels that it contradicts are disputed."""

    reply_type: ClassVar[type[Reply]] = Counted

    weights: Weights
    """What the model starts from, and its twin where the learner has two."""
    twin: Weights
    parts: tuple[Train, ...]
    """The learner, part by part: each goes on with the model that the last one left. Their replies stay at the site."""

    @property
    def besides(self) -> tuple[Request[Any], ...]:
        """What rides on the learner's parts; the parts themselves are this request's own and tell nothing."""
        return tuple(rider for part in self.parts for rider in part.besides)

    def job(self, site: Site) -> Job:
        site.workbench["part"], site.workbench["pages"] = 0, set(site.notebook)
        return self.part(site, self.weights, self.twin)

    def part(self, site: Site, weights: Weights, twin: Weights) -> Job:
        number = site.workbench["part"]
        own = replace(self.parts[number], weights=weights)
        if isinstance(own, TrainPair):
            own = replace(own, twin=twin)
        site.workbench["learner"] = own
        job: Job = own.job(site)
        return replace(job, purpose=f"own learner, part {number + 1}")

    def further(self, site: Site, result: Result) -> Job | None:
        site.workbench["learner"].reply(site, result)
        site.workbench["part"] += 1
        if site.workbench["part"] == len(self.parts):
            return None
        return self.part(site, result.weights, {} if result.twin is None else result.twin.weights)

    def reply(self, site: Site, result: Result | None) -> Counted:
        """A_k = {y_bar = y}; all others are held suspect for now."""
        assert result is not None
        logits = site_logits(site, result.weights)
        said = logits.argmax(-1)
        disputed = said != site.given
        for page in set(site.notebook) - site.workbench["pages"]:
            del site.notebook[page]  # the learner's own, labels that it believes among them: it has served
        site.notebook[LOCAL] = said
        site.notebook[PARTS] = torch.where(disputed, int(Part.DISPUTED), int(Part.AGREED))
        doubt = 1 - F.softmax(logits.double(), dim=-1).gather(1, site.given.unsqueeze(1)).squeeze(1)
        site.keep_evidence(NAME, flagged=disputed, proposed=said, suspicion=doubt)
        return counted(site)


# Corrections -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettleByAgreement(Request[Counted]):
    """Sub-stage I: where the global model sides with the site's own against a label, the surest are corrected."""

    reply_type: ClassVar[type[Reply]] = Counted

    weights: Weights
    ratio: float = 0.5
    """sigma_1"""

    def answer(self, site: Site) -> Counted:
        disputed = (site.notebook[PARTS] == Part.DISPUTED).numpy()
        said = site.notebook[LOCAL].numpy()
        log_p = F.log_softmax(site_logits(site, self.weights).double(), dim=-1)
        found = settle_by_agreement(log_p.numpy(), site.given.numpy(), said, disputed, self.ratio)
        site.notebook[TOGETHER] = torch.from_numpy(found.score)
        return _settled(site, found, Part.FIRST, log_p)


@dataclass(frozen=True)
class SettleByModel(Request[Counted]):
    """Sub-stage II: the global model clears labels, and gives its own where it is sure."""

    reply_type: ClassVar[type[Reply]] = Counted

    weights: Weights
    ratio: float = 0.5
    """sigma_2"""
    sure: float = 0.5
    """epsilon"""

    def answer(self, site: Site) -> Counted:
        rest = (site.notebook[PARTS] == Part.DISPUTED).numpy()
        log_p = F.log_softmax(site_logits(site, self.weights).double(), dim=-1)
        found = settle_by_model(log_p.numpy(), site.given.numpy(), rest, self.ratio, self.sure)
        return _settled(site, found, Part.SECOND, log_p)


def _settled(site: Site, found: Settled, part: Part, log_p: Tensor) -> Counted:
    """Move samples to their new parts, believe corrected labels, and keep, at the site, why.

    Suspicion is L_co where that is defined, else the global model's loss on the given label (L_an).
    """
    parts: Tensor = site.notebook[PARTS].clone()
    parts[torch.from_numpy(found.corrected)] = part
    parts[torch.from_numpy(found.cleared)] = Part.CLEARED
    site.notebook[PARTS] = parts
    labels = site.labels.clone()
    changed = torch.from_numpy(found.corrected)
    labels[changed] = torch.from_numpy(found.labels)[changed]
    open_ = parts == Part.DISPUTED
    together: Tensor = site.notebook.get(TOGETHER, torch.full((len(parts),), torch.nan).double())
    proposed = torch.where(open_, log_p.argmax(-1), labels)
    site.keep_evidence(
        NAME,
        labels=labels,
        flagged=open_ | (labels != site.given),
        proposed=proposed,
        suspicion=torch.where(together.isnan(), F.nll_loss(log_p, site.given, reduction="none"), together),
    )
    return counted(site)


# Training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedOnParts(Trained):
    """A model, and what it counts for."""

    fewest: ClassVar[int] = 0

    samples: int = disclosed("how many samples count as right so far, which its model is weighed by")


@dataclass(frozen=True)
class TrainOnParts(Train):
    """Train on the samples of some parts, under the labels that they have by now; none: the model stays as it is."""

    reply_type: ClassVar[type[Reply]] = TrainedOnParts

    use: tuple[int, ...] = (int(Part.AGREED),)

    def job(self, site: Site) -> Job | None:  # type: ignore[override]
        super().job(site)
        chosen = torch.isin(site.notebook[PARTS], torch.tensor(self.use))
        if not bool(chosen.any()):
            return None
        return Job(part_of(site, chosen.nonzero().squeeze(-1)), self.weights, self.recipe)

    def reply(self, site: Site, result: Result | None) -> TrainedOnParts:
        used = counted(site).used
        if result is None:
            return TrainedOnParts(self.weights, used, 0.0)
        return TrainedOnParts(result.weights, used, result.loss)
