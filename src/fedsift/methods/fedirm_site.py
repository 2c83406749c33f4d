"""FedIRM at a site: what its model says of all classes where one that it annotates is present, and training beside what
other sites' models say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.extras import Extra, PerSite
from fedsift.local.following import TrainWithAverage
from fedsift.local.losses import relation_matrix
from fedsift.local.partial import RELATED, RELATIONS, annotated_classes
from fedsift.local.predict import site_logits
from fedsift.local.requests import Trained
from fedsift.local.site import Site


@dataclass(frozen=True)
class Relations(Reply):
    """A site's rows of the relation matrix."""

    rows: Tensor = disclosed(
        "what its model says of every class, on average over its samples with each class that it annotates, [A, K]",
        least=0.0,
        most=1.0,
    )
    held: Tensor = disclosed("which of these rows exist, [A]")

    def refusal(self, request: Relate, facts: SiteFacts) -> str | None:
        wanted = (len(annotated_classes(facts, request.classes)), request.classes)
        if self.rows.shape != wanted or self.held.shape != wanted[:1]:
            return f"the relations have shape {tuple(self.rows.shape)}, asked were {wanted}"
        if self.rows.dtype != torch.float32 or self.held.dtype != torch.bool:
            return "the relations' types are wrong"
        if bool(((self.rows < 0) | (self.rows > 1)).any()):
            return "a relation is no probability from 0 to 1"
        return None


@dataclass(frozen=True)
class Relate(Request[Relations]):
    """sigmoid(mean logit / T) over the positives of each annotated class, under a model."""

    reply_type: ClassVar[type[Reply]] = Relations

    classes: int
    temperature: float = 2.0
    least_members: int = 1
    """Withhold a row over fewer samples."""
    weights: Weights | None = None
    """None inside a training visit: the model just trained."""

    def answer(self, site: Site) -> Relations:
        active = annotated_classes(site.facts, self.classes)
        logits = site_logits(site, site.weights_for(self.weights)).double()
        members = site.given.double()
        rows, _ = relation_matrix(logits, members, self.temperature)
        held = members.sum(0) >= self.least_members
        rows = torch.where(held.unsqueeze(-1), rows, 0.0)
        return Relations(rows[active].float(), held[active])


@dataclass(frozen=True)
class TrainByRelations(TrainWithAverage):
    """Train with a mean teacher beside what other sites' models say of each class."""

    reply_type: ClassVar[type[Reply]] = Trained

    relations: Tensor | None = None
    """`[K, K]`, row c from the sites that annotate class c; None: none are asked for."""
    related: Tensor | None = None
    """bool `[K]`: which rows exist."""

    def extras(self, site: Site) -> dict[str, Extra]:
        found = super().extras(site)
        if self.relations is not None and self.related is not None:
            found[RELATIONS] = PerSite(self.relations)
            found[RELATED] = PerSite(self.related.float())
        return found
