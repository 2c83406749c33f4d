"""`aggregate` and `hostile`: one choice of every method that averages, with FedAvg's mean by default."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.formulas.aggregation import average, coordinate_median
from fedsift.methods._base import Averaging, OneStage, methods
from fedsift.methods.fedavg import FedAvg
from fedsift.methods.fedcorr import FedCorr
from fedsift.methods.feddpcont import FedDPCont
from fedsift.methods.fedmedian import FedMedian
from fedsift.methods.fednoro import FedNoRo, FedNoRoState
from fedsift.methods.rofl import RoFL
from fedsift.methods.scaffold import Controlled, Scaffold
from fedsift.protocol.messages import Reply, Request, Weights
from fedsift.testing import Scripted
from fedsift.training.requests import Train, Trained

PLACES = (1.0, 2.0, 3.0, 4.0, 1000.0)
"""Where the five sites' models lie; the last is far off."""


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, Train)
    return Trained({"w": torch.tensor([PLACES[int(name[1:])]])}, 10, 0.5)


def five() -> Scripted:
    return Scripted({f"s{i}": 10 for i in range(5)}, answer, {"w": torch.zeros(1)})


def after_a_round(method: OneStage) -> float:
    federation = five()
    state: Any = method.train(method.start(federation), federation)
    return float(state.weights["w"])


@pytest.mark.parametrize(
    ("rule", "hostile", "expected"),
    [
        ("mean", 0.2, 202.0),
        ("median", 0.2, 3.0),
        ("trimmed", 0.2, 3.0),  # without 1 and 1000: (2 + 3 + 4) / 3
        ("krum", 0.2, 2.0),  # f = 1, two neighbours each: 1+4, 1+1, 1+1, 1+4, far: the first of the two best
        ("multi-krum", 0.2, 2.5),  # all but the far one
        (
            "multi-krum",
            0.4,
            2.0,
        ),  # f = 2: three stay; with one neighbour all near ones score 1, the earlier stay
        ("clipped", 0.2, 2.4),  # the median length is 3: (1 + 2 + 3 + 3 + 3) / 5
    ],
)
def test_fedavg_by_every_rule(rule: Any, hostile: float, expected: float) -> None:
    assert after_a_round(FedAvg(aggregate=rule, hostile=hostile)) == pytest.approx(expected)


def test_the_geometric_median_stays_with_the_majority() -> None:
    # on a line it is the median
    assert after_a_round(FedAvg(aggregate="geometric-median")) == pytest.approx(3.0, abs=1e-3)


def test_fedmedian_is_fedavg_with_the_median() -> None:
    assert after_a_round(FedMedian()) == 3.0 == after_a_round(FedAvg(aggregate="median"))


def test_the_default_is_the_mean_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    models: list[Weights] = [{"w": torch.randn(7, generator=generator)} for _ in range(4)]
    sizes = [3.0, 11.0, 5.0, 2.0]
    assert torch.equal(FedAvg().merge(models, sizes, models[0])["w"], average(models, sizes)["w"])


@pytest.mark.parametrize("name", [n for n in methods.names() if issubclass(methods.get(n), Averaging)])
def test_every_averaging_method_has_the_choice(name: str) -> None:
    method = methods.get(name)()
    assert isinstance(method, Averaging)
    assert method.aggregate == ("median" if name == "fedmedian" else "mean")
    assert method.hostile == 0.2
    with pytest.raises(ConfigError, match=r"hostile = 0.5: it must be at least 0 and below 0.5"):
        dataclasses.replace(method, hostile=0.5)


def test_scaffold_and_feddpcont_step_towards_what_the_rule_gives() -> None:
    scaffold, federation = Scaffold(aggregate="median", server_lr=0.5), five()
    requests = scaffold.requests(scaffold.start(federation), federation, federation.sites)
    assert all(own.relative_size == 1.0 for own in requests.values())

    def reply(name: str, request: Request[Any]) -> Reply | None:
        return Controlled({"w": torch.tensor([PLACES[int(name[1:])]])}, 10, 0.5)

    federation = Scripted({f"s{i}": 10 for i in range(5)}, reply, {"w": torch.zeros(1)})
    assert float(scaffold.train(scaffold.start(federation), federation).weights["w"]) == pytest.approx(1.5)
    contrast = FedDPCont(aggregate="median", server_lr=0.5, fraction=1.0, beta=0.0)
    assert float(contrast.train(contrast.start(five()), five()).weights["w"]) == pytest.approx(1.5)


def test_fednoro_gives_its_shares_to_the_rule() -> None:
    """With a median shares play no role; with the mean it is DaAgg itself."""
    federation = five()
    replies = federation.ask(Train({"w": torch.zeros(1)}, FedAvg().local))
    state = FedNoRoState({"w": torch.zeros(1)}, noisy=("s4",))
    robust = FedNoRo(aggregate="median").weigh(state, replies, federation)  # type: ignore[arg-type]
    assert float(robust["w"]) == 3.0
    plain = FedNoRo(aggregate="mean").weigh(state, replies, federation)  # type: ignore[arg-type]
    clipped = FedNoRo(aggregate="clipped").weigh(state, replies, federation)  # type: ignore[arg-type]
    assert float(clipped["w"]) < float(plain["w"]) < 202.0
    off = FedNoRo(aggregate="median", distance_aware=False).weigh(state, replies, federation)  # type: ignore[arg-type]
    assert torch.equal(off["w"], coordinate_median([reply.weights for reply in replies.values()])["w"])  # type: ignore[attr-defined]


def test_fedcorr_hands_its_rule_to_the_last_stage() -> None:
    assert FedCorr(aggregate="krum", hostile=0.1).last_method().aggregate == "krum"
    assert FedCorr(aggregate="krum", hostile=0.1, adjust=1.0).last_method().hostile == 0.1
    assert FedCorr(aggregate="krum", usual=FedMedian()).last_method().aggregate == "median"


def test_a_known_share_of_hostile_sites_is_told() -> None:
    """The usual guard is a guess; another share, for a rule that counts by it, is knowledge."""
    assert FedAvg(aggregate="krum").oracle is None
    assert FedAvg(aggregate="median", hostile=0.4).oracle is None
    assert FedAvg(aggregate="trimmed", hostile=0.4).oracle == "share of hostile sites 0.4 given"
    both = RoFL(forget=0.3, aggregate="krum", hostile=0.1)
    assert both.oracle == "noise rate 0.3 given, share of hostile sites 0.1 given"
    assert FedCorr(usual=both).oracle == both.oracle
