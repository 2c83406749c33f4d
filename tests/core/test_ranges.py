"""Ranges are part of a field's type and hold from tables and in Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pytest

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Positive, Range, RangeChecked, Rate, Share, ranges_of
from fedsift.methods._base import methods
from fedsift.study.study import Study
from fedsift.training.recipe import Recipe


@dataclass(frozen=True)
class Numbers(RangeChecked):
    rounds: AtLeastOne = 1
    share: Share = 1.0
    rate: Rate = 0.0
    step: Positive = 1.0
    weight: AtLeastZero = 0.0
    part: Annotated[float, Range(0, 1, below=True)] = 0.0
    maybe: Annotated[int, Range(2)] | None = None


@dataclass(frozen=True)
class Checked(Numbers):
    """With a check of its own, which comes after the ranges."""

    def __post_init__(self) -> None:
        if self.rounds == 13:
            raise ConfigError("not 13")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rounds": 0}, "rounds = 0: it must be at least 1"),
        ({"share": 0.0}, "share = 0.0: it must be above 0 and at most 1"),
        ({"share": 7}, "share = 7: it must be above 0 and at most 1"),
        ({"rate": -0.1}, "rate = -0.1: it must be from 0 to 1"),
        ({"step": 0.0}, "step = 0.0: it must be positive"),
        ({"step": float("nan")}, "step = nan: it must be positive"),
        ({"weight": float("inf")}, "weight = inf: it must be at least 0"),
        ({"part": 1.0}, "part = 1.0: it must be at least 0 and below 1"),
        ({"maybe": 1}, "maybe = 1: it must be at least 2"),
    ],
)
@pytest.mark.parametrize("cls", [Numbers, Checked])
def test_outside_is_refused_with_the_range(cls: type[Numbers], change: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**change)  # type: ignore[arg-type]
    assert str(caught.value) == line
    with pytest.raises(ConfigError):
        replace(cls(), **change)  # type: ignore[arg-type]


def test_the_ends_are_inside_and_own_checks_still_run() -> None:
    assert Numbers(rounds=1, share=1, rate=1.0, weight=0, maybe=None).maybe is None
    with pytest.raises(ConfigError, match="not 13"):
        Checked(rounds=13)


@pytest.mark.parametrize("name", list(methods))
def test_every_method_bounds_its_rounds_and_its_share_of_sites(name: str) -> None:
    ranges = ranges_of(methods.get(name))
    fields = methods.get(name).__dataclass_fields__
    for field, limits in {"rounds": Range(1), "fraction": Range(0, 1, above=True)}.items():
        if field in fields:
            assert ranges[field] == limits


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"method": {"name": "fedavg", "rounds": -3}}, "method.rounds = -3: it must be at least 1"),
        (
            {"method": {"name": "fedavg", "fraction": 7}},
            "method.fraction = 7: it must be above 0 and at most 1",
        ),
        ({"engine": {"workers": 500}}, "engine.workers = 500: it must be from 0 to 64"),
        ({"train": {"momentum": 1.0}}, "train.momentum = 1.0: it must be at least 0 and below 1"),
        ({"train": {"augment": {"crop": -1}}}, "train.augment.crop = -1: it must be at least 0"),
        ({"federation": {"quorum": 0.0}}, "federation.quorum = 0.0: it must be above 0 and at most 1"),
        ({"evaluate": {"every": 0}}, "evaluate.every = 0: it must be at least 1"),
        ({"gate": {"norm_factor": -1.0}}, "gate.norm_factor = -1.0: it must be at least 0"),
    ],
)
def test_a_study_names_the_key(table: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Study.from_table(table)
    assert str(caught.value) == line


def test_python_construction_is_checked() -> None:
    with pytest.raises(ConfigError, match="epochs = 0: it must be at least 1"):
        Recipe(epochs=0)
    with pytest.raises(ConfigError, match="rounds = 0: it must be at least 1"):
        methods.get("fedavg")(rounds=0)  # type: ignore[call-arg]
