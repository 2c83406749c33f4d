"""What a site does for FedCorr: score its model, split and correct its labels. Both stay there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.losses import sample_loss
from fedsift.local.predict import site_logits
from fedsift.local.recipe import Augment
from fedsift.local.requests import count_refusal
from fedsift.local.site import Site
from fedsift.signals.lid import Form as LidForm
from fedsift.signals.lid import site_lid
from fedsift.signals.lone_posterior import lone_posterior
from fedsift.signals.mixture import split_values
from fedsift.signals.relabel import Form, Relabelled, relabel, relabel_all

NAME = "fedcorr"
LOSSES = "fedcorr losses"
"""The notebook page of the per-sample losses of the last visit, under the labels of that time."""
HIGHEST_LID = 100.0
"""A guarded LID is no larger: equidistant neighbours would give a million and decide for a site."""

SampleLoss = Literal["ce_on_softmax", "ce"]
Belief = Literal["argmax", "posterior"]
"""What eq. 7 reads a new label from: the global model's prediction, or the audit's posterior of the true label."""


def losses_of(logits: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Per-sample losses, float64 `[n]`."""
    target = torch.nn.functional.one_hot(labels, logits.shape[-1]).double()
    return sample_loss(logits.double(), target, kind)


@dataclass(frozen=True)
class Scored(Reply):
    """All that the server learns of a site's predictions: one number."""

    lid: float = disclosed(
        "mean local intrinsic dimensionality of the local model's predictions", least=0.0, most=1e9
    )
    samples: int = disclosed("how many samples it was measured on")

    def refusal(self, request: ScoreModel, facts: SiteFacts) -> str | None:
        if not isinstance(self.lid, float) or self.lid < 0:
            return f"lid = {self.lid!r} is no dimensionality"
        return count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class ScoreModel(Request[Scored]):
    """LID score of the model just trained (eq. 2, Alg. 1 line 7); per-sample losses stay in the notebook."""

    reply_type: ClassVar[type[Reply]] = Scored

    weights: Weights | None = None
    k: int = 20
    form: LidForm = "guarded"
    floor: float = 0.0
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    """Measure on augmented images, as released; None measures on the images themselves."""

    def answer(self, site: Site) -> Scored:
        logits = site_logits(site, site.weights_for(self.weights), augment=self.augment)
        # float32: how many predictions saturate to the same vector, and so score 0, depends on the precision
        rows = torch.softmax(logits.float(), -1).numpy()
        highest = HIGHEST_LID if self.form == "guarded" else None
        score = site_lid(rows, self.k, self.form, floor=self.floor, highest=highest)
        site.notebook[LOSSES] = losses_of(logits, site.labels, self.sample_loss)
        # a new measurement ends the suspicions of the last one; only a changed label stays marked
        site.keep_evidence(
            NAME,
            suspicion=losses_of(logits, site.given, self.sample_loss),
            flagged=site.labels != site.given,
        )
        return Scored(score, len(site.samples))


@dataclass(frozen=True)
class Corrected(Reply):
    """How much a site found and changed; which samples stays its secret."""

    flagged: int = disclosed(
        "how many samples it holds suspect: its estimated noise level; 0 below its floor"
    )
    relabelled: int = disclosed("how many of them took the global model's label")
    changed: int = disclosed("how many labels are another one now")
    samples: int = disclosed("how many samples the site has")

    def refusal(self, request: CorrectLabels | RelabelConfident, facts: SiteFacts) -> str | None:
        return (
            count_refusal("samples", self.samples, facts.samples)
            or count_refusal("flagged", self.flagged, self.samples, least=0)
            or count_refusal("relabelled", self.relabelled, self.samples, least=0)
            or count_refusal("changed", self.changed, self.relabelled, least=0)
        )

    @property
    def level(self) -> float:
        """mu_hat_k = |D_n| / |D_k| (Alg. 1 line 12)."""
        return self.flagged / self.samples


@dataclass(frozen=True)
class CorrectLabels(Request[Corrected]):
    """Split the site's samples by their losses, relabel the most suspicious ones (eqs. 6-7, lines 11-13)."""

    reply_type: ClassVar[type[Reply]] = Corrected

    weights: Weights
    """f_G: the global model at the end of the iteration."""
    ratio: float = 0.5
    theta: float = 0.5
    form: Form = "official"
    rank_by: Literal["local", "global"] = "local"
    relabel: bool = True
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    by: Belief = "argmax"

    def answer(self, site: Site) -> Corrected:
        losses = site.notebook[LOSSES].numpy()
        noisy = split_values(losses).noisy
        if not self.relabel:
            site.keep_evidence(NAME, flagged=_marks(site.labels, site.given, noisy))
            return Corrected(site.told(len(noisy)), 0, 0, len(site.samples))
        logits = site_logits(site, self.weights, augment=self.augment)
        if self.rank_by == "global":
            losses = losses_of(logits, site.labels, self.sample_loss).numpy()
        believed = _believed(site, logits, self.by)
        result = relabel(site.labels.numpy(), losses, noisy, believed, self.ratio, self.theta, self.form)
        return _apply(site, result, noisy, believed)


@dataclass(frozen=True)
class RelabelConfident(Request[Corrected]):
    """Every sample that the finetuned model is sure of takes its label (section 3.3, Alg. 1 lines 17-18)."""

    reply_type: ClassVar[type[Reply]] = Corrected

    weights: Weights
    theta: float = 0.5
    form: Form = "official"
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    by: Belief = "argmax"

    def answer(self, site: Site) -> Corrected:
        logits = site_logits(site, self.weights, augment=self.augment)
        believed = _believed(site, logits, self.by)
        result = relabel_all(site.labels.numpy(), believed, self.theta, self.form)
        site.keep_evidence(NAME, suspicion=losses_of(logits, site.given, self.sample_loss))
        return _apply(site, result, result.changed, believed)


def _believed(site: Site, logits: Tensor, by: Belief) -> NDArray[np.float64]:
    """What the true label is `[n, K]`: the model's word, or with it the given label's and how often the site errs."""
    probabilities = np.asarray(torch.softmax(logits.double(), -1).numpy())
    # as it was given: a label that the method wrote is the model's word once more
    return probabilities if by == "argmax" else lone_posterior(probabilities, site.given.numpy())


def _apply(
    site: Site, result: Relabelled, flagged: NDArray[np.int64], believed: NDArray[np.float64]
) -> Corrected:
    """Believe the new labels and keep, at the site, why."""
    labels = torch.from_numpy(result.labels)
    marks = _marks(labels, site.given, flagged)
    site.keep_evidence(NAME, labels=labels, flagged=marks, proposed=torch.from_numpy(believed.argmax(-1)))
    suspect, relabelled, changed = map(len, (flagged, result.relabelled, result.changed))
    return Corrected(site.told(suspect), site.told(relabelled), site.told(changed), len(site.samples))


def _marks(labels: Tensor, given: Tensor, flagged: NDArray[np.int64]) -> Tensor:
    """bool `[n]`: under suspicion now, or no longer the given label."""
    marks = labels != given
    marks[torch.from_numpy(flagged)] = True
    return marks
