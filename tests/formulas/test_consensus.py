"""RSCFed's aggregation by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedsift.methods.rscfed import consensus_shares


def model(*values: float) -> dict[str, torch.Tensor]:
    a, b = torch.tensor([values[0]]), torch.tensor(values[1:])
    return {"a": a.double(), "b": b.double(), "n": torch.tensor(7)}


def test_two_groups_by_hand() -> None:
    """Group {0, 1}: their mean is (1, 0, 2), each is 1 + 2 away (tensor by tensor), so n e^(-0.5 * 3 / n) for n = 1, 2.
    Group {2} is its own mean. A group counts a half."""
    models = [model(0, 0, 0), model(2, 0, 4), model(9, 9, 9)]
    shares = consensus_shares(models, [1, 2, 4], [[0, 1], [2]], scale=0.5)
    first, second = math.exp(-1.5), 2 * math.exp(-0.75)
    expected = [first / (first + second) / 2, second / (first + second) / 2, 0.5]
    assert shares.tolist() == pytest.approx(expected)


def test_without_scale_it_is_by_size_and_who_is_in_no_group_counts_nothing() -> None:
    models = [model(0, 0), model(5, 1), model(8, 3)]
    assert consensus_shares(models, [1, 3, 6], [[0, 1]], 0.0).tolist() == pytest.approx([0.25, 0.75, 0.0])


def test_a_large_scale_does_not_end_in_zero_over_zero() -> None:
    models = [model(0, 0), model(1e4, 0), model(1e4 + 1, 0)]
    shares = consensus_shares(models, [10, 10, 10], [[0, 1, 2]], 1e4)
    assert float(shares.sum()) == pytest.approx(1.0)
    assert shares.argmax() == 1, "the nearest to the group's mean"


def test_one_site_is_everything() -> None:
    assert consensus_shares([model(1, 2)], [5], [[0], [0]], 0.01).tolist() == [1.0]
