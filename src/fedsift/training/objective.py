"""Objectives: what a site minimises, as a sum of terms, and the terms.

A term sees one optimisation step through a `View` and returns one value for each sample, `[..., B]`; it is written
over the last axes, so that one site `[B, K]` and a stacked cohort `[C, B, K]` share one definition. Terms add up and
scale like numbers: `0.2 * CrossEntropy(adjust=1.0) + 0.8 * Distillation(temperature=0.8)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsift.core.codec import WireFormat
from fedsift.formulas import losses
from fedsift.protocol.messages import SiteFacts, Weights

AVERAGE = "running average of the model"
"""The extra that `MissingTo` looks at: a network that follows the one in training (see `FollowerNetwork`)."""


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
    """What else the terms' `needs` name (see `PerSample` and the classes beside it)."""
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
    """Base of all terms. `needs` lists what the trainer prepares: "prior", "teacher", "anchors", "chance", "twin".

    "known prior" is a prior over the annotated and supplied labels alone; "prior" counts every sample. "aside" holds
    the last of several views back from training, for a follower (`PerSample`). Any other name is an extra that
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


# Robust loss terms
# ------------------------------------------------------------------------------


LOG0 = math.log(1e-4)
"""-9.21, what RHFL's release takes for log 0."""
PREDICTIONS = "running predictions"
"""The notebook page of ELR's t: what the network has said of each sample so far, `[n, K]`."""


@dataclass(frozen=True)
class SymmetricCrossEntropy(Term):
    """alpha CE + beta RCE (Wang et al. 2019; RHFL eq. 5-7)."""

    alpha: float = 0.1
    beta: float = 1.0
    log0: float = LOG0

    def value(self, view: View) -> Tensor:
        return view.mean(losses.symmetric_cross_entropy(view.logits, view.target, self.alpha, self.beta, self.log0))


@dataclass(frozen=True)
class GeneralisedCrossEntropy(Term):
    """(1 - p_y^q) / q (Zhang and Sabuncu 2018): between cross-entropy (q -> 0) and mean absolute error (q = 1)."""

    q: float = 0.7

    def value(self, view: View) -> Tensor:
        return view.mean(losses.generalised_cross_entropy(view.logits, view.target, self.q))


@dataclass(frozen=True)
class EarlyLearning(Term):
    """CE + lambda log(1 - <p, t>) with t <- beta t + (1 - beta) p, renewed at every visit of a sample (ELR, Liu et al.
    2020): what a network learns early, mostly from right labels, holds it back from memorising the others.

    t stays in the site's notebook from visit to visit. Before a sample's first visit t = 0; it is renewed first, as
    released, so the first step already sees (1 - beta) p.
    """

    needs: ClassVar[frozenset[str]] = frozenset({PREDICTIONS})

    beta: float = 0.7
    strength: float = 3.0
    """lambda"""

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {PREDICTIONS: (classes,)}

    def value(self, view: View) -> Tensor:
        memory = losses.running_prediction(view.rows(PREDICTIONS), view.logits, self.beta)
        view.keep(PREDICTIONS, memory)
        held = losses.early_learning(view.logits, memory)
        return view.mean(losses.cross_entropy(view.logits, view.target) + self.strength * held)


@dataclass(frozen=True)
class ClassBalance(Term):
    """KL(pi || mean prediction of the batch) (JointOpt eq. 5, DivideMix eq. 10): without it a network that makes its
    own labels ends with one answer for all samples."""

    prior: Literal["uniform", "given"] = "uniform"
    """pi: all classes alike, as published, or the frequencies of the site's working labels."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"prior"}) if self.prior == "given" else frozenset()

    def value(self, view: View) -> Tensor:
        pi = None
        if self.prior == "given":
            assert view.log_prior is not None
            pi = view.log_prior.exp().squeeze(-2).expand(*view.logits.shape[:-2], -1)
        return losses.prior_divergence(view.logits, view.present, pi)


@dataclass(frozen=True)
class Entropy(Term):
    """Mean entropy of the predictions; with a negative weight it keeps a network from being too sure."""

    def value(self, view: View) -> Tensor:
        return view.mean(losses.entropy(view.logits))


# Terms for sites that annotate some classes only
# ------------------------------------------------------------------------------


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


# Extras: what a term sees beside the batch
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerParameter:
    """One tensor for each trained parameter of the network, by its name (SCAFFOLD's correction, an anchor).

    In the view: a list in the order of `View.parameters`.
    """

    tensors: Weights
    """Of the parameter's shape each; other names (running statistics) are not looked at."""


@dataclass(frozen=True)
class PerSample:
    """One row for each sample of the site (learnt soft labels, weights, pseudo-labels, running predictions).

    In the view: the batch's rows, `[..., B, *]`. Mixup blends them as it blends targets. A term may write new rows with
    `View.keep`; later batches see them, and the result holds the table as training left it.
    """

    rows: Tensor
    """Floating `[n, *]`, in the order of the site's samples."""


@dataclass(frozen=True)
class FrozenNetwork:
    """Another network of the site's kind, which does not train (a teacher, a peer network).

    In the view: its logits on the same augmented batch, `[..., B, K]`.
    """

    weights: Weights


@dataclass(frozen=True)
class FollowerNetwork:
    """Another network of the site's kind that follows the one in training (a mean teacher): after every step each of
    its floating tensors, running statistics too, becomes d v + (1 - d) w.

    In the view: its logits on the same augmented batch, `[..., B, K]`; with the need "aside", on the view that is held
    back from training. The result holds it as training left it.
    """

    weights: Weights
    decay: float
    """d"""
    age: int | None = None
    """Steps that it has followed so far: d is then at most 1 - 1 / (steps + 1), so that a young average is the mean of
    all models so far and not its first one. None: d from the first step."""

    def decay_at(self, step: int) -> float:
        """d at a step of this training, from 1."""
        return self.decay if self.age is None else min(self.decay, 1 - 1 / (self.age + step + 1))


@dataclass(frozen=True)
class PerSite:
    """One tensor for the whole site (a transition matrix, an estimated noise rate).

    In the view: the tensor itself, `[..., *]`. With `lr` it is learnt beside the network by plain gradient steps (an
    optimiser of its own kind, without momentum). A term may write a new one with `View.keep` (class centroids that
    follow the batches). Either way the result holds it as training left it.
    """

    tensor: Tensor
    """Floating, of the same shape at every site."""
    lr: float = 0.0
    """Step of gradient descent on the objective; 0: a constant."""


Extra = PerParameter | PerSample | PerSite | FrozenNetwork | FollowerNetwork

PREPARED = frozenset({"prior", "known prior", "chance", "twin", "features", "aside"})
"""Needs that the trainer makes from the site itself."""
