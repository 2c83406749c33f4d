"""What a site does for FedMLP beside training: tagging missing labels, measuring its own model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.partial import annotated_classes, missing_classes
from fedsift.local.predict import features_of
from fedsift.local.recipe import Augment
from fedsift.local.site import Site
from fedsift.signals.prototypes import local_prototypes
from fedsift.signals.selection import UNTAGGED, local_difficulty, tag

TAGS = "fedmlp: tags"
"""int8 `[n, K]`: 0 or 1 for good, -1 for an entry of a missing class that is not tagged yet."""
TAGGED_IN = "fedmlp: tagged in round"
"""int32 `[n, K]`: the round of each tag, from 1; 0 without one."""
NAME = "fedmlp"


# Missing-label detection, section 2.3 ------------------------------------------------------------------


@dataclass(frozen=True)
class TagCounts(Reply):
    """How far tagging is; which entries were tagged, and how, stays at the site."""

    new: int = disclosed("how many labels of missing classes it tagged in this visit", least=0)
    left: int = disclosed("how many labels of missing classes are still untagged", least=0)

    def refusal(self, request: TagMissing, facts: SiteFacts) -> str | None:
        most = facts.samples * len(missing_classes(facts, len(request.difficulty)))
        for name, value in (("new", self.new), ("left", self.left)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                return f"{name} = {value!r} is no number of labels from 0 to {most}"
        if self.new + self.left > most:
            return f"{self.new} new tags and {self.left} left are more than {most} in all"
        return None


@dataclass(frozen=True)
class TagMissing(Request[TagCounts]):
    """Tag the surest entries of every missing class for good, by nearness to the prototypes (eqs. 7-9)."""

    reply_type: ClassVar[type[Reply]] = TagCounts

    weights: Weights | None
    """theta_G; None inside a training visit, where it is the model received."""
    prototypes: NDArray[np.float64]
    """P_0^c and P_1^c, `[K, 2, F]`."""
    held: NDArray[np.bool_]
    """Which of them exist, `[K, 2]`."""
    difficulty: NDArray[np.float64]
    """d_c^G, `[K]`; ones without the self-adaptive threshold."""
    t0: float = 0.005
    t1: float = 0.01
    min_select: int = 0
    augment: Augment | None = None
    """Look at augmented images, as released code does; None looks at the images themselves."""

    def answer(self, site: Site) -> TagCounts:
        n, missing = len(site.samples), missing_classes(site.facts, site.n_classes)
        if not missing:
            return TagCounts(0, 0)
        tags, when, suspicion = _tag_pages(site, n)
        network = site.network(site.weights_for(self.weights))
        features, _ = features_of(
            network, site.samples, augment=self.augment, generator=site.random("tagging")
        )
        new = 0
        for c in missing:
            negative, positive = (self.prototypes[c, side] if self.held[c, side] else None for side in (0, 1))
            found = tag(
                features.numpy(), negative, positive, tags[:, c], float(self.difficulty[c]),
                self.t0, self.t1, self.min_select,
            )  # fmt: skip
            fresh = np.concatenate([found.negative, found.positive])
            tags[:, c] = found.tags
            when[fresh, c] = site.moment.round + 1
            suspicion[:, c] = np.where(np.isnan(found.score), suspicion[:, c], -found.score)
            new += len(fresh)
        _keep_tags(site, tags, when, suspicion, missing)
        return TagCounts(new, int((tags[:, missing] == UNTAGGED).sum()))


def _tag_pages(site: Site, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Copies of the notebook's pages, `[n, K]` each; empty ones at first."""
    shape = (n, site.n_classes)
    if TAGS not in site.notebook:
        return (
            np.full(shape, UNTAGGED, np.int64),
            np.zeros(shape, np.int32),
            np.full(shape, np.nan, np.float32),
        )
    kept = site.evidence.suspicion
    assert kept is not None
    tags, when, suspicion = site.notebook[TAGS].numpy(), site.notebook[TAGGED_IN].numpy(), kept.numpy()
    return tags.astype(np.int64), when.copy(), suspicion.copy()


def _keep_tags(
    site: Site,
    tags: NDArray[np.int64],
    when: NDArray[np.int32],
    suspicion: NDArray[np.float32],
    missing: list[int],
) -> None:
    """Write the pages and the evidence: labels with every tag in its place, and which are known.

    suspicion: -Z, high for a 0 that is probably a 1; frozen once tagged, NaN if never looked at. flagged: zeros of
    missing classes that were tagged 1.
    """
    site.notebook[TAGS] = torch.from_numpy(tags.astype(np.int8))
    site.notebook[TAGGED_IN] = torch.from_numpy(when)
    known = np.ones(tags.shape, np.bool_)
    known[:, missing] = tags[:, missing] != UNTAGGED
    labels = site.given.clone()
    labels[:, missing] = torch.from_numpy(tags[:, missing] == 1).to(labels.dtype)
    site.keep_evidence(
        NAME,
        labels=labels,
        known=torch.from_numpy(known),
        flagged=torch.from_numpy(tags == 1),
        suspicion=torch.from_numpy(suspicion),
    )


# What a site tells of its model, Alg. 1 "Local Calculation" --------------------------------------------


def measured_classes(facts: SiteFacts, n_classes: int, over: str) -> list[int]:
    """Classes whose difficulty a site measures."""
    return (missing_classes if over == "missing" else annotated_classes)(facts, n_classes)


@dataclass(frozen=True)
class Portrait(Reply):
    """A site's prototypes and its view of the classes' difficulty."""

    prototypes: Tensor = disclosed("mean feature of samples without and with each annotated class, [A, 2, F]")
    held: Tensor = disclosed("which of these means exist, [A, 2]")
    difficulty: Tensor = disclosed(
        "share of confident predictions for each class measured, [M]", least=0.0, most=1.0
    )

    def refusal(self, request: Portray, facts: SiteFacts) -> str | None:
        active = len(annotated_classes(facts, request.classes))
        measured = len(measured_classes(facts, request.classes, request.difficulty_over))
        wanted = (active, 2, request.width)
        if self.prototypes.shape != wanted or self.held.shape != wanted[:2]:
            return f"the prototypes have shape {tuple(self.prototypes.shape)}, asked were {wanted}"
        if self.prototypes.dtype != torch.float32 or self.held.dtype != torch.bool:
            return "the prototypes' types are wrong"
        if self.difficulty.shape != (measured,) or self.difficulty.dtype != torch.float64:
            return f"the difficulties have shape {tuple(self.difficulty.shape)}, asked were ({measured},)"
        if bool(((self.difficulty < 0) | (self.difficulty > 1)).any()):
            return "a difficulty is no share from 0 to 1"
        return None


@dataclass(frozen=True)
class Portray(Request[Portrait]):
    """Prototypes of the annotated classes (eq. 5) and difficulty of the others (eq. 10) under a model."""

    reply_type: ClassVar[type[Reply]] = Portrait

    weights: Weights | None
    """theta_k; None inside a training visit, where it is the model just trained."""
    classes: int
    width: int
    """F: length of a feature vector."""
    low: float = 0.3
    high: float = 0.7
    difficulty_over: Literal["missing", "active"] = "missing"
    least_members: int = 1
    """Withhold a mean over fewer samples."""
    augment: Augment | None = None

    def answer(self, site: Site) -> Portrait:
        active = annotated_classes(site.facts, self.classes)
        network = site.network(site.weights_for(self.weights))
        features, logits = features_of(
            network, site.samples, augment=self.augment, generator=site.random("portrait")
        )
        given = site.given.numpy()[:, active]
        found = local_prototypes(features.numpy(), given, range(len(active)))
        members = np.stack([(given == 0).sum(0), (given == 1).sum(0)], axis=1)
        held = found.held & (members >= self.least_members)
        sure = local_difficulty(torch.sigmoid(logits.double()).numpy(), self.low, self.high)
        return Portrait(
            torch.from_numpy(np.where(held[..., None], found.vectors, 0.0)).to(torch.float32),
            torch.from_numpy(held),
            torch.from_numpy(sure[measured_classes(site.facts, self.classes, self.difficulty_over)]),
        )
