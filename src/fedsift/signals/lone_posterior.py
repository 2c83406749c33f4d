"""The audit's posterior at a site that exchanges nothing for it: its own labels and one model's predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.signals.label_any_wrong import faithful_likelihoods
from fedsift.signals.label_posterior import GRID, LabelModel, fit_with_wrong, likelihoods
from fedsift.signals.label_rates import choose_tempering


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
