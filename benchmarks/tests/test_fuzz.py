"""Changed replies through the gate and the methods: nothing raises, nothing is executed, nothing refused stays."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="messages are Flower's")

from benchmarks.faults.fuzz import fuzz, fuzz_method
from benchmarks.faults.mutations import EXECUTED


@pytest.mark.parametrize(("name", "messages"), [("fedavg", 150), ("fednoro", 150), ("fedmlp", 50)])
def test_whatever_is_sent_a_method_goes_on(name: str, messages: int) -> None:
    found = fuzz_method(name, messages, seed=7)
    assert found.faults == [] and EXECUTED == []
    assert found.messages >= messages and found.messages == found.refused + found.accepted
    assert found.refused > 2 * found.accepted > 0, "most are broken, some are merely false"


@pytest.mark.slow
def test_a_hundred_thousand_messages() -> None:
    found = fuzz(100_000, seed=2)
    assert found["faults"] == [] and found["executed"] == 0
    assert found["messages"] >= 100_000
