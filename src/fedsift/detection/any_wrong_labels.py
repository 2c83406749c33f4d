"""Whether a site has any wrong labels, and the site's label posterior weighted by that.

w_s = P(any wrong | the site's labels) weighs the fit with wrong labels against one with T_s = I and an exponent of its
own, and P(wrong) is w_s times that of the fit. Without it a site whose pictures are hard for the model is reported for
wrong labels that are the model's own mistakes.

Both explanations are only nearly right, and what a sample gains by either varies far more than a right model would let
it. Nats are therefore not taken at their word: with g_i the gain of sample i, sum g_i is measured in its own standard
deviations, as in Vuong's test of two models that need not contain the truth (Econometrica 57, 1989).

The question is asked of a model that knows nothing of who is mistaken for whom: what was learnt of that elsewhere fits
the model's own mistakes at a site without wrong labels as well. And it is asked twice: right labels may belong to
pictures that look different at this site (another machine, other patients), which moves the model's answers towards
some classes, as an annotator with a preference moves the labels. Nothing at the site distinguishes the two. w_s is the
mean of both answers, and a site is reported only if they explain its labels better than either does
(`surely_wrong`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtr

from fedsift.detection.label_posterior import (
    GRID,
    LabelModel,
    SiteFit,
    checked,
    fit_with_wrong,
    likelihoods,
    responsibilities,
    tempered_evidence,
)

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

ENOUGH = 300.0
"""Samples at which a site's own word on whether it has wrong labels counts half for the federation: with few samples of
few classes the model's mistakes decide which fit is better. Chosen on CIFAR-10N, HAM10000, digits and made X-rays,
seeds 100 to 103."""
FEW = 0.05
"""Share of mistakes at random below which none by picture are assumed: the model's own mistakes explain those."""
VAGUE = 3.0
"""Nats by which two explanations may differ without being evidence, whatever the samples say: where both are nearly
the same model, their difference is no longer normal. Chosen on a toy with the same noise everywhere and on made X-rays,
seeds 100 to 102."""
MARGIN = 0.0075
"""Nats a sample by which wrong labels must explain more: the explanation by right labels is only nearly right, and what
it misses adds up with the samples. Chosen on CIFAR-10, HAM10000 and digits, seeds 900 to 903 of
`benchmarks/audit/accusations.py`."""
CALIBRATED, OVERSURE = 0.95, 0.1
"""A model that is surer than it is right, as a network that saw few pictures, is sure and wrong where a label is right;
so OVERSURE nats a sample are added for each unit by which the exponent at which it is calibrated lies below CALIBRATED.
It is asked at the sites whose labels the model explains best, for wrong labels look like overconfidence as well. Frozen
features have 0.95 or more, with wrong labels at every site too; networks from scratch 0.4 to 0.6. Same seeds."""
SCALINGS = 30
"""Steps of iterative scaling for a site's weights of the classes, for every exponent."""
_TINY = 1e-12


def fit_site(probabilities: ArrayLike, given: ArrayLike, model: LabelModel, nats: ArrayLike | None = None) -> SiteFit:
    """The site's fit from out-of-fold probabilities `[n, K]` and given labels `[n]`.

    P(true | x, given, s) is w_s times that of the fit with wrong labels, and 1 - w_s on the given label. nats `[A]`:
    the site's own likelihoods with wrong labels by exponent, if it has them from the second exchange.
    """
    fit, labels = fit_with_wrong(probabilities, given, model), np.asarray(given, np.int64)
    plain = fit_with_wrong(probabilities, given, model, by_picture=False)
    at_random = float(plain.doubt(labels).mean()) if len(labels) else 0.0
    fit = plain if at_random < FEW else fit
    gains = sample_gains(probabilities, given, model, nats)
    alike, different = (1.0, 1.0) if fit.swapped else (chance_of_wrong(one, margin_of(model)) for one in gains)
    chance = (alike + different) / 2
    as_given = np.eye(len(model.shares))[labels]
    posterior = chance * fit.posterior + (1 - chance) * as_given
    return replace(
        fit,
        posterior=posterior,
        counts=posterior.T @ as_given,
        any_wrong=chance,
        surely_wrong=min(alike, different),
        at_random=at_random,
    )


def sample_gains(
    probabilities: ArrayLike, given: ArrayLike, model: LabelModel, nats: ArrayLike | None = None
) -> tuple[Array, Array]:
    """What wrong labels add to the log-likelihood of every sample `[n]`, each explanation at its best exponent: over
    right labels of pictures like the others', and over right labels of pictures that may look different here.

    Of the model only g and a_0 count: every mistake is as likely as any other.
    """
    p, labels = checked(probabilities, given, len(model.shares))
    plain = LabelModel.start(model.given_shares)
    # whole nats in either case, so that it does not matter to the answer who counted them
    own = np.rint(likelihoods(p, labels, plain, GRID) if nats is None or not np.any(nats) else nats)
    with_wrong = plain.with_tempering(GRID[int(own.argmax())])
    fit = fit_with_wrong(p, labels, with_wrong)
    _, explained, _ = responsibilities(tempered_evidence(p, with_wrong), labels, fit.shares, fit.errors, fit.follows)
    grid = np.array(GRID)[_allowed(model)]
    alike, different = (faithful_each(p, labels, plain, grid, scalings) for scalings in (0, SCALINGS))
    return explained - alike[int(alike.sum(1).argmax())], explained - different[int(different.sum(1).argmax())]


def margin_of(model: LabelModel) -> float:
    """Nats a sample that are no evidence: what this model's own mistakes may look like."""
    return MARGIN + OVERSURE * max(0.0, CALIBRATED - model.calibrated_at_best)


def chance_of_wrong(gains: ArrayLike, margin: float = MARGIN) -> float:
    """Phi(z), by every sample's gain `[n]`: how surely wrong labels explain a site's labels better than right ones.

    z = (sum g_i - c - n margin) / sqrt(n var g + VAGUE^2): the rate that was fitted costs c = log(1 + n / m) / 2 nats
    (Laplace), m being the weight of the rates' Beta before any site was heard. How many other sites have wrong labels
    has no say: weighed by that, a clean site among noisy ones was called noisy on its neighbours' account.
    """
    g = np.asarray(gains, np.float64)
    cost = 0.5 * np.log1p(len(g) / sum(LabelModel.rate_prior)) + margin * len(g)
    z = (g.sum() - cost) / np.sqrt(len(g) * g.var() + VAGUE**2) if len(g) else 0.0
    return float(ndtr(z))


def _allowed(model: LabelModel) -> NDArray[np.bool_]:
    """Exponents of `GRID` at which labels may be explained without wrong ones `[A]`: none below a_0.

    The model learnt from all sites' labels, so that the labels of a site without wrong ones are no harder to predict
    than it says. A site that needs less has wrong labels.
    """
    return np.asarray(GRID) >= model.calibrated - 0.125


def gain_of_wrong(with_wrong: ArrayLike, faithful: ArrayLike, model: LabelModel) -> float:
    """What wrong labels add to a site's log-likelihood, each explanation at its best exponent of `GRID`."""
    return float(np.max(with_wrong) - np.asarray(faithful, np.float64)[_allowed(model)].max())


def any_wrong(gain: ArrayLike, samples: ArrayLike, model: LabelModel) -> Array:
    """The federation's guess at w_s from `gain_of_wrong`, which it can make of the second exchange.

    The rate that was fitted costs log(1 + n / m) / 2 nats (Laplace), m being the weight of the rates' Beta; the rest
    counts by n / (n + ENOUGH), beside the share of sites with wrong labels that the federation shows.
    """
    n = np.asarray(samples, np.float64)
    surplus = np.asarray(gain, np.float64) - 0.5 * np.log1p(n / sum(model.rate_prior))
    result: Array = expit(surplus * n / (n + ENOUGH) + logit(model.noisy_sites))
    return result


def faithful_likelihoods(probabilities: ArrayLike, given: ArrayLike, model: LabelModel, tempering: ArrayLike) -> Array:
    """Log-likelihoods `[A]` if every given label were right (T_s = I), for every exponent in `tempering`.

    The best exponent is then that at which the model's own probabilities are calibrated: what a fit with wrong labels
    is measured against.
    """
    p, labels = checked(probabilities, given, len(model.shares))
    result: Array = faithful_each(p, labels, model, tempering).sum(1)
    return result


def faithful_each(
    probabilities: Array, labels: Labels, model: LabelModel, tempering: ArrayLike, scalings: int = 0
) -> Array:
    """The same for every sample, `[A, n]`: log of q(given | x, s) ~ p^a b[given] / g.

    b: the given labels' shares, drawn to pi, which is right if sites differ in class shares alone. scalings: steps by
    which b is then scaled until the model expects as many of each class as were given: pictures that look different at
    a site need another b.
    """
    kappa = model.concentration
    counts = np.bincount(labels, minlength=len(model.shares)) + kappa * model.shares
    weights, result = counts / counts.sum(), []
    for a in np.atleast_1d(np.asarray(tempering)):
        evidence = tempered_evidence(probabilities, model.with_tempering(a))
        for _ in range(scalings):
            q = evidence * weights
            expected = (q / np.maximum(q.sum(1, keepdims=True), _TINY)).sum(0) + kappa * weights
            weights = weights * counts / np.maximum(expected, _TINY)
            weights /= weights.sum()
        q = evidence * weights
        result.append(np.log(q[np.arange(len(labels)), labels] / np.maximum(q.sum(1), _TINY) + _TINY))
    return np.array(result)
