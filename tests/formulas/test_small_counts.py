"""No count in 1 ... min_count - 1 leaves a site, nor can one be found from what leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas.small_counts import WITHHELD, CensoredTable, censored, whole_nats

TABLES = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, 40))


def test_small_cells_share_their_row_s_remainder() -> None:
    sent = censored([[50, 6, 7, 0], [3, 80, 20, 40]], min_count=10)
    # 6 + 7 + 0 = 13 may be told; 3 alone may not, so the smallest other cell joins it
    assert sent.cells.tolist() == [[50, WITHHELD, WITHHELD, WITHHELD], [WITHHELD, 80, WITHHELD, 40]]
    assert sent.remainders.tolist() == [13, 23]
    assert sent.rest == 0


def test_a_row_below_the_minimum_count_joins_another_row_in_the_site_s_remainder() -> None:
    sent = censored([[4, 3], [20, 11], [90, 30]], min_count=10)
    assert sent.cells.tolist() == [[-1, -1], [-1, -1], [90, 30]]
    assert sent.remainders.tolist() == [-1, -1, 0]
    assert sent.rest == 38


def test_zeros_are_told_only_beside_no_small_cell() -> None:
    assert censored([[30, 0, 0]], min_count=10).cells.tolist() == [[30, 0, 0]]
    # the zero is lumped with the 2: which of the two is zero stays unknown
    assert censored([[30, 0, 2]], min_count=10).cells.tolist() == [[-1, -1, -1]]


def test_a_site_below_the_minimum_count_tells_nothing() -> None:
    sent = censored([[4, 3], [1, 1]], min_count=10)
    assert (sent.cells == WITHHELD).all() and (sent.remainders == WITHHELD).all()
    assert sent.rest == 0 and sent.total == 0


def test_expected_counts_are_rounded_first() -> None:
    assert censored([[10.4, 0.3, 21.6]], min_count=10).cells.tolist() == [[10, 0, 22]]


@settings(max_examples=200, deadline=None)
@given(TABLES, st.integers(0, 15))
def test_nothing_sent_lies_below_the_minimum_count(table: np.ndarray, min_count: int) -> None:
    sent = censored(table, min_count)
    for number in (*sent.cells.ravel(), *sent.remainders, sent.rest):
        assert number == WITHHELD or number == 0 or number >= min_count
    shown = sent.cells != WITHHELD
    assert (sent.cells[shown] == table[shown]).all()
    if table.sum() >= min_count:
        assert sent.total == table.sum()


@settings(max_examples=200, deadline=None)
@given(TABLES, st.integers(2, 15))
def test_the_row_s_sum_does_not_give_a_lumped_cell_away(table: np.ndarray, min_count: int) -> None:
    sent = censored(table, min_count)
    for row, cells in enumerate(sent.cells):
        lumped = cells == WITHHELD
        if sent.remainders[row] == WITHHELD:
            continue
        # what is lumped holds several cells, or is no small cell at all
        small = (table[row] > 0) & (table[row] < min_count)
        assert not small.any() or lumped.sum() >= 2
        assert (lumped[small]).all()
    whole = sent.remainders == WITHHELD
    assert not whole.any() or whole.sum() >= 2 or sent.rest == 0


def test_odd_tables_are_refused() -> None:
    with pytest.raises(DataError):
        censored([1, 2, 3])
    with pytest.raises(DataError):
        censored([[np.nan, 1.0]])
    with pytest.raises(ConfigError):
        censored([[1]], min_count=-1)


def test_log_likelihoods_are_whole_and_zero_from_a_tiny_site() -> None:
    assert whole_nats([-12.4, -3.6], samples=30).tolist() == [-12, -4]
    assert whole_nats([-12.4, -3.6], samples=9).tolist() == [0, 0]


def test_total_counts_remainders() -> None:
    table = CensoredTable(np.array([[30, -1], [-1, -1]]), np.array([12, -1]), 15)
    assert table.total == 57


def test_expected_counts_are_rounded_to_their_own_sum() -> None:
    """Three cells of 0.6 and one of 1.2 are 3 samples; rounded one by one they would be 4."""
    table = censored([[0.6, 0.6], [0.6, 1.2]], min_count=0)
    np.testing.assert_array_equal(table.cells, [[1, 1], [0, 1]])
    assert censored(np.full((9, 9), 30 / 81), min_count=10).rest == 30
