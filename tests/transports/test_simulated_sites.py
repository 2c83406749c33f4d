"""Sites of a simulation as folders: what the in-process engine serves, without the truth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import FederatedDataset
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment
from fedsift.runtime.in_process import InProcess
from fedsift.training.requests import Evaluate
from fedsift.transports.flower.processes import SIMULATED_SITES
from fedsift.transports.flower.simulation_client import site_place
from fedsift.transports.remote.answering import answer_message
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import IntroductionRequest, NoSite
from fedsift.transports.remote.notebooks import NotebookStore
from fedsift.transports.remote.simulated_sites import export_sites, open_simulated, seen
from tests.runtime.exported import (
    assert_no_truth,
    assert_one_public_set,
    assert_same_samples,
    pairs,
    small_data,
)


@pytest.fixture(scope="module")
def federated() -> FederatedDataset:
    return small_data()


def test_an_exported_site_is_the_site_that_the_in_process_engine_serves(
    federated: FederatedDataset, tmp_path: Path
) -> None:
    for mine, theirs in pairs(federated, export_sites(federated, {}, tmp_path), open_simulated):
        assert mine.facts == theirs.facts
        assert_same_samples(mine, theirs)
        assert mine.test is not None
        assert theirs.test is not None
        tested = torch.arange(len(theirs.test))
        assert torch.equal(mine.test.take(tested), theirs.test.take(tested))
        assert torch.equal(mine.test_labels, theirs.test_labels)
        assert mine.secret == theirs.secret == ""


def test_a_public_set_is_the_same_at_every_site(federated: FederatedDataset, tmp_path: Path) -> None:
    assert_one_public_set(federated, lambda chosen: export_sites(chosen, {}, tmp_path), open_simulated)


def test_the_truth_is_not_exported(federated: FederatedDataset, tmp_path: Path) -> None:
    [first, *_] = export_sites(federated, {}, tmp_path)
    assert_no_truth(federated, first, first / "site.json")


def test_what_is_annotated_and_which_network_is_a_sites_own(federated: FederatedDataset, tmp_path: Path) -> None:
    marks = {site: np.array([number != 1 or k != 3 for k in range(10)]) for number, site in enumerate(federated.sites)}
    partly = dataclasses.replace(federated, annotated=marks)
    runtimes = [open_simulated(place) for place in export_sites(partly, {federated.sites[2]: "lenet5"}, tmp_path)]
    assert [runtime.facts("mlp").model for runtime in runtimes] == ["mlp", "mlp", "lenet5"]
    assert runtimes[1].facts("mlp").annotated == (0, 1, 2, 4, 5, 6, 7, 8, 9)
    federation = InProcess(partly, run="run", seed=1, model="mlp", models={federated.sites[2]: "lenet5"})
    assert [runtime.facts("mlp") for runtime in runtimes] == list(federation.facts.values())


def test_a_node_takes_a_site_of_the_federation_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATED_SITES, raising=False)
    with pytest.raises(ConfigError, match="simulated sites"):
        site_place(0, "../../etc")
    monkeypatch.setenv(SIMULATED_SITES, str(tmp_path))
    (tmp_path / "etc" / "00000-a").mkdir(parents=True)
    assert site_place(0, "../../etc") == tmp_path / "etc" / "00000-a"
    assert site_place(1, "../../etc") is None
    assert isinstance(decode(answer_message(encode(IntroductionRequest()), None, "", expose_errors=True)), NoSite)


def test_notebooks_of_simulated_sites_can_be_read_afterwards(federated: FederatedDataset, tmp_path: Path) -> None:
    site = federated.sites[0]
    asked = RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", Evaluate(None))
    store = NotebookStore(tmp_path / "notebook", "run", site)
    with store.locked():
        notebook, base = store.open(asked)
        notebook["labels"] = torch.tensor([1, 0])
        store.keep(asked, "digest", notebook, base, ReplyEnvelope("run", site, asked.moment.id, None))
    found = seen(federated, {site: tmp_path}, "run", {site: asked.moment.id})
    assert found.notebooks[site]["labels"].tolist() == [1, 0]
    assert found.federated is federated
    assert seen(federated, {site: tmp_path}, "run", {}).notebooks == {}
