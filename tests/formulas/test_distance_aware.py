"""FedNoRo's distance-aware aggregation (eq. 6-7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.formulas.aggregation import average, pair_distances, squared_distances
from fedsift.methods.fednoro import distance_aware
from fedsift.methods.fednoro import distance_aware as aggregate_models
from fedsift.protocol.messages import Weights

BUFFERS = {"bn.running_mean", "bn.num_batches_tracked"}
SIZES = [10, 20, 30, 20, 25]


def models(n: int = 5) -> list[Weights]:
    rng = np.random.default_rng(0)
    return [
        {
            "fc.weight": torch.from_numpy(rng.normal(size=(2, 3)) * (1 + k)),
            "fc.bias": torch.from_numpy(rng.normal(size=3)),
            "bn.running_mean": torch.from_numpy(rng.normal(size=2)),
            "bn.num_batches_tracked": torch.tensor(1000 * k),
        }
        for k in range(n)
    ]


@pytest.mark.parametrize("distance", ["l2", "layer_sum"])
@pytest.mark.parametrize("include_buffers", [True, False])
def test_equations_6_and_7(distance: str, include_buffers: bool) -> None:
    clean = [0, 2]
    done = distance_aware(
        models(),
        SIZES,
        clean,
        distance=distance,
        include_buffers=include_buffers,
        buffers=BUFFERS,  # type: ignore[arg-type]
    )
    names = ["fc.weight", "fc.bias"] + (["bn.running_mean"] if include_buffers else [])
    d = np.zeros(5)
    for i in (1, 3, 4):
        gaps = []
        for j in clean:
            norms = [float(np.linalg.norm((models()[i][n] - models()[j][n]).numpy())) for n in names]
            gaps.append(sum(norms) if distance == "layer_sum" else np.sqrt(np.square(norms).sum()))
        d[i] = min(gaps)
    weight = np.array(SIZES) * np.exp(-d / d.max())
    weight /= weight.sum()
    np.testing.assert_allclose(done.distance, d)
    np.testing.assert_allclose(done.scaled, d / d.max())
    np.testing.assert_allclose(done.shares, weight)
    for name in names:
        want = sum(w * m[name].numpy() for w, m in zip(weight, models()))
        np.testing.assert_allclose(done.weights[name], want)
    assert done.weights["bn.num_batches_tracked"].item() == 4000


def test_clean_sites_keep_their_ratio_and_the_furthest_loses_most() -> None:
    done = distance_aware(models(), SIZES, [0, 1])
    assert done.shares[1] / done.shares[0] == pytest.approx(2.0)
    furthest = int(done.distance.argmax())
    assert done.shares[furthest] / done.shares[0] == pytest.approx(SIZES[furthest] / SIZES[0] * np.exp(-1))
    assert done.shares.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("clean", [[], [0, 1, 2, 3, 4]])
def test_without_clean_or_noisy_sites_it_is_the_plain_average(clean: list[int]) -> None:
    done = distance_aware(models(), SIZES, clean)
    plain = average(models(), SIZES)
    assert (done.distance == 0).all()
    for name in plain:
        torch.testing.assert_close(done.weights[name], plain[name])


def test_a_noisy_model_equal_to_a_clean_one() -> None:
    same = [models()[0], models()[0]]
    done = distance_aware(same, [1, 3], [0])
    assert done.distance.tolist() == [0.0, 0.0]
    assert done.shares.tolist() == [0.25, 0.75]


def test_equal_float32_models_are_at_distance_exactly_zero() -> None:
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    assert squared_distances([w, w + 1], [w])[0, 0].item() == 0.0


def test_large_tensors_are_compared_in_parts() -> None:
    a, b = torch.zeros(600_000), torch.ones(600_000)
    assert squared_distances([a], [b]).item() == pytest.approx(600_000)


def test_one_site() -> None:
    done = aggregate_models(models(1), [5], [])
    assert torch.equal(done.weights["fc.bias"], models(1)[0]["fc.bias"])
    assert done.shares.tolist() == [1.0]


def test_unknown_distance_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer_sum"):
        pair_distances(models(), models(), ["fc.bias"], "cosine")  # type: ignore[arg-type]
