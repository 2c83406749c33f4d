"""Sites of a simulation as folders: what the in-process engine serves, without the truth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsift.contract.errors import ConfigError
from fedsift.contract.messages import Answer, Envelope, Moment
from fedsift.contract.notebook import Notebook
from fedsift.data.dataset import PublicSet, Spread
from fedsift.engines.flower.answering import answer_letter
from fedsift.engines.flower.client import site_place
from fedsift.engines.flower.hello import Hello, Vacant
from fedsift.engines.flower.notebooks import NotebookStore
from fedsift.engines.flower.processes import SIMULATED_SITES
from fedsift.engines.flower.records import letter_of, value_of
from fedsift.engines.flower.simulated_sites import export_sites, open_simulated, seen
from fedsift.engines.inprocess import InProcess
from fedsift.local.requests import Evaluate
from fedsift.study import Study


@pytest.fixture(scope="module")
def spread() -> Spread:
    study = Study.from_table(
        {
            "partition": {"name": "bernoulli-dirichlet", "sites": 3, "p": 0.7, "alpha": 1.0},
            "noise": {"name": "fedcorr", "rho": 1.0, "tau": 0.5},
            "evaluate": {"held_out": 0.1},
        }
    )
    return study.spread()


def test_an_exported_site_is_the_site_that_the_in_process_engine_serves(
    spread: Spread, tmp_path: Path
) -> None:
    federation = InProcess(spread, run="run", seed=1, model="mlp")
    moment = Moment(1, "train", 0, 0)
    for name, path in zip(spread.sites, export_sites(spread, {}, tmp_path)):
        mine = open_simulated(path).site(moment, Notebook(), "mlp")
        theirs = federation.site(Envelope("run", name, moment, "", Evaluate(None)))
        everything = torch.arange(len(theirs.samples))
        assert mine.facts == theirs.facts
        assert torch.equal(mine.samples.take(everything), theirs.samples.take(everything))
        assert torch.equal(mine.given, theirs.given)
        assert mine.held_out is not None
        assert theirs.held_out is not None
        held = torch.arange(len(theirs.held_out))
        assert torch.equal(mine.held_out.take(held), theirs.held_out.take(held))
        assert torch.equal(mine.held_out_given, theirs.held_out_given)
        assert mine.test is not None
        assert theirs.test is not None
        tested = torch.arange(len(theirs.test))
        assert torch.equal(mine.test.take(tested), theirs.test.take(tested))
        assert torch.equal(mine.test_labels, theirs.test_labels)
        assert mine.secret == theirs.secret == ""


def test_a_public_set_is_the_same_at_every_site(spread: Spread, tmp_path: Path) -> None:
    public = PublicSet("p", spread.dataset.images, np.array([5, 3, 9]), (0.1,), (0.2,))
    with_public = dataclasses.replace(spread, public=public)
    federation = InProcess(with_public, run="run", seed=1, model="mlp")
    files = export_sites(with_public, {}, tmp_path)
    assert {open_simulated(path).facts("mlp").public_digest for path in files} == {
        federation.facts[site].public_digest for site in spread.sites
    }


def test_the_truth_is_not_exported(spread: Spread, tmp_path: Path) -> None:
    [first, *_] = export_sites(spread, {}, tmp_path)
    with np.load(first / "data.npz") as arrays:
        assert set(arrays.files) == {"images", "labels", "classes", "ids", "test_images", "test_labels"}
        rows = (*spread.rows[spread.sites[0]], *spread.held_out[spread.sites[0]])
        names = [spread.dataset.id_of(int(row)) for row in rows]
        assert arrays["ids"].tolist() == names  # what a list calls a sample, not what it shows
        assert np.array_equal(arrays["labels"], spread.given[spread.sites[0]])
    assert "truth" not in (first / "site.json").read_text("utf-8")


def test_what_is_annotated_and_which_network_is_a_sites_own(spread: Spread, tmp_path: Path) -> None:
    marks = {
        site: np.array([number != 1 or k != 3 for k in range(10)]) for number, site in enumerate(spread.sites)
    }
    partly = dataclasses.replace(spread, annotated=marks)
    rooms = [open_simulated(place) for place in export_sites(partly, {spread.sites[2]: "lenet5"}, tmp_path)]
    assert [room.facts("mlp").model for room in rooms] == ["mlp", "mlp", "lenet5"]
    assert rooms[1].facts("mlp").annotated == (0, 1, 2, 4, 5, 6, 7, 8, 9)
    federation = InProcess(partly, run="run", seed=1, model="mlp", models={spread.sites[2]: "lenet5"})
    assert [room.facts("mlp") for room in rooms] == list(federation.facts.values())


def test_a_node_takes_a_site_of_the_federation_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATED_SITES, raising=False)
    with pytest.raises(ConfigError, match="simulated sites"):
        site_place(0, "../../etc")
    monkeypatch.setenv(SIMULATED_SITES, str(tmp_path))
    (tmp_path / "etc" / "00000-a").mkdir(parents=True)
    assert site_place(0, "../../etc") == tmp_path / "etc" / "00000-a"
    assert site_place(1, "../../etc") is None
    assert isinstance(value_of(answer_letter(letter_of(Hello()), None, "", frank=True)), Vacant)


def test_notebooks_of_simulated_sites_can_be_read_afterwards(spread: Spread, tmp_path: Path) -> None:
    site = spread.sites[0]
    asked = Envelope("run", site, Moment(1, "train", 0, 0), "", Evaluate(None))
    store = NotebookStore(tmp_path / "notebook", "run", site)
    with store.locked():
        notebook, base = store.open(asked)
        notebook["labels"] = torch.tensor([1, 0])
        store.keep(asked, "digest", notebook, base, Answer("run", site, asked.moment.id, None))
    found = seen(spread, {site: tmp_path}, "run", {site: asked.moment.id})
    assert found.notebooks[site]["labels"].tolist() == [1, 0]
    assert found.spread is spread
    assert seen(spread, {site: tmp_path}, "run", {}).notebooks == {}
