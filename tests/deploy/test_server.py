"""The coordinator's program: its own test set, and whom it waits for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsift.deploy.coordinator.server_app import FederationFile, expected_sites, own_data, own_test
from fedsift.protocol.messages import SiteFacts
from fedsift.transports.remote.introduction import Introduction


def test_the_own_test_set_goes_by_the_studys_network_and_not_by_a_sites_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    np.savez(tmp_path / "test.npz", images=images, labels=np.array([0, 1, 1]), classes=np.array(["a", "b"]))
    facts = SiteFacts("aachen", 10, model="features:not_asked_for:look", classes=2)
    first = Introduction(facts, ("a", "b"), False, (1, 2, 2), (0.5,), (0.5,))
    monkeypatch.setattr("fedsift.training.features._extractor", lambda name: pytest.fail(f"called {name}"))
    table = {"name": "npz", "path": str(tmp_path / "test.npz")}
    data = own_data(table, "mlp")
    assert data is not None
    samples, labels = own_test(data, first, tmp_path / "federation.toml")
    assert samples.shape == (1, 2, 2)
    assert labels.tolist() == [0, 1, 1]


LISTED = ("north", "south", "east")


def test_without_names_those_on_the_roster_are_waited_for() -> None:
    assert expected_sites(FederationFile(at_least=2), LISTED).sites == LISTED
    assert expected_sites(FederationFile(sites=("south", "north"), at_least=2), LISTED).sites == (
        "south",
        "north",
    )


def test_a_roster_that_is_too_short_yet_and_none_at_all_take_whoever_comes() -> None:
    assert expected_sites(FederationFile(at_least=4), LISTED).sites == ()
    assert expected_sites(FederationFile(at_least=2), ()).sites == ()
