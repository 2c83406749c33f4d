"""The gate: every reply is checked before anything is made of it. A bad one is set aside with its reason."""

from __future__ import annotations

from fedsift.core.text import short
from fedsift.core.type_checks import schema_error
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, SiteFacts, moment_words


def refusal(answer: ReplyEnvelope | None, envelope: RequestEnvelope, facts: SiteFacts) -> str | None:
    """Why this answer cannot be used, or None if it can (protection.py judges its update beside the others').

    One line of a length that can be stored: a site's own words are cut, and what would act in a terminal is escaped.
    """
    try:
        reason = _reason(answer, envelope, facts)
    except Exception as error:  # a reply may hold anything at all
        reason = unchecked(error)
    return None if reason is None else short(reason)


def _reason(answer: ReplyEnvelope | None, envelope: RequestEnvelope, facts: SiteFacts) -> str | None:
    if answer is None:
        return "no reply before the deadline"
    if isinstance(answer.failure, str) and answer.failure:
        return answer.failure
    wrong = schema_error(answer, ReplyEnvelope)
    if wrong is not None:
        return wrong
    if answer.run != envelope.run:
        return f"the reply belongs to run '{answer.run}', this is '{envelope.run}'"
    if answer.site != envelope.site:
        return f"the reply is signed '{answer.site}'"
    if answer.moment_id != envelope.moment.id:
        return (
            f"stale: the reply answers {moment_words(answer.moment_id)}, asked was {moment_words(envelope.moment.id)}"
        )
    reply, request = answer.reply, envelope.request
    if not isinstance(reply, request.reply_type):
        return f"{type(request).__name__} was answered by {type(reply).__name__}"
    return reply.refusal(request, facts)


def unchecked(error: Exception) -> str:
    """Words for a reply that cannot even be looked at."""
    return f"the reply cannot be checked: {type(error).__name__}: {error}"
