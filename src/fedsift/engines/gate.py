"""The gate: every reply is checked before anything is made of it. A bad one is set aside with its reason."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from fedsift.contract.messages import Answer, Envelope, Reply, SiteFacts, moment_words
from fedsift.contract.plaintext import short
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Ranged
from fedsift.contract.typed import misfit


@dataclass(frozen=True)
class GateLimits(Ranged):
    """The study's `[gate]` table."""

    norm_factor: AtLeastZero = 20.0
    """Refuse an update longer than so many times the cohort's median; 0 is off."""
    norm_cohort: AtLeastOne = 3
    """Compare lengths only when at least so many replies carry an update."""


def refusal(answer: Answer | None, envelope: Envelope, facts: SiteFacts) -> str | None:
    """Why this answer cannot be used, or None if it can (lengths are judged later, against the others).

    One line of a length that can be stored: a site's own words are cut, and what would act in a terminal is escaped.
    """
    try:
        reason = _reason(answer, envelope, facts)
    except Exception as error:  # a reply may hold anything at all
        reason = _unchecked(error)
    return None if reason is None else short(reason)


def _reason(answer: Answer | None, envelope: Envelope, facts: SiteFacts) -> str | None:
    if answer is None:
        return "no reply before the deadline"
    if isinstance(answer.failure, str) and answer.failure:
        return answer.failure
    wrong = misfit(answer, Answer)
    if wrong is not None:
        return wrong
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
    return reply.refusal(request, facts)


def _unchecked(error: Exception) -> str:
    return f"the reply cannot be checked: {type(error).__name__}: {error}"


def norm_refusals(
    replies: Mapping[str, Reply], envelopes: Mapping[str, Envelope], limits: GateLimits
) -> dict[str, str]:
    """Sites whose update is implausibly long beside the cohort's, or has no length."""
    lengths: dict[str, float] = {}
    refused: dict[str, str] = {}
    for site, reply in replies.items():
        try:
            length = reply.update_norm(envelopes[site].request)
        except Exception as error:
            refused[site] = short(_unchecked(error))
            continue
        if length is not None:
            lengths[site] = length
    if limits.norm_factor <= 0 or len(lengths) < limits.norm_cohort:
        return refused
    median = statistics.median(lengths.values())
    if median == 0:
        return refused
    return refused | {
        site: f"the update's length {length:.3g} is {length / median:.0f} times the cohort's median {median:.3g}"
        for site, length in lengths.items()
        if length > limits.norm_factor * median
    }
