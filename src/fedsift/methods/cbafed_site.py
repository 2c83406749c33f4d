"""CBAFed at a site: tag missing labels that the received model is sure of, by a threshold for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.losses import confident_tags
from fedsift.local.predict import site_logits
from fedsift.local.requests import count_refusal
from fedsift.local.site import Site

NAME = "cbafed"


@dataclass(frozen=True)
class Used(Reply):
    """How many labels a site trains on; which, stays there."""

    labels: int = disclosed("how many labels it trains on, given ones and those that it tagged itself")
    positives: Tensor = disclosed("how many of them say yes, for each class, [K]; 0 below the site's floor")

    def refusal(self, request: TagByThreshold, facts: SiteFacts) -> str | None:
        if self.positives.shape != (request.classes,) or self.positives.dtype != torch.int64:
            return f"the positives have shape {tuple(self.positives.shape)}, asked were {request.classes} integers"
        if bool((self.positives < 0).any()) or bool((self.positives > facts.samples).any()):
            return f"the positives are not from 0 to the {facts.samples} samples that the site declared"
        return count_refusal("labels", self.labels, facts.samples * request.classes, least=0)


@dataclass(frozen=True)
class TagByThreshold(Request[Used]):
    """Give missing classes the labels that the received model is sure of; earlier tags are forgotten."""

    reply_type: ClassVar[type[Reply]] = Used

    classes: int
    thresholds: tuple[float, ...] = ()
    """tau_c; empty: no tags, only the counts."""
    weights: Weights | None = None
    """None: the model received with the training that this is a part of."""

    def answer(self, site: Site) -> Used:
        shape = len(site.samples), site.n_classes
        annotated = (torch.ones(site.n_classes) if site.known is None else site.known).expand(shape) > 0
        labels, known = site.given.clone(), annotated
        if self.thresholds:
            p = torch.sigmoid(site_logits(site, site.weights_for(self.weights)).double())
            tags, sure = confident_tags(p, torch.tensor(self.thresholds, dtype=torch.float64))
            known = annotated | sure
            labels = torch.where(annotated, site.given, torch.where(sure, tags.to(site.given.dtype), 0))
            site.keep_evidence(NAME, labels=labels, known=known, proposed=labels)
        positives = (labels * known).sum(0).to(torch.int64)
        return Used(site.told(int(known.sum())), positives.masked_fill(positives < site.smallest, 0))
