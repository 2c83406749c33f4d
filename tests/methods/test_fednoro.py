"""FedNoRo against its equations, on a federation whose replies are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods._base import BlindShare, EstimateBlindShare
from fedsift.methods.fednoro import FedNoRo, FedNoRoState
from fedsift.protocol.federation import Round
from fedsift.protocol.findings import Findings
from fedsift.study.study import Study
from fedsift.testing import Scripted
from fedsift.training.objective import CrossEntropy, Distillation
from fedsift.training.requests import Indicate, Indicators, Train, Trained

SITES = ("a", "b", "c", "d")
SIZES = {"a": 10, "b": 30, "c": 20, "d": 40}


def scripted(
    table: Mapping[str, Sequence[float | None]] | None = None, models: Any = None, blind: float = 0.0
) -> Scripted:
    """Sites train to the given models, or not at all, and measure what the table says of them."""

    def answer(site: str, request: Any) -> Any:
        if isinstance(request, EstimateBlindShare):
            return BlindShare(blind + 0.1 * SITES.index(site))
        if isinstance(request, Train):
            return Trained((models or {}).get(site, request.weights), SIZES[site], 1.0)
        assert isinstance(request, Indicate)
        if site not in (table or {}):
            return None
        row = (table or {})[site]
        held = torch.tensor([v is not None for v in row])
        return Indicators(torch.tensor([v or 0.0 for v in row], dtype=torch.float64), held, SIZES[site])

    return Scripted(SIZES, answer, classes=("x", "y", "z")).at(0, "robust training")


STATE = FedNoRoState({"w": torch.zeros(2)}, noisy=("c", "d"))
TABLE = {"a": (0.1, 1.0, None), "b": (0.2, 1.1, 3.0), "c": (0.9, 2.0, 5.0), "d": (1.0, 2.1, 5.2)}


def test_published_ramp() -> None:
    """lambda at rounds 10, 15, 20, 29, 39, 49 of 100 with T_1 = 10 (Gaussian ramp-up to 0.8)."""
    method = FedNoRo()
    got = [method.distillation_share(t) for t in (10, 15, 20, 29, 39, 49, 80)]
    want = [0.8 * np.exp(-5 * (1 - (min(t, 49) - 10) / 39) ** 2) for t in (10, 15, 20, 29, 39, 49, 80)]
    assert got == pytest.approx(want)
    assert got[:6] == pytest.approx([0.0054, 0.018, 0.050, 0.215, 0.576, 0.8], abs=5e-4)


def test_stage_2_counts_rounds_from_the_end_of_warm_up() -> None:
    fed = scripted()
    fed.round = Round("robust training", 19, 30)
    FedNoRo(distance_aware=False).train_robustly(STATE, fed)
    assert fed.recorded["distillation_share"] == pytest.approx(FedNoRo().distillation_share(29))


def test_clean_and_noisy_sites_get_their_own_objectives() -> None:
    fed = scripted()
    fed.round = Round("robust training", 39, 50)
    FedNoRo(distance_aware=False).train_robustly(STATE, fed)
    [asked] = fed.asked
    assert asked["a"].recipe.objective.terms == ((1.0, CrossEntropy(adjust=1.0)),)
    (share, teacher), (rest, labels) = asked["c"].recipe.objective.terms
    assert (teacher, labels) == (Distillation(temperature=0.8, adjust=1.0), CrossEntropy(adjust=1.0))
    assert share == pytest.approx(0.8)
    assert rest == pytest.approx(0.2)


def test_table_4_switches() -> None:
    fed = scripted()
    FedNoRo(distillation=False, distance_aware=False).train_robustly(STATE, fed)
    assert fed.asked[-1]["c"].recipe.objective.terms == ((1.0, CrossEntropy(adjust=1.0)),)
    FedNoRo(use_noisy_sites=False).train_robustly(STATE, fed)
    assert list(fed.asked[-1]) == ["a", "b"]
    FedNoRo(use_noisy_sites=False).train_robustly(FedNoRoState(STATE.weights, noisy=SITES), fed)
    assert list(fed.asked[-1]) == list(SITES)
    assert "every site was found noisy" in fed.warnings[-1]


def test_distance_aware_aggregation_by_hand() -> None:
    """d(c) = min distance to a clean model; D = d / max d; weights N e^-D (eqs. 6-7)."""
    models = {
        s: {"w": torch.tensor(v)}
        for s, v in {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [1.0, 2.0], "d": [4.0, 4.0]}.items()
    }
    fed = scripted(models=models)
    new = FedNoRo().train_robustly(STATE, fed)
    d = {"a": 0.0, "b": 0.0, "c": 2.0, "d": 5.0}  # to b in both cases
    raw = {s: SIZES[s] * np.exp(-d[s] / 5.0) for s in SITES}
    shares = {s: raw[s] / sum(raw.values()) for s in SITES}
    assert fed.recorded_sites["aggregation_weight"] == pytest.approx(shares)
    want = sum(shares[s] * models[s]["w"].double().numpy() for s in SITES)
    np.testing.assert_allclose(new.weights["w"].numpy(), want, rtol=1e-6)
    plain = FedNoRo(distance_aware=False).train_robustly(STATE, fed).weights["w"]
    np.testing.assert_allclose(plain.numpy(), sum(SIZES[s] / 100 * models[s]["w"].numpy() for s in SITES), rtol=1e-6)


def test_detection_fills_scales_and_splits() -> None:
    fed = scripted(TABLE)
    state = FedNoRo().find_noisy_sites(FedNoRoState({"w": torch.zeros(1)}), fed)
    assert state.noisy == ("c", "d")
    assert fed.found.noisy == ("c", "d")
    features = fed.recorded_sites["feature"]
    assert features["a"] == pytest.approx([0.0, 0.0, 0.0])  # z is missing at a: the column's minimum, 0 after eq. 3
    assert features["d"] == pytest.approx([1.0, 1.0, 1.0])
    assert features["c"][0] == pytest.approx((0.9 - 0.1) / 0.9)
    assert fed.recorded_sites["indicator"]["a"][2] is None
    raw = scripted(TABLE)
    FedNoRo(min_max=False).find_noisy_sites(FedNoRoState(), raw)
    assert raw.recorded_sites["feature"]["a"] == pytest.approx([0.1, 1.0, 3.0])


def test_low_confidence_means_noisy() -> None:
    fed = scripted({"a": (0.9,), "b": (0.85,), "c": (0.3,), "d": (0.25,)})
    state = FedNoRo(indicator="confidence", per_class=False).find_noisy_sites(FedNoRoState(), fed)
    assert state.noisy == ("c", "d")
    [asked] = fed.asked
    assert asked["a"].kind == "confidence"
    assert asked["a"].per_class is False


def test_guards_of_detection() -> None:
    alike = scripted(dict.fromkeys(SITES, (1.0, 2.0, None)))
    state = FedNoRo().find_noisy_sites(FedNoRoState(), alike)
    assert state.noisy == ()
    assert any("found no noisy site" in w for w in alike.warnings)
    assert any("left out of the mixture: x, y, z" in w for w in alike.warnings)
    partly = scripted({s: TABLE[s] for s in "abc"})
    state = FedNoRo().find_noisy_sites(FedNoRoState(), partly)
    assert "d" in state.noisy
    assert partly.found.unmeasured == ("d",)


def test_tested_detection_does_not_cry_wolf() -> None:
    rng = np.random.default_rng(3)
    clean = {s: tuple(rng.normal(1.0, 0.1, 3)) for s in SITES}
    fed = scripted(clean)
    assert FedNoRo(detection="tested").find_noisy_sites(FedNoRoState(), fed).noisy == ()
    assert fed.found.p_value is not None
    assert fed.found.p_value > 0.05
    assert fed.found.threshold == 0.05


def test_without_a_clean_reference_nobody_is_named() -> None:
    """Shares 0.5 and 0.6 at the best two sites: c and d stand out, but only among noisy sites."""
    fed = scripted(TABLE, blind=0.5)
    state = FedNoRo(detection="tested", false_alarm=0.999).find_noisy_sites(FedNoRoState(), fed)
    assert state.noisy == ()
    assert fed.found == Findings((), level={"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.8}, no_clean_reference=True)
    assert [words for words in fed.warnings if "no clean reference" in words]
    assert not [words for words in fed.warnings if "found no noisy site" in words]
    named = scripted(TABLE, blind=0.0)
    assert FedNoRo(detection="tested", false_alarm=0.999).find_noisy_sites(FedNoRoState(), named).noisy
    paper = scripted(TABLE, blind=0.5)
    assert FedNoRo(detection="paper").find_noisy_sites(FedNoRoState(), paper).noisy == ("c", "d")


def test_statistics_may_be_taken_on_augmented_images() -> None:
    fed = scripted(TABLE)
    FedNoRo(statistics_on="train").find_noisy_sites(FedNoRoState(), fed)
    assert fed.asked[-1]["a"].augment is not None
    FedNoRo().find_noisy_sites(FedNoRoState(), fed)
    assert fed.asked[-1]["a"].augment is None


def test_no_logit_adjustment_when_tau_is_zero() -> None:
    assert FedNoRo(tau=0.0).adjusted().needs == frozenset()
    assert FedNoRo().adjusted().needs == {"prior"}


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ({"warm_up": 11, "rounds": 10}, "method"),
        ({"votes": 0}, "votes = 0: it must be at least 1"),
    ],
)
def test_impossible_settings(bad: dict[str, int], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        FedNoRo(**bad)  # type: ignore[arg-type]


def test_own_labels_are_tested_first_unless_told_otherwise() -> None:
    method = {"name": "fednoro"}
    assert Study.from_table({"method": method}).method.detection == "tested"  # type: ignore[attr-defined]
    corrupted = Study.from_table({"method": method, "noise": {"name": "fedcorr"}})
    assert corrupted.method.detection == "paper"  # type: ignore[attr-defined]
    told = Study.from_table({"method": {**method, "detection": "paper"}})
    assert told.method.detection == "paper"  # type: ignore[attr-defined]
