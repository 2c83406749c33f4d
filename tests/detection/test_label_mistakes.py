"""How people mistake labels: by hand, written out, and what must hold of any site."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.detection.label_posterior import (
    FOLLOWS,
    FURTHEST,
    LabelModel,
    as_if_equally_hard,
    codes_moved,
    dominant,
    error_shape,
    fit_with_wrong,
    hardness,
    mistaken_for,
    similar_names,
)


def test_who_looks_like_whom_by_hand() -> None:
    """Shares 1/2, 1/4, 1/4. p = (.5, .25, .25) is l = (1/3, 1/3, 1/3); p = (0, .5, .5) is l = (0, 1/2, 1/2).

    Sums of products: 0 with 1: 1/9, 0 with 2: 1/9, 1 with 2: 1/9 + 1/4; and 1/2 for a picture of equal shares.
    """
    found = similar_names([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]], [0.5, 0.25, 0.25])
    far, near = 1 / 9 + 1 / 2, 1 / 9 + 1 / 4 + 1 / 2
    np.testing.assert_allclose(found[0], [0, 0.5, 0.5], atol=1e-9)
    np.testing.assert_allclose(found[1], [far / (far + near), 0, near / (far + near)], rtol=1e-9)
    np.testing.assert_allclose(similar_names(np.zeros((0, 3)), [1, 1, 1]), (1 - np.eye(3)) / 2)
    np.testing.assert_allclose(similar_names([[0.2, 0.8]], [0.5, 0.5]), 1 - np.eye(2))


def test_the_federation_s_mistakes_times_the_site_s_look_alikes() -> None:
    even = (1 - np.eye(3)) / 2
    alike = np.array([[0, 0.8, 0.2], [0.5, 0, 0.5], [0.1, 0.9, 0]])
    np.testing.assert_allclose(mistaken_for(even, alike), alike)  # nothing known: who looks alike
    np.testing.assert_allclose(mistaken_for(alike, even), alike)  # no picture: what the federation knows
    assert mistaken_for(alike, alike)[0, 1] == pytest.approx(0.64 / 0.68)


def test_a_mistake_is_likelier_on_a_hard_picture_by_hand() -> None:
    """T[0, 0] = .8. q(0) = .9: odds against 1 / 9, h = 9^-d; q(0) = .1: h = 9^d."""
    errors = np.array([[0.8, 0.2], [0.3, 0.7]])
    right, factor = hardness(np.array([[0.9, 0.1], [0.1, 0.9]]), errors)
    for i, h in enumerate((9**-FOLLOWS, 9**FOLLOWS)):
        assert right[i, 0] == pytest.approx(0.8 / (0.8 + 0.2 * h))
        assert 0.2 * factor[i, 0] == pytest.approx(0.2 * h / (0.8 + 0.2 * h))
    plain, one = hardness(np.array([[0.9, 0.1]]), errors, follows=0.0)
    np.testing.assert_allclose(plain, [[0.8, 0.7]])
    np.testing.assert_allclose(one, [[1.0, 1.0]])
    far, _ = hardness(np.array([[1.0, 0.0]]), errors)  # certain: counted no further than FURTHEST
    assert far[0, 1] == pytest.approx(0.7 / (0.7 + 0.3 * np.exp(FOLLOWS * FURTHEST)))


def test_a_class_is_not_given_as_another_more_often_than_as_itself() -> None:
    kept = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(dominant(kept), kept)
    # .3 of the first class is right: what is given as the second is cut from .6 to 1/3, and the diagonal gets the rest
    found = dominant(np.array([[0.3, 0.6, 0.1], [0.0, 1.0, 0.0], [0.45, 0.15, 0.4]]))
    np.testing.assert_allclose(found, [[17 / 30, 1 / 3, 0.1], [0, 1, 0], [0.4, 0.15, 0.45]])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 6))
def test_what_holds_of_any_site(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    errors = dominant(rng.dirichlet(np.full(classes, 0.4), classes))
    np.testing.assert_allclose(errors.sum(1), 1)
    assert (np.diag(errors)[:, None] >= errors - 1e-12).all()
    q = rng.dirichlet(np.full(classes, 0.3), 20)
    right, factor = hardness(q, errors)
    np.testing.assert_allclose(right + factor * (1 - np.diag(errors)), 1)  # T(x)'s rows
    counts = rng.uniform(0, 30, (classes, classes))
    np.testing.assert_allclose(as_if_equally_hard(counts, q, np.ones_like(q)).sum(1), counts.sum(1))
    alike = similar_names(q, rng.dirichlet(np.ones(classes)))
    np.testing.assert_allclose(alike.sum(1), 1)
    assert (np.diag(alike) == 0).all() and (alike >= 0).all()


def test_wrong_labels_are_counted_as_if_pictures_were_equally_hard() -> None:
    """A class of 10, 4 of them wrong, on pictures where a mistake is twice as likely: 2 of 10 otherwise."""
    counts = np.array([[6.0, 4.0], [0.0, 5.0]])
    posterior = np.repeat([[1.0, 0.0], [0.0, 1.0]], [10, 5], axis=0)
    factor = np.tile([2.0, 1.0], (15, 1))
    np.testing.assert_allclose(as_if_equally_hard(counts, posterior, factor), [[8, 2], [0, 5]])


def test_the_shape_by_hand() -> None:
    confusion = np.array([[0, 0.75, 0.25], [0.5, 0, 0.5], [1, 0, 0]])
    made = error_shape(0.2, confusion, np.array([1.0, 2.0, 0.5]))
    np.testing.assert_allclose(made, [[0.8, 0.15, 0.05], [0.2, 0.6, 0.2], [0.1, 0, 0.9]])


@pytest.mark.parametrize("follows", [0.0, 0.3])
def test_the_rate_is_found_where_people_mistake_hard_pictures(follows: float) -> None:
    """2,000 pictures of three overlapping clouds, P(true | x) known; odds of a mistake 1 / 3, at random or times those
    against the class to the power 0.3. d lies between the two, and the fit is off by less than 4 points either way."""
    rng = np.random.default_rng(8)
    true = rng.integers(3, size=2000)
    corners = 2.2 * np.eye(3)
    x = corners[true] + rng.normal(size=(2000, 3))
    q = np.exp(x @ corners.T)
    q /= q.sum(1, keepdims=True)
    own = q[np.arange(2000), true]
    odds = ((1 - own) / own) ** follows * 0.25 / 0.75
    wrong = rng.random(2000) < odds / (1 + odds)
    labels = np.where(wrong, (true + rng.integers(1, 3, 2000)) % 3, true)
    fit = fit_with_wrong(q, labels, LabelModel.start([1, 1, 1]))
    assert abs(fit.doubt(labels).mean() - wrong.mean()) < 0.04


def test_codes_have_moved_where_one_other_class_has_a_class_s_labels() -> None:
    """Nine of ten labels of a class lie with the next one, and of the rest little: 0.9 / 0.95 of the wrong ones."""
    shifted = np.array([[0.05, 0.9, 0.05], [0.05, 0.05, 0.9], [0.9, 0.05, 0.05]])
    assert codes_moved(shifted, [0.2, 0.3, 0.5])
    careless = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.3, 0.5, 0.2]])
    assert not codes_moved(careless, [0.2, 0.3, 0.5]), "most labels are wrong, in several ways"
    swapped = np.array([[0.1, 0.9, 0.0], [0.9, 0.1, 0.0], [0.0, 0.02, 0.98]])
    assert codes_moved(swapped, [0.1, 0.1, 0.8]), "two of three: the third is right, and says nothing"
    assert not codes_moved(np.eye(3), [0.2, 0.3, 0.5])
    half = np.array([[0.4, 0.6, 0.0], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]])
    assert codes_moved(half, [0.5, 0.4, 0.1]), "(.5 * 1 + .4 * 4/7) / .9 = .81"
    assert not codes_moved(half, [0.3, 0.6, 0.1]), "(.3 * 1 + .6 * 4/7) / .9 = .71"
