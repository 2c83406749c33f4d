"""Checks of a single reply; a bad one is set aside with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.nn import functional as F

from fedsift.core.text import short
from fedsift.core.type_checks import schema_error
from fedsift.detection.group_test import tested_split
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, SiteFacts, Weights, moment_words
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.training.workers import predict


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


# Declared scores
# ------------------------------------------------------------------------------


FEWEST_SITES = 4
"""Sites that are needed to separate two groups."""
LARGEST_LOSS = 20.0
"""Whatever a model loses beyond this says no more."""
MOST_SAMPLES = 200
"""Samples of the coordinator's own that every model is measured on."""


@dataclass(frozen=True)
class CrossCheck:
    """The coordinator's labelled samples, or as many of them as are enough."""

    samples: Samples
    labels: Tensor

    @staticmethod
    def of(samples: Samples, labels: Tensor, random: np.random.Generator) -> CrossCheck:
        if len(samples) <= MOST_SAMPLES:
            return CrossCheck(samples, labels)
        chosen = from_numpy(np.sort(random.choice(len(samples), MOST_SAMPLES, replace=False)))
        return CrossCheck(replace(samples, rows=samples.rows[chosen]), labels[chosen])

    def loss(self, network: str, weights: Weights, classes: int, compute: ComputeSettings) -> float:
        """A model's mean loss on these samples."""
        logits = predict(network, weights, self.samples, classes, compute)
        if self.labels.dim() == 2:
            found = F.binary_cross_entropy_with_logits(logits, self.labels.to(logits.dtype))
        else:
            found = F.cross_entropy(logits, self.labels)
        return float(found.nan_to_num(nan=LARGEST_LOSS).clamp(max=LARGEST_LOSS))


@dataclass(frozen=True)
class ClaimVerdict:
    """What the coordinator's own samples say, beside what a method made of the claims."""

    p_value: float
    """Chance of losses that part so well if all sites were alike."""
    worse: tuple[str, ...]
    """Claimed to be clean; their models are of the noisy group."""
    better: tuple[str, ...]
    """Claimed to be noisy; their models are of the clean group."""

    def line(self) -> dict[str, Any]:
        return {"p_value": self.p_value, "worse": list(self.worse), "better": list(self.better)}

    def words(self) -> str | None:
        parts = [
            f"{', '.join(sites)} ({what})"
            for sites, what in (
                (self.worse, "clean by what was claimed, noisy by the model"),
                (self.better, "noisy by what was claimed, clean by the model"),
            )
            if sites
        ]
        if not parts:
            return None
        return f"claims and models disagree on the coordinator's own samples: {'; '.join(parts)}"


def verdict(losses: Mapping[str, float], findings: Findings, random: np.random.Generator) -> ClaimVerdict | None:
    """None where there are too few models, or the method itself judges nobody.

    losses: of each site's latest model. Where these show no two groups nobody is contradicted.
    """
    sites = [site for site in losses if site not in findings.unmeasured]
    if len(sites) < FEWEST_SITES or findings.no_clean_reference:
        return None
    tested = tested_split(np.array([[losses[site]] for site in sites]), random)
    noisy = {sites[int(place)] for place in tested.noisy}
    return ClaimVerdict(
        tested.p_value,
        worse=tuple(site for site in sites if site in noisy and site not in findings.noisy),
        better=tuple(site for site in sites if noisy and site not in noisy and site in findings.noisy),
    )
