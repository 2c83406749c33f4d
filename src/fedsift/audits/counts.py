"""Expected counts of given against probable labels, as a site's agreement table holds them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def agreement_of(
    given: NDArray[np.int64], probability: NDArray[np.float64], classes: int
) -> NDArray[np.int64]:
    """Whole expected counts `[K, K]`, row: given, column: probably true."""
    table = np.zeros((classes, classes))
    np.add.at(table, given, probability)
    return np.asarray(np.rint(table), np.int64)


def entries_of(given: NDArray[np.int64], wrong: NDArray[np.float64]) -> NDArray[np.int64]:
    """Multi-label: right 0, wrong 0, wrong 1, right 1, expected counts `[K, 4]`."""
    zero = given == 0
    columns = [(1 - wrong) * zero, wrong * zero, wrong * ~zero, (1 - wrong) * ~zero]
    return np.asarray(np.rint(np.stack([column.sum(0) for column in columns], 1)), np.int64)
