"""Median, trimmed mean and residual-based reweighting, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas.aggregation import average, coordinate_median, trimmed_mean
from fedsift.methods.arfl import residual_average
from fedsift.protocol.messages import Weights


def models(seed: int, n: int, dtype: torch.dtype = torch.float64) -> list[Weights]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": torch.from_numpy(rng.normal(size=(3, 2))).to(dtype),
            "steps": torch.tensor(k),
            "b": torch.from_numpy(rng.normal(size=4)).to(dtype),
        }
        for k in range(n)
    ]


def stacked(group: list[Weights], name: str) -> np.ndarray:
    return np.stack([m[name].numpy() for m in group])


@given(seed=st.integers(0, 1000), n=st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_median(seed: int, n: int) -> None:
    group = models(seed, n)
    got = coordinate_median(group)
    assert list(got) == ["w", "steps", "b"]
    for name in ("w", "b"):
        np.testing.assert_allclose(got[name], np.median(stacked(group, name), axis=0))
    assert got["steps"].item() == n - 1


def test_median_keeps_float32_and_one_model_bit_for_bit() -> None:
    (only,) = models(0, 1, torch.float32)
    got = coordinate_median([only])
    assert torch.equal(got["w"], only["w"])
    assert coordinate_median(models(0, 4, torch.float32))["w"].dtype == torch.float32
    got["w"].zero_()
    assert only["w"].abs().sum() > 0


@given(seed=st.integers(0, 1000), n=st.integers(1, 12), alpha=st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.45]))
@settings(max_examples=25, deadline=None)
def test_trimmed_mean(seed: int, n: int, alpha: float) -> None:
    group = models(seed, n)
    cut = int(alpha * n + 1e-9)
    got = trimmed_mean(group, alpha)
    for name in ("w", "b"):
        kept = np.sort(stacked(group, name), axis=0)[cut : n - cut]
        np.testing.assert_allclose(got[name], kept.mean(axis=0))


def test_trimming_counts_forgive_rounding() -> None:
    group = [{"w": torch.tensor([float(k)])} for k in range(10)]
    group[9] = {"w": torch.tensor([1e6])}
    assert trimmed_mean(group, 0.1)["w"].item() == pytest.approx(4.5)


def test_trimming_too_much_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.5"):
        trimmed_mean(models(0, 4), 0.5)
    with pytest.raises(DataError):
        coordinate_median([])


def residual_reference(values: np.ndarray, strength: float, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score, weights and restricted values of `[m, P]`, one coordinate and one pair at a time."""
    m, p = values.shape
    score, restricted = np.zeros(m), values.copy()
    x = np.arange(m)
    design = np.stack([np.ones(m), x], axis=1)
    hat = np.diagonal(design @ np.linalg.inv(design.T @ design) @ design.T)
    bound = strength * math.sqrt(2 / m) * np.sqrt(1 - hat)
    for c in range(p):
        order = np.argsort(values[:, c], kind="stable")
        v = values[order, c]
        slope = np.median([np.median([(v[i] - v[j]) / (i - j) for j in x if j != i]) for i in x])
        line = np.median(v) - slope * (m - 1) / 2 + slope * x
        r = v - line
        spread = np.median(np.sort(np.abs(r))[1:])
        e = np.abs(r) / (1.4826 * (1 + 5 / (m - 1)) * spread + 1e-7)
        omega = np.array([1.0 if e[i] <= bound[i] else bound[i] / e[i] for i in x])
        score[order] += omega * omega.std(ddof=1)
        restricted[order[omega < delta], c] = line[omega < delta]
    weights = (score / score.max()) ** 2 if score.max() > 0 else np.ones(m)
    return score, weights / weights.sum(), restricted


@pytest.mark.parametrize("n", [3, 4, 7, 10])
@pytest.mark.parametrize("outlier", [0.0, 50.0])
def test_residual_reweighting(n: int, outlier: float) -> None:
    group = models(n, n)
    group[1]["w"] += outlier
    values = np.concatenate([stacked(group, "w").reshape(n, -1), stacked(group, "b")], axis=1)
    score, weights, restricted = residual_reference(values, 2.0, 0.1)
    got = residual_average(group)
    np.testing.assert_allclose(got.score, score, rtol=1e-6)
    np.testing.assert_allclose(got.shares, weights, rtol=1e-6)
    np.testing.assert_allclose(got.restricted, restricted, rtol=1e-9)
    np.testing.assert_allclose(got.weights["w"].reshape(-1), weights @ restricted[:, :6], rtol=1e-6)
    assert list(got.weights) == ["w", "steps", "b"]
    assert got.weights["steps"].item() == n - 1


def test_an_outlier_loses_weight() -> None:
    group = models(0, 8)
    group[3]["w"] += 1e3
    group[3]["b"] += 1e3
    got = residual_average(group)
    assert got.shares.argmin().item() == 3
    assert got.weights["w"].abs().max() < 3


def test_blocks_of_coordinates_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = residual_average(models(1, 5))
    monkeypatch.setattr("fedsift.methods.arfl._SLOPES", 60)
    parts = residual_average(models(1, 5))
    torch.testing.assert_close(parts.shares, whole.shares)
    assert torch.equal(parts.restricted, whole.restricted)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_models_alike_are_weighed_alike(n: int) -> None:
    group = [models(2, 1)[0] for _ in range(n)]
    got = residual_average(group)
    np.testing.assert_allclose(got.shares, 1 / n)
    torch.testing.assert_close(got.weights["w"], group[0]["w"])


def test_two_models_are_averaged() -> None:
    group = models(3, 2, torch.float32)
    got = residual_average(group)
    torch.testing.assert_close(got.weights["w"], average(group)["w"])
    assert got.weights["w"].dtype == torch.float32


def test_a_model_of_integers_only() -> None:
    got = residual_average([{"n": torch.tensor(1)}, {"n": torch.tensor(4)}])
    assert got.weights["n"].item() == 4
