"""Fits the shared label model from the sites' censored tables, and estimates each site's share of wrong labels.

What travels, and when, is in `label_exchange`. Tables lack the cells that were lumped: they are completed in proportion
to what the model expects there, in turn with the model's own fit (EM for a censored multinomial).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, expit, gammaln, logit, ndtri

from fedsift.core.errors import DataError
from fedsift.detection.any_wrong_labels import any_wrong, faithful_likelihoods
from fedsift.detection.label_posterior import (
    GRID,
    LabelModel,
    SiteFit,
    error_shape,
    fit_with_wrong,
    likelihoods,
)
from fedsift.detection.label_thresholds import APPLY, FLAG
from fedsift.formulas.small_counts import WITHHELD, CensoredTable

Array = NDArray[np.float64]

STRETCH = 1.0
"""The chosen exponent's distance from the calibrated one over the most likely one's: the likelihood prefers too little
tempering, as errors of the model look like few wrong labels. Chosen on CIFAR-10N, other seeds than those reported."""
MODEL_ERROR = 0.25
"""Standard deviation of a rate's log-odds that comes from the model, not from the sample. Set by judgement: the sample
alone gives far too narrow intervals, since the exponent and the shape of the errors are only nearly right."""
NEGLIGIBLE = 0.02
"""A site has evidence of wrong labels where these are surely the better explanation (`SURE`) and the interval of its
rate, if there are any, lies above this share; the reported interval then begins here or above."""
SURE = 0.84
"""Phi(z) above which a site is reported: wrong labels explain its labels better than right ones by one standard
deviation, whether its pictures look like the others' or not. Chosen on CIFAR-10, HAM10000 and digits, seeds 900 to 903
(`benchmarks/audit/accusations.py` reports others)."""
FALSE_ALARM = 0.05
"""The stated share of clean sites that are reported all the same: an upper bound that simulated clean
federations check (`benchmarks/audit/clean.py`), not a level that the rule is derived from."""
STEPS = 30
_EVERY_MISTAKE = 1.0
"""A class's wrong labels' worth, times its K - 1 others, by which B is drawn to equal shares."""
_EVEN_CLASSES = 100.0
"""Samples' worth by which a class's share of wrong labels is drawn to that of all classes."""


def choose_tempering(
    log_likelihoods: ArrayLike,
    faithful: ArrayLike,
    grid: Sequence[float] = GRID,
    stretch: float = STRETCH,
) -> float:
    """a from the sites' log-likelihoods `[S, A]` with wrong labels and without any (`faithful`).

    With a_0 the best exponent if every label were right, at which the model is calibrated, and a_1 the best one with
    wrong labels, a = a_0 + stretch (a_1 - a_0); a_0 where wrong labels would need a flatter model.
    """
    calibrated, fitted = most_likely_exponent(faithful, grid), most_likely_exponent(log_likelihoods, grid)
    return float(np.clip(calibrated + stretch * max(fitted - calibrated, 0.0), grid[0], 2 * grid[-1]))


def most_likely_exponent(log_likelihoods: ArrayLike, grid: Sequence[float] = GRID) -> float:
    """The top of the parabola through the best three of the summed log-likelihoods `[S, A]`."""
    sums = np.asarray(log_likelihoods, np.float64)
    if sums.ndim != 2 or sums.shape[1] != len(grid):
        raise DataError(f"log-likelihoods {sums.shape} do not fit {len(grid)} exponents")
    total = sums.sum(0)
    best = int(total.argmax())
    if not 0 < best < len(grid) - 1:
        return float(grid[best])
    x, y = np.asarray(grid[best - 1 : best + 2]), total[best - 1 : best + 2]
    curve = np.polyfit(x - x[1], y, 2)
    return float(x[1] - curve[1] / (2 * curve[0])) if curve[0] < 0 else float(x[1])


def shares_of(tables: Sequence[CensoredTable]) -> Array:
    """g `[K]` from the sites' counts of given labels `[1, K]`; a remainder is spread as all sites' other counts."""
    classes = tables[0].cells.shape[1]
    shares = np.full(classes, 1 / classes)
    for _ in range(STEPS):
        total = sum((_completed(table, shares[None]) for table in tables), np.zeros((1, classes)))
        shares = (total[0] + 0.5) / (total.sum() + 0.5 * classes)
    return shares


def noisy_share(gains: ArrayLike, samples: ArrayLike, model: LabelModel) -> float:
    """The share of sites with wrong labels, from all sites' gains and sample counts `[S]` (EM, two sites' worth of
    one half)."""
    share, sites = 0.5, np.asarray(gains, np.float64)
    for _ in range(STEPS):
        chances = any_wrong(sites, samples, replace(model, noisy_sites=share))
        share = float((chances.sum() + 1) / (len(sites) + 2))
    return share


def fit_shared(tables: Sequence[CensoredTable], model: LabelModel, any_wrong: ArrayLike | None = None) -> LabelModel:
    """pi, B, r, kappa and the Beta from the sites' expected counts `[K, K]` (true by given), censored.

    any_wrong: w_s `[S]`; a site's table counts by it, and as if all its labels were right by the rest.
    Every site has shares pi_s and a rate e_s; cells that were lumped are completed by pi_s[c] T_s[c, j], with T_s of
    the shape that all sites share (`error_shape`).
    """
    chances = np.ones(len(tables)) if any_wrong is None else np.asarray(any_wrong, np.float64)
    usable = [(table, w) for table, w in zip(tables, chances, strict=True) if table.total > 0]
    if not usable:
        return model
    classes = len(model.shares)
    apart, relative = ~np.eye(classes, dtype=bool), model.relative_rates
    pi, confusion, kappa, prior = model.shares, model.confusion, model.concentration, model.rate_prior
    shares, rates = [pi] * len(usable), [0.15] * len(usable)
    for step in range(STEPS):
        full = []
        for s, (table, w) in enumerate(usable):
            expected = shares[s][:, None] * error_shape(rates[s], confusion, relative)
            counts = _completed(table, expected)
            counts = w * counts + (1 - w) * np.diag(counts.sum(0))
            total, wrong = counts.sum(), counts[apart].sum()
            shares[s] = (counts.sum(1) + kappa * pi) / (total + kappa)
            rates[s] = float((wrong + prior[0] - 1) / (total + sum(prior) - 2))
            full.append(counts)
        summed = np.sum(full, axis=0)
        pi = (summed.sum(1) + 0.5) / (summed.sum() + 0.5 * classes)
        mistakes = np.where(apart, summed + _EVERY_MISTAKE, 0.0)
        confusion = mistakes / np.maximum(mistakes.sum(1, keepdims=True), 1e-12)
        wrong_rows, rows = np.where(apart, summed, 0.0).sum(1), summed.sum(1)
        overall = max(float(wrong_rows.sum() / max(rows.sum(), 1e-12)), 1e-6)
        # by what each site's own share would make of its classes: else those of careless sites seem mistakable
        usual = np.sum([(c[apart].sum() / max(c.sum(), 1e-12)) * c.sum(1) for c in full], axis=0)
        relative = (wrong_rows + _EVEN_CLASSES * overall) / (usual + _EVEN_CLASSES * overall)
        if step % 10 == 9:
            stacked = np.stack(full)
            kappa = fit_concentration(stacked.sum(2), pi)
            prior = fit_rate_prior(stacked[:, apart].sum(1), stacked.sum((1, 2)))
    return replace(
        model,
        shares=pi,
        confusion=confusion,
        relative_rates=relative,
        concentration=kappa,
        rate_prior=prior,
    )


def _completed(table: CensoredTable, expected: Array) -> Array:
    """The table `[R, C]` with its remainders spread in proportion to `expected`."""
    cells = table.cells.astype(np.float64)
    lumped = cells == WITHHELD
    cells[lumped] = 0.0
    weight = np.where(lumped, np.maximum(expected, 1e-12), 0.0)
    whole_rows = table.remainders == WITHHELD
    for row in np.flatnonzero(lumped.any(1) & ~whole_rows):
        cells[row] += table.remainders[row] * weight[row] / weight[row].sum()
    if whole_rows.any():
        cells[whole_rows] += table.rest * weight[whole_rows] / weight[whole_rows].sum()
    return cells


def fit_concentration(counts: ArrayLike, shares: ArrayLike) -> float:
    """kappa of Dirichlet(kappa pi) from the sites' counts of true classes `[S, K]`, by marginal likelihood."""
    n, pi = np.asarray(counts, np.float64), np.asarray(shares, np.float64)
    tried = np.geomspace(1.0, 1000.0, 31)
    score = [
        float((gammaln(k) - gammaln(n.sum(1) + k)).sum() + (gammaln(n + k * pi) - gammaln(k * pi)).sum()) for k in tried
    ]
    return float(tried[int(np.argmax(score))])


def fit_rate_prior(wrong: ArrayLike, samples: ArrayLike) -> tuple[float, float]:
    """The Beta of the sites' rates from wrong labels `[S]` of `samples` `[S]`, by marginal likelihood on a grid.

    Its mean is at least 0.5 % and its first parameter at least 1, so that a site's rate is never drawn to exactly 0;
    its weight at most 50 samples.
    """
    w, n = np.asarray(wrong, np.float64), np.asarray(samples, np.float64)
    best, chosen = -np.inf, (1.5, 5.0)
    for mean in np.concatenate([np.geomspace(0.005, 0.1, 9), np.linspace(0.125, 0.6, 20)]):
        for weight in np.geomspace(2.0, 50.0, 9):
            alpha = max(1.0, mean * weight)
            beta = max(1.0, alpha * (1 - mean) / mean)
            score = float((betaln(w + alpha, n - w + beta) - betaln(alpha, beta)).sum())
            if score > best:
                best, chosen = score, (float(alpha), float(beta))
    return chosen


@dataclass(frozen=True)
class SiteRate:
    """How many of a site's labels are wrong."""

    samples: int
    wrong: int
    """Expected number of wrong labels."""
    low: int
    high: int
    """The ends of its 95 % interval, which begins at 0 exactly where there is no evidence."""
    evidence: bool
    """False: no evidence of wrong labels, at a stated rate of false alarms (`FALSE_ALARM`)."""

    @property
    def share(self) -> float:
        return self.wrong / self.samples if self.samples else 0.0


def site_rate(
    fit: SiteFit, given: ArrayLike, model_error: float = MODEL_ERROR, negligible: float = NEGLIGIBLE
) -> SiteRate:
    """The site's share of wrong labels with its 95 % interval, in whole labels: `rate_of` the fit's doubts."""
    return rate_of(fit.doubt_if_any(given), fit.any_wrong, model_error, negligible, fit.at_random, fit.surely_wrong)


def rate_of(
    doubt: Array,
    chance: float = 1.0,
    model_error: float = MODEL_ERROR,
    negligible: float = NEGLIGIBLE,
    at_random: float = 1.0,
    surely: float = 1.0,
) -> SiteRate:
    """The share of wrong labels from P(wrong | there are any) `[n]` and `chance`, the probability w_s of any.

    On the log-odds scale, variance = what the sample leaves open + model_error^2. What the sample leaves open of e_s
    is Louis' observed information: n / (e (1 - e)) of a fully known sample less sum P(1 - P) / (e (1 - e))^2 that is
    missing, never less than a twentieth of it. The ends are quantiles of that with weight w_s and of "no wrong label"
    with the rest; for the upper end w_s is at least one half, since a test that does not reject proves nothing.

    There is evidence only if `surely`, the test of any whether or not the site's pictures may look different, is above
    `SURE` and the interval of the smaller of the rate and `at_random`, the share of wrong labels that follow no
    picture, lies above the negligible share. With evidence the interval begins at the smaller one's end: whether
    mistakes follow the pictures is not known.

    Evidence is thus the answer to whether more than the negligible share is wrong, and the interval is cut by it: it
    begins at 0 without, and with it at the negligible share or above, though not above the estimate.
    """
    n = len(doubt)
    if n == 0:
        return SiteRate(0, 0, 0, 0, False)
    rate = float(np.clip(doubt.mean(), 0.5 / (n + 1), 1 - 0.5 / (n + 1)))
    odds_scale = rate * (1 - rate)
    known = 1 - float((doubt * (1 - doubt)).mean()) / odds_scale
    sampling = 1 / (n * odds_scale * max(known, 0.05))
    spread = float(np.sqrt(sampling + model_error**2))

    def end(quantile: float, weight: float) -> float:
        """A site without wrong labels, the rest of the weight, stands for every share up to the negligible one."""
        above = (quantile - (1 - weight)) / max(weight, 1e-12)
        return 0.0 if above <= 0 else float(expit(logit(rate) + spread * ndtri(min(above, 1.0))))

    high = max(end(0.975, max(chance, 0.5)), min(negligible, 1.0) if chance < 0.975 else 0.0)
    most = int(np.ceil(high * n))
    estimate = round(chance * float(doubt.sum()))
    least_rate = float(np.clip(min(rate, at_random), 1e-9, 1 - 1e-9))
    least_share = float(expit(logit(least_rate) + spread * ndtri(0.025)))
    if surely <= SURE or least_share <= negligible:
        return SiteRate(n, estimate, 0, most, False)
    estimate = max(estimate, 1)
    least = int(np.floor(max(min(end(0.025, chance), least_share), negligible) * n))
    return SiteRate(n, estimate, max(min(least, estimate), 1), max(most, estimate), True)


def flagged(probability_wrong: ArrayLike, rate: SiteRate, threshold: float = FLAG) -> NDArray[np.bool_]:
    """Labels `[n]` to look at again: none at a site without evidence of wrong ones."""
    return (np.asarray(probability_wrong) > threshold) & rate.evidence


def applied(
    probability_wrong: ArrayLike,
    given: ArrayLike,
    proposed: ArrayLike,
    rate: SiteRate,
    threshold: float = APPLY,
) -> NDArray[np.bool_]:
    """Labels `[n]` that the default rule replaces by the proposal."""
    changes = np.asarray(given) != np.asarray(proposed)
    return np.asarray(flagged(probability_wrong, rate, threshold) & changes)


# A site that exchanges nothing: its own labels and one model's predictions
# ------------------------------------------------------------------------------


def lone_posterior(probabilities: ArrayLike, given: ArrayLike) -> NDArray[np.float64]:
    """P(true | x, given) `[n, K]` of `label_posterior`, from probabilities `[n, K]` and given labels `[n]`.

    The model counts as trained on labels with the site's own shares, every mistake as likely as any other, and the
    exponent is the one that explains the site's own labels best. Some of them are taken to be wrong.
    """
    p, labels = np.asarray(probabilities, np.float64), np.asarray(given, np.int64)
    model = LabelModel.start(np.bincount(labels, minlength=p.shape[1]) + 1.0)
    with_wrong = likelihoods(p, labels, model, GRID)
    tempering = choose_tempering([with_wrong], [faithful_likelihoods(p, labels, model, GRID)])
    return fit_with_wrong(p, labels, model.with_tempering(tempering)).posterior
