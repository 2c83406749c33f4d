"""Loss terms for sites that annotate some classes only (multi-label data): labels where they are known, something else
where they are not: nothing, a teacher's probabilities, or labels that the network itself is sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsift.formulas import losses
from fedsift.protocol.messages import SiteFacts
from fedsift.training.objective import AVERAGE, Term, View


def known_entries(view: View) -> Tensor:
    """1 for annotated or tagged entries, `[..., B, K]`."""
    return torch.ones_like(view.target) if view.known is None else view.known


def annotated_classes(facts: SiteFacts, n_classes: int) -> list[int]:
    """Classes that a site annotates, ascending (FedMLP's AC_k)."""
    return list(range(n_classes)) if facts.annotated is None else list(facts.annotated)


def missing_classes(facts: SiteFacts, n_classes: int) -> list[int]:
    """Classes that it does not (NC_k)."""
    active = set(annotated_classes(facts, n_classes))
    return [c for c in range(n_classes) if c not in active]


# Where labels are known --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adjusted(Term):
    """Base of the terms that train on z + adjust * log(pi / (1 - pi)), which is FedMLP's eq. 3 in logits."""

    adjust: float = 1.0
    """tau: strength of the logit adjustment, 0 for none."""
    prior_over: Literal["samples", "known"] = "samples"
    """pi_c is the share of positives among all samples, or among those whose label of class c is known."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        if not self.adjust:
            return frozenset()
        return frozenset({"prior" if self.prior_over == "samples" else "known prior"})

    def shift(self, view: View) -> Tensor | None:
        """`[..., 1, K]`, or None."""
        if not self.adjust:
            return None
        assert view.log_prior is not None
        return self.adjust * view.log_prior


@dataclass(frozen=True)
class PartialClass(Adjusted):
    """L_WPC, FedMLP's eqs. 3-4: binary cross-entropy over annotated and tagged entries alone."""

    norm: Literal["known", "classes"] = "known"
    """Divide by the number of known entries, or by all B * K entries (the paper's 1 / C)."""

    def value(self, view: View) -> Tensor:
        known, shift = known_entries(view), self.shift(view)
        return losses.partial_class(view.logits, view.target, known, shift, self.norm, view.present)


@dataclass(frozen=True)
class PositiveWeighted(Term):
    """Binary cross-entropy whose positives count 1 / pi_c times, pi_c the site's own share of positives.

    pi_c is kept within 1/(n+1) .. n/(n+1), so a class without positives weighs finitely (and nothing).
    """

    partial: bool = True
    """Only annotated classes count; False takes the zeros of the others at face value."""
    weigh: bool = False
    """Weigh positives at all."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"prior"}) if self.weigh else frozenset()

    def value(self, view: View) -> Tensor:
        entries = losses.binary_cross_entropy(view.logits, view.target)
        if self.weigh:
            assert view.log_prior is not None
            # the log-odds are the prior's logit, so n / n_c = 1 / sigmoid(log-odds)
            entries = entries * torch.where(view.target > 0.5, 1 / torch.sigmoid(view.log_prior), 1.0)
        if self.partial and view.known is not None:
            return view.mean((entries * view.known).sum(-1) / view.known.sum(-1).clamp(min=1))
        return view.mean(entries.mean(-1))


# Where they are not ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MissingTo(Term):
    """(sigmoid(z) - sigmoid(t / T))^2 over the missing classes, t a teacher's logits: their mean, or their sum.

    The teacher is the received model on the same view, or a running average of the site's own model on another view of
    the same samples (a mean teacher).
    """

    whom: Literal["received", "average"] = "received"
    temperature: float = 1.0
    total: bool = False
    """Sum over a sample's missing classes instead of their mean."""
    everywhere: bool = False
    """Over all classes, annotated ones too."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"teacher"} if self.whom == "received" else {AVERAGE, "aside"})

    def value(self, view: View) -> Tensor:
        teacher = view.teacher if self.whom == "received" else view.rows(AVERAGE)
        assert teacher is not None
        known = torch.zeros_like(view.target) if self.everywhere else known_entries(view)
        return view.mean(losses.missing_class(view.logits, teacher / self.temperature, known, self.total))


@dataclass(frozen=True)
class LabelsAndTeacher(Adjusted):
    """FedMLP's section 2.4: eq. 4 where a label or tag is known, (sigmoid(z) - sigmoid(z_G))^2 elsewhere."""

    norm: Literal["joint", "separate"] = "joint"
    """Divide both sums by all entries, or each by its own."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return super().needs | {"teacher"}

    def value(self, view: View) -> Tensor:
        assert view.teacher is not None
        mask, shift = known_entries(view), self.shift(view)
        return losses.consistency(view.logits, view.target, view.teacher, mask, shift, self.norm, view.present).loss


@dataclass(frozen=True)
class SureOfFirstView(Term):
    """Binary cross-entropy of the second view on missing classes, with labels that the first view is sure of
    (FixMatch). Rows of the batch are two views of the same samples."""

    threshold: float = 0.8
    counts: Literal["sample", "entry"] = "sample"
    """A sample counts if all its missing classes are sure, or every sure entry counts."""

    def value(self, view: View) -> Tensor:
        weak, strong = view.logits.chunk(2, dim=-2)
        missing = known_entries(view).chunk(2, dim=-2)[0] == 0
        labels, sure = losses.confident_tags(torch.sigmoid(weak.detach()), self.threshold)
        if self.counts == "sample":
            sure = losses.all_confident(sure, missing).unsqueeze(-1)
        entries = losses.binary_cross_entropy(strong, labels) * (missing & sure)
        per_sample = entries.sum(-1) / missing.sum(-1).clamp(min=1)
        present = view.present.chunk(2, dim=-1)[0]
        return (per_sample * present).sum(-1) / present.sum(-1).clamp(min=1)
