"""The judge: which labels of one site are wrong, under the model that all sites share.

Every way to an audit asks it: the federated audit at a site, samples that come after an audit, and probabilities of
somebody's own model. What is flagged, and what counts as evidence at a site, is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.detection.label_posterior import (
    LabelModel,
    SiteFit,
    codes_moved,
    judge,
    predicted_shares,
    probability_wrong,
)
from fedsift.detection.label_rates import SiteRate, flagged
from fedsift.detection.label_thresholds import FLAG
from fedsift.label_audit.multilabel import fit_questions, site_rates

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Judgement:
    """A site's labels, judged: first those that its fit was made of, then those that came later.

    Q questions of C answers each: one question is the class of a sample, several are yes/no findings.
    """

    posterior: Array
    """P(true answer | sample, given answer, site), `[n + m, Q, C]`; of questions not annotated here the prediction."""
    wrong: Array
    """P(the given answer is wrong), `[n + m, Q]`; NaN where the site does not annotate the question."""
    predicted: NDArray[np.int64]
    """The most probable answer, the given one not looked at, `[n + m, Q]`."""
    flagged: Flags
    """Samples to look at again, `[n + m]`: none at a site without evidence of wrong labels."""
    fits: tuple[SiteFit | None, ...]
    """By question; None where the site does not annotate it."""
    rates: tuple[SiteRate | None, ...]
    swapped: tuple[bool, ...]
    """By question: most given answers differ from what the samples show, always in the same way."""

    @property
    def evidence(self) -> bool:
        """Whether there is evidence of wrong labels at this site."""
        return any(rate is not None and rate.evidence for rate in self.rates)


def judge_labels(
    probabilities: ArrayLike,
    answers: ArrayLike,
    annotated: ArrayLike,
    models: Sequence[LabelModel],
    nats: ArrayLike | None = None,
    later: tuple[ArrayLike, ArrayLike] | None = None,
) -> Judgement:
    """Judge a site's given answers `[n, Q]` from out-of-fold probabilities `[n, Q, C]`.

    annotated: `[Q]`, which questions the site annotates. models: for each question what all sites share, with this
    site's exponent. nats: the site's log-likelihoods by exponent `[A]`, of the only question. later: probabilities
    `[m, Q, C]` and answers `[m, Q]` of samples on which the fit must not rest (held-out or new ones).
    """
    p, given = np.asarray(probabilities, np.float64), np.asarray(answers, np.int64)
    later_p, later_given = (p[:0], given[:0]) if later is None else (np.asarray(later[0]), np.asarray(later[1]))
    every = np.concatenate([p, later_p])
    fits = fit_questions(p, given, annotated, models, nats)
    rates = site_rates(fits, given)
    posterior, wrong, predicted = [], [], []
    marks = np.zeros(len(every), np.bool_)
    for q, (model, fit, rate) in enumerate(zip(models, fits, rates, strict=True)):
        shown = predicted_shares(every[:, q], model, model.shares if fit is None else fit.shares)
        predicted.append(shown.argmax(1))
        if fit is None or rate is None:
            posterior.append(shown)
            wrong.append(np.full(len(every), np.nan))
            continue
        after, doubt = judge(later_p[:, q], later_given[:, q], model, fit, given[:, q])
        posterior.append(np.concatenate([fit.posterior, after]))
        wrong.append(np.concatenate([probability_wrong(fit, given[:, q]), doubt]))
        marks[: len(p)] |= flagged(wrong[-1][: len(p)], rate)
    doubts = np.stack(wrong, 1)
    found = any(rate is not None and rate.evidence for rate in rates)
    marks[len(p) :] = found & (np.nan_to_num(doubts[len(p) :]).max(1, initial=0.0) > FLAG)
    return Judgement(
        np.stack(posterior, 1),
        doubts,
        np.stack(predicted, 1),
        marks,
        tuple(fits),
        tuple(rates),
        tuple(fit is not None and fit.swapped and codes_moved(fit.errors, fit.shares) for fit in fits),
    )


def corrected(given: ArrayLike, proposed: ArrayLike, wrong: ArrayLike) -> NDArray[np.int64]:
    """What the labels probably should be: the proposal where the given one is more probably wrong than right."""
    return np.where(np.nan_to_num(np.asarray(wrong, np.float64)) > FLAG, proposed, np.asarray(given, np.int64))
