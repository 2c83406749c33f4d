"""What a loss term may see of a site beside the batch: tensors of any kind, by a name that the term's `needs` lists.

A request puts them into its `Job`; the trainers hand them to the term through the `View`, for one site `[...]` and for
a stacked cohort `[C, ...]` alike. Neither a method nor a term knows which.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsift.protocol.messages import Weights


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
