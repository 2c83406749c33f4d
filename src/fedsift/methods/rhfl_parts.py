"""RHFL's state, and what its two forms share: the symmetric loss of private training, confidence weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedsift.contract import ConfigError, Federation, Replies, State
from fedsift.contract.ranges import AtLeastZero, Ranged
from fedsift.local.objective import CrossEntropy, Objective, as_objective
from fedsift.local.own import MeasuredOn, chance_objective
from fedsift.local.public import Collaborated
from fedsift.local.robust import LOG0, SymmetricCrossEntropy
from fedsift.methods.base import record_loss
from fedsift.signals.credibility import Mode, credibility, held_out_credibility

LIFE: dict[str, Literal["batch", "visit", "run"]] = {"fresh": "batch", "persistent": "run", "sgd": "batch"}
"""How long the optimiser on public samples lives."""


@dataclass(frozen=True)
class RHFLState(State):
    """What the server remembers of the sites; their models it never sees."""

    public: int = 0
    """N_0: number of public samples."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """R_k: each site's predictions for the public samples that come next, `[n, K]`."""
    losses: dict[str, float] = field(default_factory=dict)
    """L_sl^{k, t}: each site's mean private loss at the end of the last round."""
    earlier: dict[str, float] = field(default_factory=dict)
    """L_sl^{k, t-1}, empty in the first communication epoch."""


@dataclass(frozen=True)
class SymmetricAndConfident(Ranged):
    """Switches and weights of SL (section 3.2) and CCR (section 3.3)."""

    sl: bool = field(default=True, kw_only=True)
    """Symmetric loss in private training and in CCR; off is plain cross-entropy (Tables 2 and 3)."""
    alpha: AtLeastZero = field(default=0.1, kw_only=True)
    """lambda of eq. 7: weight of the cross-entropy."""
    beta: AtLeastZero = field(default=1.0, kw_only=True)
    """Weight of the reverse cross-entropy."""
    rce_log0: float = field(default=LOG0, kw_only=True)
    """What log 0 counts as in the reverse cross-entropy: ln 1e-4; the SCE paper has -4 and -6."""
    eta: AtLeastZero = field(default=0.5, kw_only=True)
    """eta of eq. 12: how much confidence counts."""
    ccr_mode: Mode = field(default="official", kw_only=True)
    """Normaliser of eq. 12: as printed, by absolute values ("abs"), or by falling losses alone ("clip"); "held-out"
    (ours) weighs by how far the loss on held-out samples is below chance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rce_log0 < 0:
            raise ConfigError(f"method.rce_log0 = {self.rce_log0}: a logarithm of 0 is negative, e.g. -9.21")

    def private_loss(self) -> Objective:
        """L_sl = alpha L_ce + beta L_rce (eq. 7), or plain cross-entropy."""
        if not self.sl:
            return as_objective(CrossEntropy())
        return as_objective(SymmetricCrossEntropy(self.alpha, self.beta, self.rce_log0))

    @property
    def measured_on(self) -> MeasuredOn:
        """Which samples the loss behind a site's confidence is of."""
        return "held out" if self.ccr_mode == "held-out" else "own"

    def require_held_out(self, federation: Federation) -> None:
        """Confidence by held-out samples needs some at every site."""
        without = [site for site, facts in federation.facts.items() if not facts.held_out]
        if self.measured_on == "held out" and without:
            raise ConfigError(
                f"method.ccr_mode = 'held-out': site '{without[0]}' holds nothing out; set evaluate.held_out, e.g. 0.15"
            )

    def confidence_weights(
        self, now: Mapping[str, float], before: Mapping[str, float], classes: int
    ) -> dict[str, float]:
        """W_k by the sites' losses (eqs. 9-13). A site whose last loss is unknown has no drop: its confidence is 0."""
        losses = list(now.values())
        if self.ccr_mode == "held-out":
            found = held_out_credibility(losses, chance_objective(self.private_loss(), classes))
        else:
            known = [before.get(site, loss) for site, loss in now.items()] if before else None
            found = credibility(losses, known, self.eta, self.ccr_mode)
        return dict(zip(now, found.weights.tolist()))


def outputs_of(replies: Replies[Collaborated]) -> dict[str, Tensor]:
    return {site: reply.outputs for site, reply in replies.items() if reply.outputs is not None}


def losses_of(replies: Replies[Collaborated]) -> dict[str, float]:
    return {site: reply.private_loss for site, reply in replies.items() if reply.private_loss is not None}


def record_replies(federation: Federation, replies: Replies[Collaborated]) -> None:
    record_loss(federation, replies)
    losses = losses_of(replies)
    if losses:
        federation.record(private_losses=losses)
        federation.record_sites("private_loss", losses)
