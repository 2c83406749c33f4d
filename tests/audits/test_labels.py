"""`audit_labels`: what it refuses names the sample, the value and what would be right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsift.audits.labels import audit_labels
from fedsift.contract.errors import DataError

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
def test_what_cannot_be_is_refused(
    given: Any, probabilities: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        audit_labels(given, probabilities, **options)


def test_a_valid_table_is_judged() -> None:
    found = audit_labels(np.tile(GIVEN, 20), np.tile(SURE, (20, 1)), site=np.repeat(["a", "b"], 40))
    assert list(found.sites) == ["a", "b"] and len(found.sites["a"]) == 40
