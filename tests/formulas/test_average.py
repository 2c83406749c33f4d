"""The weighted mean: exact, type-keeping, order-keeping."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.formulas.aggregation import average, flatten, server_step, shares_of, unflatten
from fedsift.protocol.messages import Weights


def model(seed: int, steps: int = 3) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(2, 3, generator=generator),
        "bn.num_batches_tracked": torch.tensor(steps),
        "bn.running_mean": torch.randn(2, generator=generator),
        "scale": torch.randn((), generator=generator, dtype=torch.float64),
        "half": torch.randn(3, generator=generator).half(),
    }


@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 50), min_size=2, max_size=6))
@settings(max_examples=25, deadline=None)
def test_weighted_mean_of_floats_and_largest_integer(seed: int, sizes: list[int]) -> None:
    if sum(sizes) == 0:
        sizes[0] = 1
    models = [model(seed + k, steps=k) for k in range(len(sizes))]
    got = average(models, sizes)
    assert list(got) == list(models[0])
    share = np.array(sizes) / sum(sizes)
    for name, tensor in got.items():
        assert tensor.dtype == models[0][name].dtype
        if tensor.is_floating_point():
            exact = sum(s * m[name].double().numpy() for s, m in zip(share, models))
            want = torch.as_tensor(exact, dtype=torch.float64).to(tensor.dtype)
            torch.testing.assert_close(tensor, want, rtol=1e-7, atol=0 if tensor.dtype == torch.float64 else 1e-4)
    assert got["bn.num_batches_tracked"].item() == len(sizes) - 1


def test_float32_is_summed_in_float64() -> None:
    models = [{"w": torch.tensor([value])} for value in (1e8, 1.0, -1e8)]
    assert average(models)["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_one_model_is_a_bit_identical_copy() -> None:
    only = model(5)
    got = average([only], [7])
    assert all(torch.equal(got[name], only[name]) for name in only)
    got["conv.weight"].zero_()
    assert only["conv.weight"].abs().sum() > 0


def test_the_only_site_with_data_is_bit_identical() -> None:
    models = [model(1), model(2)]
    got = average(models, [0, 9])
    assert all(torch.equal(got[name], models[1][name]) for name in got if got[name].is_floating_point())


def test_a_site_without_data_cannot_corrupt_the_average() -> None:
    broken = {"w": torch.tensor([math.nan])}
    assert average([broken, {"w": torch.tensor([2.0])}, {"w": torch.tensor([4.0])}], [0, 1, 1])["w"].item() == 3.0


def test_of_integers_the_largest_is_kept_with_its_type() -> None:
    models = [{"n": torch.tensor(v, dtype=torch.int32)} for v in (5, 30, 15)]
    got = average(models, [10, 60, 30])["n"]
    assert got.dtype == torch.int32
    assert got.item() == 30


def test_boolean_buffers() -> None:
    models = [{"seen": torch.tensor([False, True])}, {"seen": torch.tensor([False, False])}]
    assert average(models)["seen"].tolist() == [False, True]


def test_inputs_are_left_alone_and_gradients_do_not_matter() -> None:
    models = [{"w": torch.ones(2, requires_grad=True)}, {"w": torch.zeros(2)}]
    got = average(models, [1, 3])
    assert got["w"].tolist() == [0.25, 0.25]
    assert not got["w"].requires_grad
    assert models[0]["w"].tolist() == [1.0, 1.0]


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(DataError, match="no site"):
        average([], [])
    with pytest.raises(DataError, match="size 0"):
        average([model(0), model(1)], [0, 0])
    with pytest.raises(DataError, match="negative"):
        shares_of([1, -1])
    with pytest.raises(DataError, match="finite"):
        shares_of([1, math.nan])
    with pytest.raises(DataError, match="'extra'"):
        average([model(0), model(1) | {"extra": torch.ones(1)}], [1, 1])
    with pytest.raises(DataError, match="'scale'"):
        average([model(0), model(1) | {"scale": torch.ones(2)}], [1, 1])


def test_server_step() -> None:
    old, models = model(0), [model(1), model(2)]
    full = server_step(old, models, [1, 3])
    assert all(torch.equal(full[n], average(models, [1, 3])[n]) for n in full)
    half = server_step(old, models, [1, 3], server_lr=0.5)
    torch.testing.assert_close(half["conv.weight"], (old["conv.weight"] + full["conv.weight"]) / 2)
    assert half["bn.num_batches_tracked"].item() == 3
    assert [t.dtype for t in half.values()] == [t.dtype for t in old.values()]
    still = server_step(old, models, [1, 3], server_lr=0.0)
    assert torch.equal(still["conv.weight"], old["conv.weight"])


def test_flat_rows_and_back() -> None:
    models = [{"a": torch.randn(3, 2), "b": torch.randn(4)} for _ in range(5)]
    rows = flatten(models, ["a", "b"])
    assert rows.shape == (5, 10)
    for row, own in zip(rows, models):
        back = unflatten(row, own, ["a", "b"])
        assert all(torch.equal(back[name], own[name]) for name in own)
