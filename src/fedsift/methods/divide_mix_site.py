"""DivideMix at a site: part the samples by the other network's losses, make labels for both parts, train on
mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.contract.messages import Reply, SiteFacts
from fedsift.local import losses
from fedsift.local.belief import clean_votes
from fedsift.local.extras import Extra, PerSample
from fedsift.local.objective import Term, View
from fedsift.local.pairs import TrainedPair, TrainPair
from fedsift.local.predict import logits_of_each
from fedsift.local.site import Site
from fedsift.local.trainer import Job

NAME = "dividemix"
ITERATIONS = 10
"""Of the mixture, as released."""
GUESSES = "dividemix labels"
"""Refined and guessed labels, `[n, K]`."""
LABELLED = "dividemix labelled"
"""1 for samples whose given label counts, `[n]`."""


def made_labels(
    given: Tensor, clean: Tensor, own: Tensor, other: Tensor, threshold: float = 0.5, temperature: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Labels `[n, K]` to train on and who counts as labelled, `[n]` (section 3.2, eqs. 3-8).

    given: one-hot `[n, K]`; clean: w, the other network's belief in each given label, `[n]`; own, other: mean
    predictions of this network and of the other over augmented views, `[n, K]`. A believed label is blended with the
    own prediction, w y + (1 - w) p; for the rest both networks guess together. Both are sharpened.
    """
    labelled = clean > threshold
    w = clean.unsqueeze(-1)
    refined = w * given + (1 - w) * own
    guessed = (own + other) / 2
    labels = losses.sharpened(torch.where(labelled.unsqueeze(-1), refined, guessed), temperature)
    return labels, labelled.to(given.dtype)


@dataclass(frozen=True)
class Divided(Term):
    """Mean loss over one part of a mixed batch: cross-entropy over the labelled (eq. 10), mean squared error of the
    probabilities over the unlabelled (eq. 11). A mixed row belongs to the part of the sample that it has most of."""

    needs: ClassVar[frozenset[str]] = frozenset({GUESSES, LABELLED})

    part: Literal["labelled", "unlabelled"] = "labelled"

    def value(self, view: View) -> Tensor:
        labels, labelled = view.rows(GUESSES), view.rows(LABELLED) > 0.5
        if self.part == "labelled":
            per_sample, counted = losses.cross_entropy(view.logits, labels), labelled
        else:
            per_sample = (F.softmax(view.logits, dim=-1) - labels).square().mean(-1)
            counted = ~labelled
        chosen = counted.to(per_sample.dtype) * view.present
        return (per_sample * chosen).sum(-1) / chosen.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class TrainDivided(TrainPair):
    """Divide the samples twice, once for each network by the other's losses, and train both networks in step."""

    reply_type: ClassVar[type[Reply]] = TrainedPair

    threshold: float = 0.5
    temperature: float = 0.5
    views: int = 2
    guarded: bool = False
    balanced: bool = False
    """See `clean_votes`."""

    def work(self, facts: SiteFacts) -> float:
        """With both networks' guesses for every view."""
        return super().work(facts) + 2 * max(self.views, 0) * facts.samples

    def job(self, site: Site) -> Job:
        given = F.one_hot(site.labels, site.n_classes).double()
        networks = [site.network(self.weights), site.network(self.twin, slot="twin")]
        logits = [own.double() for own in logits_of_each(networks, site.samples)]
        clean = [
            torch.from_numpy(clean_votes(own, site.labels, self.guarded, self.balanced, ITERATIONS))
            for own in logits
        ]
        believed = self.predictions(site, networks, logits)
        site.workbench["divided"] = [
            self.divide(given, clean[1 - side], believed[side], believed[1 - side]) for side in (0, 1)
        ]
        belief = np.mean([own.numpy() for own in clean], axis=0)
        flagged = torch.from_numpy(belief <= self.threshold)
        proposed = torch.where(flagged, (believed[0] + believed[1]).argmax(-1), site.given)
        site.keep_evidence(NAME, suspicion=torch.from_numpy(1 - belief), flagged=flagged, proposed=proposed)
        return super().job(site)

    def predictions(self, site: Site, networks: Sequence[nn.Module], plain: list[Tensor]) -> list[Tensor]:
        """Both networks' mean probabilities over augmented views, `[n, K]`; without augmentation all views are the
        sample itself."""
        augment = self.recipe.augment
        views = [
            logits_of_each(networks, site.samples, augment=augment, generator=site.random(f"guess {view}"))
            for view in range(self.views if augment.active else 0)
        ]
        seen = list(zip(*views)) if views else [(own,) for own in plain]
        return [torch.stack([torch.softmax(z.double(), -1) for z in own]).mean(0) for own in seen]

    def divide(self, given: Tensor, clean: Tensor, own: Tensor, other: Tensor) -> dict[str, Extra]:
        labels, labelled = made_labels(given, clean, own, other, self.threshold, self.temperature)
        return {GUESSES: PerSample(labels.float()), LABELLED: PerSample(labelled.float())}

    def extras(self, site: Site) -> dict[str, Extra]:
        found: dict[str, Extra] = site.workbench["divided"][0]
        return found

    def twin_extras(self, site: Site) -> dict[str, Extra]:
        found: dict[str, Extra] = site.workbench["divided"][1]
        return found
