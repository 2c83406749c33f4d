"""Objectives: what a site minimises, as a sum of small terms.

A term sees one optimisation step through a `View` and returns one value for each sample, `[..., B]`; it is written
over the last axes, so that one site `[B, K]` and a stacked cohort `[C, B, K]` share one definition. Terms add up and
scale like numbers: `0.2 * CrossEntropy(adjust=1.0) + 0.8 * Distillation(temperature=0.8)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsift.core.codec import WireFormat
from fedsift.formulas import losses

AVERAGE = "running average of the model"
"""The extra that `MissingTo` looks at: a network that follows the one in training (see `local/following.py`)."""


@dataclass
class View:
    """One optimisation step as the loss terms see it; `...` is nothing, or the cohort axis C."""

    logits: Tensor
    """`[..., B, K]`"""
    target: Tensor
    """`[..., B, K]`: one-hot, mixed or soft labels; zeros and ones for multi-label data."""
    present: Tensor
    """`[..., B]`: 1 for a real sample, 0 for the padding of a shorter batch."""
    log_prior: Tensor | None = None
    """`[..., 1, K]`, what logit adjustment adds: the log of the site's own label frequencies, -inf for a
    class it does not hold; for multi-label data the finite log-odds log(pi / (1 - pi)) of each class's positives."""
    teacher: Tensor | None = None
    """`[..., B, K]`: logits of the frozen teacher on the same augmented batch."""
    twin: Tensor | None = None
    """`[..., B, K]`: logits of the network that trains in step with this one, constants (needs "twin")."""
    features: Tensor | None = None
    """`[..., B, F]`: what the network's head reads, with gradients (needs "features")."""
    known: Tensor | None = None
    """`[..., B, K]`: 1 where the label is annotated or was supplied by a method (multi-label data), else 0;
    None means that all are."""
    chance: Tensor | None = None
    """float64 `[..., B]`: uniform in [0, 1), drawn anew for every sample and epoch (needs "chance")."""
    parameters: Sequence[Tensor] = ()
    """The network's parameters, each with the cohort axis in front if there is one."""
    anchors: Sequence[Tensor] = ()
    """The received global parameters, in the same order."""
    first_batch: bool = False
    """Whether this is the first batch of a local epoch."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else the terms' `needs` name (see `local/extras.py`)."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """New rows of per-sample extras, `[..., B, *]`."""

    @property
    def lead(self) -> int:
        """Number of cohort axes: 0 for one site, 1 for a stacked cohort."""
        return self.logits.dim() - 2

    def rows(self, name: str) -> Tensor:
        """The batch's rows of a per-sample extra, `[..., B, *]`, or a frozen network's logits `[..., B, K]`."""
        rows: Tensor = self.extras[name]
        return rows

    def tensors(self, name: str) -> Sequence[Tensor]:
        """A per-parameter extra, in the order of `parameters`."""
        tensors: Sequence[Tensor] = self.extras[name]
        return tensors

    def site(self, name: str) -> Tensor:
        """A per-site extra, `[..., *]`."""
        tensor: Tensor = self.extras[name]
        return tensor

    def keep(self, name: str, rows: Tensor) -> None:
        """Write the batch's rows of a per-sample extra `[..., B, *]`, or a whole per-site extra: constants then."""
        self.kept[name] = rows.detach()

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over the present samples: `[..., B] -> [...]`."""
        return (per_sample * self.present).sum(-1) / self.present.sum(-1).clamp(min=1)


class Term(WireFormat):
    """Base of all terms. `needs` tells the trainer what to prepare: "prior", "teacher", "anchors", "chance", "twin".

    "known prior" is a prior over the annotated and supplied labels alone; "prior" counts every sample. "aside" holds
    the last of several views back from training, for a follower (`local/extras.py`). Any other name is an extra that
    the request puts into its job: per-parameter, per-sample or per-site tensors, a frozen network, or one that follows.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        """Per-sample extras that nobody need bring, each with the shape of a row: a site keeps them in its notebook
        from visit to visit, all zeros before the first."""
        return {}

    def value(self, view: View) -> Tensor:
        """The term's value for each site, `[...]`."""
        raise TypeError(f"{type(self).__name__} has no value")

    def __add__(self, other: Term | Objective) -> Objective:
        return Objective(((1.0, self),)) + other

    def __rmul__(self, weight: float) -> Objective:
        return Objective(((float(weight), self),))


@dataclass(frozen=True)
class Objective(WireFormat):
    """A weighted sum of terms."""

    terms: tuple[tuple[float, Term], ...]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(term.needs for weight, term in self.terms if weight != 0))

    def memory(self, classes: int) -> dict[str, tuple[int, ...]]:
        """What the terms remember of each sample: names, and the shape of a row."""
        return {
            name: shape for weight, term in self.terms if weight != 0 for name, shape in term.memory(classes).items()
        }

    def value(self, view: View) -> Tensor:
        """The loss of each site, `[...]`. Terms of weight 0 are not computed."""
        total = torch.zeros(view.logits.shape[:-2], dtype=view.logits.dtype, device=view.logits.device)
        for weight, term in self.terms:
            if weight != 0:
                total = total + weight * term.value(view)
        return total

    def __add__(self, other: Term | Objective) -> Objective:
        extra = other.terms if isinstance(other, Objective) else ((1.0, other),)
        return Objective(self.terms + extra)

    def __rmul__(self, weight: float) -> Objective:
        return Objective(tuple((weight * own, term) for own, term in self.terms))


def as_objective(term: Term | Objective) -> Objective:
    return term if isinstance(term, Objective) else Objective(((1.0, term),))


@dataclass(frozen=True)
class CrossEntropy(Term):
    """Cross-entropy on `z + adjust * log pi` (logit adjustment; FedNoRo section 4.1). `adjust` = 0 is the plain one."""

    adjust: float = 0.0

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"prior"}) if self.adjust else frozenset()

    def value(self, view: View) -> Tensor:
        logits = view.logits
        if self.adjust:
            assert view.log_prior is not None
            logits = losses.adjusted_logits(logits, view.log_prior, self.adjust)
        return view.mean(losses.cross_entropy(logits, view.target))


@dataclass(frozen=True)
class BinaryCrossEntropy(Term):
    """Mean binary cross-entropy over classes, for multi-label data; the zeros of classes that a site does not annotate
    are taken at face value."""

    def value(self, view: View) -> Tensor:
        return view.mean(losses.binary_cross_entropy(view.logits, view.target).mean(-1))


@dataclass(frozen=True)
class Distillation(Term):
    """KL(softmax(teacher / T) || softmax(z + adjust * log pi)), FedNoRo eq. 4 and the first term of eq. 5."""

    temperature: float = 0.8
    adjust: float = 1.0
    adjust_teacher: bool = False
    """Give the teacher the same adjustment. As published it has none, so a student that equals its teacher is still
    pushed towards the site's rare classes, round after round."""
    absent: str = "masked"
    """What happens to classes that the site does not hold: "masked", "zero" (same gradient) or "renormalise"."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"teacher", "prior"}) if self.adjust else frozenset({"teacher"})

    def value(self, view: View) -> Tensor:
        assert view.teacher is not None
        prior = None
        if self.adjust:
            assert view.log_prior is not None
            prior = view.log_prior * self.adjust
        teacher = view.teacher
        if self.adjust_teacher and prior is not None:
            teacher = teacher + prior.clamp(min=-30.0)  # a class that the site lacks: no mass, and no infinity
        return view.mean(
            losses.distillation(view.logits, teacher, prior, temperature=self.temperature, absent=self.absent)
        )


@dataclass(frozen=True)
class Proximal(Term):
    """(1/2) ||w - w_g||^2 over the parameters (FedProx); power 1 is the plain norm that FedCorr's release uses."""

    power: int = 2
    skip_first_batch: bool = False
    """Leave the term out on the first batch of every local epoch, as FedCorr's release does."""

    needs: ClassVar[frozenset[str]] = frozenset({"anchors"})

    def value(self, view: View) -> Tensor:
        return losses.proximal(
            view.parameters,
            view.anchors,
            strength=0.5 if self.power == 2 else 1.0,
            power=self.power,
            skip=self.skip_first_batch and view.first_batch,
            lead=view.lead,
        )
