"""Before sites are compared with each other: is any of them clean enough to compare with?"""

from __future__ import annotations

from fedsift.contract import Federation, Findings, Weights
from fedsift.local.blind_labels import TellBlindShare
from fedsift.signals.reference import FEWEST_CLASSES, best_share, no_clean_reference


def beside_clean_sites(found: Findings, federation: Federation, weights: Weights) -> Findings:
    """These findings, or, where even the best sites have many blind labels under this model, that nobody can be named.

    The sites' own estimates are then their noise levels.
    """
    if len(federation.classes) < FEWEST_CLASSES:
        return found
    shares = {site: reply.share for site, reply in federation.ask(TellBlindShare(weights)).items()}
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
