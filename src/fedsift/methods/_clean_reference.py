"""Before sites are compared with each other: is any of them clean enough to compare with?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsift.detection.clean_reference import FEWEST_CLASSES, best_share, blind_share, no_clean_reference
from fedsift.protocol.federation import Federation
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, Weights, disclosed
from fedsift.protocol.site import Site
from fedsift.training.predict import site_logits

# Ask sites how many of their labels look as if nobody had looked at the sample
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlindShare(Reply):
    """What a site estimates of its own labels."""

    share: float = disclosed(
        "estimated share of its labels that look drawn at random, by the received model", least=0, most=1
    )


@dataclass(frozen=True)
class EstimateBlindShare(Request[BlindShare]):
    """Estimate the share of blind labels under this model (signals/reference.py); three classes at least."""

    reply_type: ClassVar[type[Reply]] = BlindShare

    weights: Weights

    def answer(self, site: Site) -> BlindShare:
        p = torch.softmax(site_logits(site, self.weights).double(), -1)
        return BlindShare(blind_share(p.numpy(), site.labels.numpy()))


def beside_clean_sites(found: Findings, federation: Federation, weights: Weights) -> Findings:
    """These findings, or, where even the best sites have many blind labels under this model, that nobody can be named.

    The sites' own estimates are then their noise levels.
    """
    if len(federation.classes) < FEWEST_CLASSES:
        return found
    shares = {site: reply.share for site, reply in federation.ask(EstimateBlindShare(weights)).items()}
    federation.record(best_blind_share=best_share(list(shares.values())))
    if not no_clean_reference(list(shares.values())):
        return found
    return Findings((), found.unmeasured, level=shares, no_clean_reference=True)


def without_reference(found: Findings, federation: Federation) -> bool:
    """Say once, in words, that nobody can be named."""
    if found.no_clean_reference:
        federation.warn(
            "no clean reference: even the best sites have many labels that look drawn at random, so no site can be "
            "called noisy beside the others"
        )
    return found.no_clean_reference
