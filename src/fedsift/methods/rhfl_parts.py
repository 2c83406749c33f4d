"""RHFL's state, and what its stages share: reading replies, and the weights of teachers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedsift.contract import ConfigError, Federation, Replies, State
from fedsift.local.objective import Objective
from fedsift.local.own import chance_objective
from fedsift.local.public import Collaborated
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


def require_held_out(mode: Mode, federation: Federation) -> None:
    """Confidence by held-out samples needs some at every site."""
    without = [site for site, facts in federation.facts.items() if not facts.held_out]
    if mode == "held-out" and without:
        raise ConfigError(
            f"method.ccr_mode = 'held-out': site '{without[0]}' holds nothing out; set evaluate.held_out, e.g. 0.15"
        )


def confidence_weights(
    now: Mapping[str, float],
    before: Mapping[str, float],
    objective: Objective,
    classes: int,
    *,
    eta: float,
    mode: Mode,
) -> dict[str, float]:
    """W_k by the sites' losses (eqs. 9-13). A site whose last loss is unknown has no drop: its confidence is 0."""
    losses = list(now.values())
    if mode == "held-out":
        found = held_out_credibility(losses, chance_objective(objective, classes))
    else:
        known = [before.get(site, loss) for site, loss in now.items()] if before else None
        found = credibility(losses, known, eta, mode)
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
