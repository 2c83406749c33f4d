"""FedCorr's state, and what its stages share: dealing out visits, asking noisy sites, reading replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsift.contract import Federation, QuorumError, Replies, Request, State
from fedsift.local.requests import Trained
from fedsift.methods.fedcorr_site import Corrected, Scored
from fedsift.methods.in_turn import InTurnState
from fedsift.signals.counting import floor_count

FEWEST_SAMPLES = 3
"""A smaller site has no dimensionality to speak of: it trains along, but is neither judged nor corrected."""


@dataclass(frozen=True)
class FedCorrState(InTurnState):
    """The global model, and what is known of the sites."""

    lids: tuple[dict[str, float], ...] = ()
    """LID scores by site, one entry for each iteration begun."""
    noisy: tuple[str, ...] = ()
    """S_n: the noisy sites of the last mixture over sites."""
    level: dict[str, float] = field(default_factory=dict)
    """mu_hat_k: estimated noise levels of the sites that were measured."""
    usual: State | None = None
    """State of the method of the last stage, once that has begun."""


def with_replacement(
    present: list[str], fraction: float, visits: int, draw: np.random.Generator
) -> tuple[tuple[str, ...], ...]:
    """As released: each visit draws floor(fraction N) sites with replacement among those not drawn before."""
    left = list(present)
    dealt: list[tuple[str, ...]] = []
    for _ in range(visits):
        count = max(1, floor_count(fraction * len(present))) if left else 0
        drawn = tuple(left[i] for i in draw.integers(len(left), size=count)) if left else ()
        left = [site for site in left if site not in drawn]
        dealt.append(drawn)
    return tuple(dealt)


def ask_noisy(
    federation: Federation, request: Request[Corrected], sites: list[str]
) -> Mapping[str, Corrected]:
    """Ask noisy sites to correct labels. One site alone that does not answer must not stop the federation."""
    try:
        return federation.ask(request, sites)
    except QuorumError:
        if len(sites) > 1:
            raise
        federation.warn(f"{sites[0]} did not answer: its labels stay as they are this time")
        return {}


def lids_of(replies: Replies[Trained]) -> dict[str, float]:
    """LID scores by site, of those large enough to have one."""
    scores: dict[str, float] = {}
    for site, reply in replies.items():
        scored = reply.then[0]
        assert isinstance(scored, Scored)
        if scored.samples >= FEWEST_SAMPLES:
            scores[site] = scored.lid
    return scores


def measured(state: FedCorrState) -> list[str]:
    """Sites with a LID of any iteration."""
    return list(dict.fromkeys(site for entry in state.lids for site in entry))


def counts(replies: Mapping[str, Corrected]) -> dict[str, int]:
    """Totals over the sites, for the round's line."""
    return {
        "flagged_samples": sum(reply.flagged for reply in replies.values()),
        "relabelled_samples": sum(reply.relabelled for reply in replies.values()),
        "changed_labels": sum(reply.changed for reply in replies.values()),
    }
