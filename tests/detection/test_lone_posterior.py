"""The audit's posterior at a lone site: by hand where the model knows nothing, and against the argmax rule."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.detection.label_rates import lone_posterior


def corrupted(rate: float, strength: float, n: int = 600, classes: int = 5) -> tuple[np.ndarray, ...]:
    """Probabilities of a model that is right more often the larger `strength`, truth and given labels."""
    draw = np.random.default_rng(4)
    truth = draw.integers(classes, size=n)
    logits = draw.normal(size=(n, classes))
    logits[np.arange(n), truth] += strength
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    other = (truth + draw.integers(1, classes, size=n)) % classes
    given = np.where(draw.random(n) < rate, other, truth)
    return p, truth, given


def test_a_model_that_knows_nothing_leaves_the_given_label() -> None:
    """p(c | x) = 1/2 for both classes: P(true | x, given) depends on the given label alone."""
    found = lone_posterior(np.full((40, 2), 0.5), [0] * 20 + [1] * 20)
    assert found.argmax(1).tolist() == [0] * 20 + [1] * 20
    np.testing.assert_allclose(found[:20], found[:1].repeat(20, 0))
    np.testing.assert_allclose(found.sum(1), 1.0)


def test_it_ends_with_fewer_wrong_labels_than_the_argmax_rule() -> None:
    """Where each is sure of a label by more than half, and the given label elsewhere."""
    p, truth, given = corrupted(rate=0.4, strength=2.0)
    argmax = np.where(p.max(1) > 0.5, p.argmax(1), given)
    posterior = lone_posterior(p, given)
    judged = np.where(posterior.max(1) > 0.5, posterior.argmax(1), given)
    assert (judged != truth).mean() < (argmax != truth).mean() < (given != truth).mean()


def test_classes_that_a_site_was_never_given_can_be_proposed() -> None:
    p, truth, given = corrupted(rate=0.0, strength=6.0)
    given = np.where(given == 4, 0, given)  # the site writes 0 for the last class
    assert (lone_posterior(p, given).argmax(1)[truth == 4] == 4).mean() > 0.9


def test_odd_sites() -> None:
    assert lone_posterior([[0.9, 0.1]], [1]).shape == (1, 2)
    with pytest.raises(DataError):
        lone_posterior([[0.9, np.nan]], [1])
