"""The posterior of a sample's true label given the picture, the given label and the site.

At site s, with its true class shares pi_s, T_s[c, j] = P(given j | true c, s), and p(c | x) from a model that did not
see x, trained on labels with shares g:

    P(given j | x, s)          =  sum_c q(c | x, s) T_s[c, j],     q(c | x, s)  ~  p(c | x)^a pi_s[c] / g[c]
    P(true c | x, given j, s)  ~  q(c | x, s) T_s[c, j],           P(wrong)     =  1 - P(true = given)

A model trained on given labels estimates P(given | x), not P(true | x): without the exponent a (tempering) the fit
draws T_s to the identity. a is chosen without the truth, by the likelihood of the given labels with pi_s and T_s
refitted for every a (`label_rates.choose_tempering`). T_s is that of a picture as hard as not; people mistake hard ones
more often (`label_mistakes`). Priors: pi_s ~ Dirichlet(kappa pi); T_s is drawn to 1 - e_s r_c on its diagonal and
e_s r_c B_s[c, j] beside it, with r, which classes are mistaken more often, and B, who is mistaken for whom, shared by
all sites, B_s being B times who looks like whom at the site; e_s ~ Beta.

A site may have no wrong label at all: `label_any_wrong` weighs the fit with wrong labels against one without any.

p -> A p, T -> A^-1 T leaves the likelihood as it is. What breaks the tie here: p may be sharpened, not mixed, and no
class is given as another more often than as itself (diagonal dominance), unless a site's own codes explain its labels
far better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from fedsift.core.codec import WireFormat
from fedsift.core.errors import DataError

# How people mistake labels: who is taken for whom, and more often where the picture is hard to recognise
# ------------------------------------------------------------------------------

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

FOLLOWS = 0.12
"""d. Measured on CIFAR-10N's people, seed 100: 0.07 to 0.12 at sites of careless labels, 0.18 at sites of careful ones;
on HAM10000's simulated annotators 0.09 to 0.20; 0 where mistakes are drawn at random."""
FURTHEST = 4.0
"""Largest log-odds against a class that count: beyond, a model's odds say more of its form than of the picture."""
_MOST = 0.98
"""Share of a class's labels at a site that can be wrong."""
ONE_CODE = 0.75
"""Share of a class's wrong labels that one other class has, where a code stands for another one."""
_TINY = 1e-12


def error_shape(rate: float, confusion: Array, relative_rates: Array) -> Array:
    """T `[K, K]` of the shape that all sites share: 1 - e r_c on the diagonal, e r_c B[c, j] beside it."""
    by_class = np.clip(rate * relative_rates, 1e-4, 1 - 1e-4)[:, None]
    result: Array = (1 - by_class) * np.eye(len(confusion)) + by_class * confusion
    return result


def similar_names(probabilities: ArrayLike, shares: ArrayLike) -> Array:
    """Who looks like whom at a site, `[K, K]`: zero on the diagonal, rows of sum 1.

    C[c, j] ~ sum_x l(c | x) l(j | x), l ~ p / g: what one picture is both of likely. Probabilities `[n, K]`, g `[K]`. A
    picture's worth of equal shares is added to every row. It never leaves the site.
    """
    p, g = np.asarray(probabilities, np.float64), np.maximum(np.asarray(shares, np.float64), _TINY)
    classes = len(g)
    likely = np.maximum(p, _TINY) / g
    likely /= likely.sum(1, keepdims=True)
    alike = likely.T @ likely + 1 / max(classes - 1, 1)
    return _of_mistakes(alike)


def mistaken_for(confusion: Array, alike: Array) -> Array:
    """B at a site `[K, K]`: the federation's B times who looks like whom, rows of sum 1.

    Below the minimum count the sites' tables say little about which classes are confused, and B is nearly even there;
    people mistake what looks alike, which follows from the site's own pictures alone.
    """
    return _of_mistakes(confusion * alike)


def _of_mistakes(table: Array) -> Array:
    apart = np.where(np.eye(len(table), dtype=bool), 0.0, table)
    result: Array = apart / np.maximum(apart.sum(1, keepdims=True), _TINY)
    return result


def dominant(errors: Array) -> Array:
    """T `[K, K]` in which no class is given as another one more often than as itself.

    Cells above their row's diagonal are cut to it (to 1 / K if it is less), and what they lose goes to the diagonal.
    Without this a weak model lets a class stand for another one altogether.
    """
    classes = len(errors)
    own = np.maximum(np.diag(errors), 1 / classes)
    apart = np.where(np.eye(classes, dtype=bool), 0.0, np.minimum(errors, own[:, None]))
    result = apart + np.diag(np.maximum(1 - apart.sum(1), own))
    return np.asarray(result / result.sum(1, keepdims=True))


def hardness(q: Array, errors: Array, follows: float = FOLLOWS) -> tuple[Array, Array]:
    """T_s(x)[c, c] and T_s(x)[c, j] / T_s[c, j] for j other than c, `[n, K]` each, from q(c | x) `[n, K]` and T_s."""
    right = np.diag(errors)
    known = np.clip(q, _TINY, 1 - 1e-9)
    against = np.clip(np.log1p(-known) - np.log(known), -FURTHEST, FURTHEST)
    harder = np.exp(follows * against)
    scale = right + (1 - right) * harder
    return right / scale, harder / scale


def as_if_equally_hard(counts: Array, posterior: Array, factor: Array) -> Array:
    """Expected counts `[K, K]`, true by given, of a site whose pictures are all as hard as not.

    posterior `[n, K]`; factor `[n, K]`: `hardness`'s second. A class's wrong labels are divided by its mean factor.
    """
    size = posterior.sum(0)
    mean = np.where(size > 1e-6, (posterior * factor).sum(0) / np.maximum(size, 1e-6), 1.0)
    apart = np.where(np.eye(len(counts), dtype=bool), 0.0, counts)
    wrong, total = apart.sum(1), counts.sum(1)
    even = np.minimum(wrong / np.maximum(mean, 1e-3), _MOST * total)
    result: Array = apart * (even / np.maximum(wrong, _TINY))[:, None] + np.diag(total - even)
    return result


def codes_moved(errors: ArrayLike, shares: ArrayLike) -> bool:
    """Whether a site's labels follow another code: of the classes (weighed by pi_s) whose labels are mostly wrong, the
    wrong ones lie almost all with one other class each. Careless labels, however many, lie with several."""
    table, weights = np.asarray(errors, np.float64), np.asarray(shares, np.float64)
    wrong = table * (1 - np.eye(len(table)))
    total = wrong.sum(1)
    mostly = weights * (total > 0.5)
    if mostly.sum() <= 0:
        return False
    alone = wrong.max(1) / np.maximum(total, _TINY)
    return bool((mostly * alone).sum() / mostly.sum() > ONE_CODE)


SHAPE_WEIGHT = 100.0
"""Samples' worth by which a class's errors at a site are drawn to the shape that all sites share."""
ODDS_POWER = 0.75
"""Exponent of a posterior's odds of being wrong before they are matched to the site's rate: a tempered model is surer
of a single sample than it should be. Chosen on CIFAR-10N with other seeds than those reported."""
GRID = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0)
"""Exponents whose likelihood the sites are asked for. Small ones are those of networks that saw few pictures and are
far surer than they are right: without them only wrong labels can explain such a network's mistakes."""
ITERATIONS = 100
TOLERANCE = 1e-6
"""Least change of the log-likelihood, a sample and step, that continues the fit."""


@dataclass(frozen=True)
class LabelModel(WireFormat):
    """What all sites share."""

    shares: Array
    """pi `[K]`: the federation's true class shares."""
    given_shares: Array
    """g `[K]`: shares of the given labels that the model was trained on."""
    confusion: Array
    """B `[K, K]`: of the wrong labels of true class c the share given as j; zero on its diagonal, rows sum to 1."""
    relative_rates: Array
    """`[K]`: how much more often class c is given wrongly than all classes together; 1 where nothing is known."""
    concentration: float = 10.0
    """kappa: samples' worth by which a site's class shares are drawn to the federation's."""
    rate_prior: tuple[float, float] = (1.5, 5.0)
    """The Beta distribution of the sites' shares of wrong labels."""
    tempering: float = 1.0
    """a: exponent of the probabilities."""
    calibrated: float = GRID[0]
    """a_0: the exponent at which p is calibrated on the given labels of all sites together."""
    calibrated_at_best: float = 1.0
    """Upper quartile over the sites of the exponent at which p is calibrated on their own given labels."""
    noisy_sites: float = 0.5
    """Share of the sites that have wrong labels at all."""

    @classmethod
    def start(cls, given_shares: ArrayLike) -> LabelModel:
        """Nothing known but the shares of the given labels `[K]`: every mistake as likely as any other."""
        shares = np.maximum(np.asarray(given_shares, np.float64), _TINY)
        shares = shares / shares.sum()
        classes = len(shares)
        return cls(shares, shares, (1 - np.eye(classes)) / max(classes - 1, 1), np.ones(classes))

    def with_tempering(self, tempering: float) -> LabelModel:
        return replace(self, tempering=float(tempering))


@dataclass(frozen=True)
class SiteFit:
    """One site's model and what it says of every sample."""

    posterior: Array
    """`[n, K]`: P(true | x, given, s)."""
    counts: Array
    """`[K, K]`: expected number of samples of true class c and given class j."""
    shares: Array
    """pi_s `[K]`."""
    errors: Array
    """T_s `[K, K]`."""
    rate: float
    """e_s: share of wrong labels of the model."""
    log_likelihood: float
    """sum_i log P(given_i | x_i, s)."""
    swapped: bool
    """Whether the site's own codes, in which most labels differ from the class, explain its labels far better."""
    follows: float = FOLLOWS
    """d of this fit; 0 if its mistakes follow no picture."""
    any_wrong: float = 1.0
    """w_s: P(the site has wrong labels at all); `posterior` and `counts` are weighed by it."""
    surely_wrong: float = 1.0
    """The smaller of both: Phi(z) for the explanation by right labels that does best. The verdict rests on it."""
    at_random: float = 1.0
    """Share of wrong labels of a fit whose mistakes follow neither what looks alike nor what is hard: the model's own
    mistakes do, so only what is left without them is evidence."""

    @property
    def proposed(self) -> Labels:
        """The most probable true class of every sample `[n]`."""
        return np.asarray(self.posterior.argmax(1), np.int64)

    def doubt(self, given: ArrayLike) -> Array:
        """1 - P(true = given) `[n]` as the model says it; `probability_wrong` is the calibrated one."""
        labels = np.asarray(given, np.int64)
        return 1 - self.posterior[np.arange(len(labels)), labels]

    def doubt_if_any(self, given: ArrayLike) -> Array:
        """The same under the fit with wrong labels `[n]`."""
        result: Array = np.clip(self.doubt(given) / max(self.any_wrong, _TINY), 0.0, 1.0)
        return result


def fit_with_wrong(
    probabilities: ArrayLike, given: ArrayLike, model: LabelModel, *, by_picture: bool = True
) -> SiteFit:
    """EM for pi_s and T_s from out-of-fold probabilities `[n, K]` and given labels `[n]`, from several starts.

    The start with few wrong labels is kept unless one with the site's own confusions gains more than K log n nats, has
    more than half of the labels wrong, and so has the model before any fit: codes that were swapped. Without the last a
    site of nearly one class is fitted by letting that class stand for another one. by_picture=False: mistakes that
    follow neither what looks alike nor what is hard, only B.
    """
    p, labels = checked(probabilities, given, len(model.shares))
    evidence = tempered_evidence(p, model)
    alike = similar_names(p, model.given_shares) if by_picture else np.ones_like(model.confusion)
    usual = _fit(evidence, labels, model, mistaken_for(model.confusion, alike), FOLLOWS if by_picture else 0.0)
    predicted = (evidence * model.shares).argmax(1)
    if len(labels) < len(model.shares) or usual.rate < 0.25 or (predicted != labels).mean() <= 0.5:
        return usual
    own = _own_codes(evidence, labels, model)
    gain = own.log_likelihood - usual.log_likelihood
    differs = float(own.doubt(labels).mean()) > 0.5
    return own if differs and gain > len(model.shares) * np.log(len(labels)) else usual


def tempered_evidence(probabilities: Array, model: LabelModel) -> Array:
    """p^a / g `[n, K]`, each row scaled to a largest value of 1.

    Not (p / g)^a, which is as good with equal classes but favours rare ones and then finds far too many labels wrong.
    """
    log = model.tempering * np.log(np.maximum(probabilities, _TINY)) - np.log(model.given_shares)
    result: Array = np.exp(log - log.max(1, keepdims=True))
    return result


def likelihoods(probabilities: ArrayLike, given: ArrayLike, model: LabelModel, tempering: ArrayLike) -> Array:
    """Log-likelihoods `[A]` of the site's fit for every exponent in `tempering`."""
    fits = [fit_with_wrong(probabilities, given, model.with_tempering(a)) for a in np.atleast_1d(np.asarray(tempering))]
    return np.array([fit.log_likelihood for fit in fits])


def probability_wrong(fit: SiteFit, given: ArrayLike, odds_power: float = ODDS_POWER) -> Array:
    """Calibrated P(wrong) `[n]`: odds to the power `odds_power`, times what keeps their mean at the site's own.

    Monotone in the posterior's own within a site. The odds are those of a site with wrong labels; w_s comes after.
    """
    doubt = fit.doubt_if_any(given)
    matched = matched_to_rate(doubt, float(doubt.mean()) if len(doubt) else 0.0, odds_power)
    result: Array = fit.any_wrong * matched
    return result


def matched_to_rate(doubt: ArrayLike, rate: float, odds_power: float = 1.0) -> Array:
    """sigmoid(spread logit(doubt) + b) `[n]`, with b such that the mean is `rate`."""
    values = np.asarray(doubt, np.float64)
    if not len(values):
        return values
    if rate <= _TINY or rate >= 1 - _TINY:
        return np.full(len(values), float(np.clip(rate, 0, 1)))
    odds = _odds(values, odds_power)
    result: Array = expit(odds + _rate_offset(odds, rate))
    return result


def _odds(doubt: Array, odds_power: float) -> Array:
    """spread logit(doubt)"""
    return np.asarray(odds_power * logit(np.clip(doubt, _TINY, 1 - _TINY)))


def _rate_offset(odds: Array, rate: float) -> float:
    """b such that the mean of sigmoid(odds + b) is `rate` (bisection)."""
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(odds + middle).mean() < rate else (low, middle)
    return (low + high) / 2


def checked(probabilities: ArrayLike, given: ArrayLike, classes: int) -> tuple[Array, Labels]:
    """Probabilities `[n, K]` and labels `[n]` as arrays, or what is wrong with them."""
    p, labels = np.asarray(probabilities, np.float64), np.asarray(given, np.int64)
    if p.ndim != 2 or p.shape[1] != classes or len(p) != len(labels):
        raise DataError(f"probabilities {p.shape} do not fit {len(labels)} labels of {classes} classes")
    if not np.isfinite(p).all() or (p < 0).any():
        raise DataError("a probability is negative or not finite: the model that gave it has diverged")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(f"given labels run from {labels.min()} to {labels.max()}, classes from 0 to {classes - 1}")
    return p, labels


def _fit(evidence: Array, labels: Labels, model: LabelModel, confusion: Array, follows: float) -> SiteFit:
    """From the site's given shares and a rate of 0.15, with B_s and d."""
    given = np.bincount(labels, minlength=len(model.shares))
    shares = (given + model.concentration * model.shares) / (len(labels) + model.concentration)
    errors = error_shape(0.15, confusion, model.relative_rates)
    return _em(evidence, labels, model, confusion, shares, errors, follows)


def _own_codes(evidence: Array, labels: Labels, model: LabelModel) -> SiteFit:
    """From the confusions that the site's own most probable classes show, which also stand in for B."""
    classes = len(model.shares)
    labels_to_train_on = (evidence * model.shares).argmax(1)
    table = np.full((classes, classes), 1.0 / classes)
    np.add.at(table, (labels_to_train_on, labels), 1.0)
    errors = table / table.sum(1, keepdims=True)
    confusion = np.where(np.eye(classes, dtype=bool), 0.0, table)
    confusion /= confusion.sum(1, keepdims=True)
    flat = replace(model, rate_prior=(1.0, 1.0), relative_rates=np.ones(classes))
    return _em(evidence, labels, flat, confusion, model.shares, errors, 0.0, swapped=True)


def _em(
    evidence: Array,
    labels: Labels,
    model: LabelModel,
    confusion: Array,
    shares: Array,
    errors: Array,
    follows: float,
    *,
    swapped: bool = False,
) -> SiteFit:
    """Maximum a posteriori pi_s, e_s and T_s: responsibilities, then shares, rate and errors, until nothing moves.

    follows: d. swapped: the site's own codes, in which most labels differ from the class.
    """
    n, classes = evidence.shape
    by_label = np.eye(classes)[labels]
    alpha, beta = model.rate_prior
    rate, before = 0.9 if swapped else 0.15, -np.inf
    for step in range(ITERATIONS + 1):
        posterior, total, factor = responsibilities(evidence, labels, shares, errors, follows)
        now = float(total.sum())
        counts = posterior.T @ by_label
        if step == ITERATIONS or abs(now - before) < TOLERANCE * max(n, 1):
            break
        before = now
        shares = (posterior.sum(0) + model.concentration * model.shares) / (n + model.concentration)
        even = as_if_equally_hard(counts, posterior, factor) if follows else counts
        wrong = float(even.sum() - np.trace(even))
        rate = float(np.clip((wrong + alpha - 1) / max(n + alpha + beta - 2, _TINY), 1e-4, 1 - 1e-4))
        errors = even + SHAPE_WEIGHT * error_shape(rate, confusion, model.relative_rates)
        errors /= errors.sum(1, keepdims=True)
        errors = errors if swapped else dominant(errors)
    return SiteFit(posterior, counts, shares, errors, rate, now, swapped, follows)


def responsibilities(
    evidence: Array, labels: Labels, shares: Array, errors: Array, follows: float = FOLLOWS
) -> tuple[Array, Array, Array]:
    """P(true | x, given, s) `[n, K]`, log P(given | x, s) `[n]`, and how much likelier than in T_s a mistake of each
    class is on this picture `[n, K]`."""
    q = evidence * np.maximum(shares, _TINY)
    q /= q.sum(1, keepdims=True)
    right, factor = hardness(q, errors, follows)
    chance = np.maximum(errors, _TINY).T[labels] * factor
    each = np.arange(len(labels))
    chance[each, labels] = np.maximum(right[each, labels], _TINY)
    joint = q * chance
    total = joint.sum(1, keepdims=True)
    return joint / total, np.log(total[:, 0]), factor


def predicted_shares(probabilities: ArrayLike, model: LabelModel, shares: ArrayLike) -> Array:
    """P(true | x, s) `[n, K]` without the given label, under a site's own class shares."""
    weighed = tempered_evidence(np.asarray(probabilities, np.float64), model) * np.asarray(shares, np.float64)
    result: Array = weighed / weighed.sum(1, keepdims=True)
    return result


def judge(
    probabilities: ArrayLike,
    given: ArrayLike,
    model: LabelModel,
    fit: SiteFit,
    own: ArrayLike,
    odds_power: float = ODDS_POWER,
) -> tuple[Array, Array]:
    """Posterior `[n, K]` and P(wrong) `[n]` of samples that came later, by what the site's fit learnt.

    own: the given labels `[m]` of the samples that `fit` was made of. The odds are moved as theirs were, so that a
    later sample with the same probabilities gets the same answer.
    """
    p, labels = checked(probabilities, given, len(model.shares))
    posterior, _, _ = responsibilities(tempered_evidence(p, model), labels, fit.shares, fit.errors, fit.follows)
    doubt = 1 - posterior[np.arange(len(labels)), labels]
    weighed: Array = fit.any_wrong * posterior + (1 - fit.any_wrong) * np.eye(len(model.shares))[labels]
    before = fit.doubt_if_any(own)
    rate = float(before.mean()) if len(before) else 0.0
    if rate <= _TINY or rate >= 1 - _TINY:
        return weighed, np.full(len(doubt), fit.any_wrong * float(np.clip(rate, 0, 1)))
    moved: Array = fit.any_wrong * expit(_odds(doubt, odds_power) + _rate_offset(_odds(before, odds_power), rate))
    return weighed, moved
