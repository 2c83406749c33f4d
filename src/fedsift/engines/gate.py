"""The gate: every reply is checked before anything is made of it. A bad one is set aside with its reason."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, isfinite

from fedsift.contract.codec import pack
from fedsift.contract.messages import Answer, Envelope, Reply, SiteFacts, moment_words
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Ranged


@dataclass(frozen=True)
class GateLimits(Ranged):
    """The study's `[gate]` table."""

    norm_factor: AtLeastZero = 20.0
    """Refuse an update longer than so many times the cohort's median; 0 is off."""
    norm_cohort: AtLeastOne = 3
    """Compare lengths only when at least so many replies carry an update."""


def refusal(answer: Answer | None, envelope: Envelope, facts: SiteFacts) -> str | None:
    """Why this answer cannot be used, or None if it can (lengths are judged later, against the others)."""
    if answer is None:
        return "no reply before the deadline"
    if answer.failure:
        return answer.failure
    if answer.run != envelope.run:
        return f"the reply belongs to run '{answer.run}', this is '{envelope.run}'"
    if answer.site != envelope.site:
        return f"the reply is signed '{answer.site}'"
    if answer.moment_id != envelope.moment.id:
        return (
            f"stale: the reply answers {moment_words(answer.moment_id)}, "
            f"asked was {moment_words(envelope.moment.id)}"
        )
    reply, request = answer.reply, envelope.request
    if not isinstance(reply, request.reply_type):
        return f"{type(request).__name__} was answered by {type(reply).__name__}"
    return _not_finite(reply) or _shape_refusal(reply, request, facts)


def _shape_refusal(reply: Reply, request: Any, facts: SiteFacts) -> str | None:
    try:
        return reply.refusal(request, facts)
    except Exception as error:  # a reply may hold anything at all
        return f"the reply cannot be checked: {type(error).__name__}: {error}"


def _not_finite(reply: Reply) -> str | None:
    try:
        tree, tensors = pack(reply)
    except TypeError as error:
        return str(error)
    for tensor in tensors.values():
        if tensor.is_floating_point() and not _all_finite(tensor):
            return "the reply holds numbers that are not finite (NaN or infinity)"
    if not _finite_tree(tree):
        return "the reply holds numbers that are not finite (NaN or infinity)"
    return None


def _all_finite(tensor: Tensor) -> bool:
    return bool(isfinite(tensor).all())


def _finite_tree(tree: Any) -> bool:
    if isinstance(tree, float):
        return math.isfinite(tree)
    if isinstance(tree, dict):
        return all(_finite_tree(item) for item in tree.values())
    if isinstance(tree, list):
        return all(_finite_tree(item) for item in tree)
    return True


def norm_refusals(
    replies: Mapping[str, Reply], envelopes: Mapping[str, Envelope], limits: GateLimits
) -> dict[str, str]:
    """Sites whose update is implausibly long beside the cohort's."""
    norms = {site: reply.update_norm(envelopes[site].request) for site, reply in replies.items()}
    lengths = {site: norm for site, norm in norms.items() if norm is not None}
    if limits.norm_factor <= 0 or len(lengths) < limits.norm_cohort:
        return {}
    median = statistics.median(lengths.values())
    if median == 0:
        return {}
    return {
        site: f"the update's length {length:.3g} is {length / median:.0f} times the cohort's median {median:.3g}"
        for site, length in lengths.items()
        if length > limits.norm_factor * median
    }
