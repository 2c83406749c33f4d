"""`audit_labels`: what it refuses names the sample, the value and what would be right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.label_audit.consortium import release
from fedsift.label_audit.from_probabilities import audit_labels

GIVEN = np.array([0, 1, 2, 1])
SURE = np.eye(3)[GIVEN] * 0.7 + 0.1


def changed(row: int, values: list[float]) -> np.ndarray:
    p = SURE.copy()
    p[row] = values
    return p


@pytest.mark.parametrize(
    ("given", "probabilities", "options", "message"),
    [
        ([0, -1, 2, 1], SURE, {}, "sample 1 has the label -1: classes run from 0 to 2"),
        ([0, 1, 7, 1], SURE, {}, "sample 2 has the label 7: classes run from 0 to 2"),
        (
            GIVEN,
            changed(3, [np.nan, 0.5, 0.5]),
            {},
            "sample 3 has a probability that is negative or not finite",
        ),
        (
            GIVEN,
            changed(0, [-0.5, 1.0, 0.5]),
            {},
            "sample 0 has a probability that is negative or not finite",
        ),
        (GIVEN, changed(2, [0.5, 0.5, 0.5]), {}, "the probabilities of sample 2 add up to 1.5"),
        (GIVEN, SURE, {"ids": ["a", "b"]}, "2 ids for 4 labels"),
        (GIVEN, SURE, {"site": ["a"]}, "1 sites for 4 labels"),
        (GIVEN, SURE, {"classes": ["a", "b"]}, "2 classes are named, the probabilities have 3 columns"),
        (np.zeros(0, int), np.zeros((0, 3)), {}, "there are no labels to audit"),
        ([0.5, 1, 2, 1], SURE, {}, "class numbers from 0 are needed"),
    ],
)
def test_what_cannot_be_is_refused(given: Any, probabilities: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        audit_labels(given, probabilities, **options)


def test_a_valid_table_is_judged() -> None:
    found = audit_labels(np.tile(GIVEN, 20), np.tile(SURE, (20, 1)), site=np.repeat(["a", "b"], 40))
    assert list(found.sites) == ["a", "b"] and len(found.sites["a"]) == 40


@settings(deadline=None, max_examples=30)
@over(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 90), st.integers(2, 4), st.floats(0, 0.6))
def test_who_is_told_of_wrong_labels_has_an_interval_above_nothing(
    seed: int, sites: int, samples: int, classes: int, noise: float
) -> None:
    """In any federation, at the site and on what it releases."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, sites * samples)
    p = rng.dirichlet(np.full(classes, 0.4), len(true)) + 2.0 * np.eye(classes)[true] * rng.random((len(true), 1))
    site = np.arange(len(true)) % sites
    wrong = (rng.random(len(true)) < noise) & (site == 0)
    given = np.where(wrong, (true + 1) % classes, true)
    found = audit_labels(given, p / p.sum(1, keepdims=True), site=site.astype(str))
    for audit in found.sites.values():
        row = release(audit)
        for rate in [audit.rate] if row.rate is None else [audit.rate, row.rate]:
            assert (rate.low > 0) == audit.finding.wrong_labels
            assert math.isnan(rate.estimate) or rate.low <= rate.estimate <= rate.high <= 1
