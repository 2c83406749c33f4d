"""What the page on leakage says of Flower is still so."""

from __future__ import annotations

import pytest


def test_flower_offers_no_secure_aggregation_for_messages() -> None:
    mods = pytest.importorskip("flwr.clientapp.mod")
    workflow = pytest.importorskip("flwr.server.workflow")
    assert not [name for name in dir(mods) if "secagg" in name.lower()]
    with pytest.raises(TypeError, match="LegacyContext"):
        workflow.SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, object())
