"""No message, whatever is in it, ends a run: thousands through gate and methods here, 100,000 in the slow tests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedsift.methods._base import methods
from tests.promises.federations import contract_study
from tests.promises.fuzz import Recorded, record

KINDS = {"fedavg": 700, "fednoro": 500, "fedmlp": 300, "rhfl": 500, "label-audit": 100}
"""Methods whose replies hold between them models, scores, counts, prototypes and public predictions."""
SLOW = 100_000


def _fuzzed(name: str, folder: Path, messages: int) -> Recorded:
    recorded = record(contract_study(name, folder))
    chance = random.Random(f"{name} {messages}")
    for _ in range(messages):
        recorded.fuzz(chance)
    return recorded


@pytest.mark.parametrize("name", KINDS)
def test_fuzzed_messages_never_end_a_run(name: str, tmp_path: Path) -> None:
    outcomes = _fuzzed(name, tmp_path, KINDS[name]).outcomes
    assert outcomes["set aside"] > KINDS[name] / 4 and outcomes["unreadable"] > KINDS[name] / 5, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_a_hundred_thousand_fuzzed_messages(name: str, tmp_path: Path) -> None:
    each = -(-SLOW // len(methods.names()))
    outcomes = _fuzzed(name, tmp_path, each).outcomes
    assert sum(outcomes.values()) == each
    assert outcomes["set aside"]
