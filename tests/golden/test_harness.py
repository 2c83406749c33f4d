"""The harness itself: it must notice every wrong number and name everything that is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_adapters import all_adapters
from golden_harness import (
    VECTORS,
    Adapters,
    MissingEntry,
    NullIsUnchecked,
    check,
    decode,
    listed,
    load,
    parameters,
    run_case,
)

ROOT = Path(__file__).parents[2]
EXACT = {"rtol": 1e-9, "atol": 1e-9}
DRAWN = ("partitions", "h_idn_noise", "noise_matrices")
"""Topics measured by drawing many times; too slow to be run again here."""

LA_CASE: dict[str, Any] = {
    "name": "even",
    "op": "la_ce",
    "variant": "both",
    "what": "Two classes, zero logits, equal counts: log 2.",
    "inputs": {"logits": [[0.0, 0.0]], "labels": [0], "counts": [5, 5], "tau": 1.0},
    "expected": {"mean": 0.6931471805599453, "grad_logits": [[-0.5, 0.5]]},
    "tolerance": EXACT,
}


def wrong_versions(value: Any) -> Iterator[Any]:
    """The value with one leaf made wrong, for every leaf in turn."""
    if isinstance(value, dict):
        for key, entry in value.items():
            for wrong in wrong_versions(entry):
                yield {**value, key: wrong}
    elif isinstance(value, list):
        yield [*value, 0.0]
        for i, entry in enumerate(value):
            for wrong in wrong_versions(entry):
                yield [*value[:i], wrong, *value[i + 1 :]]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield value + "?"
    elif value is None:
        yield -7.25
    else:
        yield value + 1 + 0.01 * abs(value) if abs(value) < 1e300 else 0.0


@pytest.mark.parametrize("topic", sorted({topic for topic, _ in load(VECTORS)} - set(DRAWN)))
def test_every_expected_value_can_fail(topic: str) -> None:
    table = all_adapters()
    for name, case in load(VECTORS):
        if name != topic:
            continue
        got = listed(table[topic, case["op"]](decode(case["inputs"]), case["variant"]))
        expected = {
            key: value
            for key, value in decode(case["expected"]).items()
            if value is not None or not isinstance(got[key], NullIsUnchecked)
        }
        for wrong in wrong_versions(expected):
            with pytest.raises(AssertionError):
                check(got, wrong, case["tolerance"])


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (1.1, 1.0),
        (None, 1.0),
        (1.0, None),
        ([1.0], [1.0, 2.0]),
        (float("nan"), 1.0),
        (1.0, float("inf")),
        ({}, {"a": 1}),
    ],
)
def test_differences_are_noticed(got: Any, want: Any) -> None:
    with pytest.raises(AssertionError):
        check(got, want, EXACT)


def test_infinities_are_compared_as_such() -> None:
    check([float("-inf"), float("nan")], decode(["-inf", "nan"]), EXACT)
    with pytest.raises(AssertionError):
        check(float("inf"), decode("-inf"), EXACT)


def test_unknown_topic_operation_and_variant_are_missing() -> None:
    adapters = Adapters()
    adapters.add("topic", "op", "paper")(lambda inputs, variant: {"x": 1})
    case = {"op": "op", "variant": "paper", "inputs": {}, "expected": {"x": 1}, "tolerance": EXACT}
    run_case(adapters.table, "topic", case)
    for topic, change in (("other", {}), ("topic", {"op": "no"}), ("topic", {"variant": "official"})):
        wanted = {**case, **change}
        with pytest.raises(MissingEntry, match=f"{topic}/{wanted['op']}/{wanted['variant']}"):
            run_case(adapters.table, topic, wanted)


def test_another_folder_is_run_and_missing_entries_are_listed(tmp_path: Path) -> None:
    wrong = {**LA_CASE, "name": "wrong", "expected": {"mean": 0.7}}
    no_listener = {**LA_CASE, "name": "no_listener", "op": "la_mse"}
    body = {"topic": "logit_adjustment", "cases": [LA_CASE, wrong, no_listener]}
    (tmp_path / "logit_adjustment.json").write_text(json.dumps(body))
    (tmp_path / "newer.json").write_text(json.dumps({"topic": "newer", "cases": [LA_CASE]}))
    command = [sys.executable, "-m", "pytest", "tests/golden/test_golden.py", "--golden", str(tmp_path), "-q"]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "3 failed, 1 passed" in done.stdout
    assert "golden entries missing: logit_adjustment/la_mse/both, newer/la_ce/both" in done.stdout
    assert ".mean: got 0.693" in done.stdout


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="no golden vectors"):
        parameters(tmp_path)
