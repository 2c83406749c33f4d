"""A study of a person's own data: its sites, its labels, its paths, and another method on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsift.core.errors import ConfigError
from fedsift.study.running import new_run, reopen
from fedsift.study.study import Study
from tests.data.pictures_on_disk import labelled_folder

STUDY = """
[data]
name = "folder"
path = "own"
size = 8
[method]
name = "fednoro"
rounds = 4
warm_up = 2
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    labelled_folder(folder / "own", 40, site=lambda k: f"clinic-{k % 4}")
    (folder / "study.toml").write_text(STUDY)
    return folder


def test_a_site_column_means_the_sites_and_own_labels_are_no_truth(home: Path) -> None:
    federated = Study.from_file(home / "study.toml").load_data()
    assert federated.sites == ("clinic-0", "clinic-1", "clinic-2", "clinic-3")
    assert federated.truth is None


def test_without_a_site_column_the_made_up_sites_are_announced(tmp_path: Path) -> None:
    labelled_folder(tmp_path / "own", 40)
    study = Study.from_table({"data": {"name": "folder", "path": str(tmp_path / "own"), "size": 8}})
    federated = study.load_data()
    assert len(federated.sites) == 10
    assert any("the data name no sites: spread at random over 10" in note for note in federated.notes)


def test_a_partition_and_trust_are_a_persons_choice(home: Path) -> None:
    federated = Study.from_file(
        home / "study.toml", ["partition.name=iid", "partition.sites=3", "data.trusted=true"]
    ).load_data()
    assert len(federated.sites) == 3
    assert federated.truth is not None


def test_sites_of_arrays_and_labels_of_known_data(tmp_path: Path) -> None:
    images = np.zeros((12, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(12) % 2, site=np.repeat(["x", "y", "z"], 4))
    federated = Study.from_table({"data": {"name": "npz", "path": str(tmp_path / "a.npz")}}).load_data()
    assert (federated.sites, federated.truth) == (("x", "y", "z"), None)
    known = Study.from_table({}).load_data()
    assert len(known.sites) == 10
    assert known.truth is not None


def test_paths_start_at_the_studys_file_wherever_one_stands(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study.from_file(Path("home/study.toml"))
    assert study.source.path == home / "own"  # type: ignore[attr-defined]
    folder = new_run(study, tmp_path / "runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again, _ = reopen(folder.path)
    assert again == study
    assert again.load_data().sites == study.load_data().sites


def test_a_typed_path_starts_where_one_stands(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (tmp_path / "other").mkdir()
    study = Study.from_file(home / "study.toml", ["data.path=../other", "data.table=own/labels.csv"])
    assert study.source.path == tmp_path / "other"  # type: ignore[attr-defined]
    assert study.source.table == home / "own/labels.csv"  # type: ignore[attr-defined]


def test_another_method_leaves_the_first_ones_keys_behind(home: Path) -> None:
    study = Study.from_file(home / "study.toml", ["method.name=fedavg"])
    assert study.method_name == "fedavg"
    assert study.method.total_rounds == 4
    assert study.notes == ("method.name = 'fedavg': warm_up of 'fednoro' is left out; kept: rounds = 4",)
    assert study.notes[0] in study.load_data().notes


def test_a_key_that_is_typed_is_never_dropped(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'method\.warm_up'"):
        Study.from_file(home / "study.toml", ["method.name=fedavg", "method.warm_up=3"])
    with pytest.raises(ConfigError, match="unknown method 'fedavgg'"):
        Study.from_file(home / "study.toml", ["method.name=fedavgg"])


@pytest.mark.parametrize(
    ("text", "settings", "note"),
    [
        (
            '[noise]\nname = "fedcorr"\nrho = 0.5\n',
            ["noise.name=symmetric", "noise.rate=0.3"],
            "noise.name = 'symmetric': rho of 'fedcorr' is left out",
        ),
        (
            '[partition]\nname = "bernoulli-dirichlet"\nsites = 4\np = 0.9\nalpha = 1.0\n',
            ["partition.name=iid"],
            "partition.name = 'iid': p, alpha of 'bernoulli-dirichlet' are left out; kept: sites = 4",
        ),
        (
            '[data]\nname = "npz"\npath = "x.npz"\n',
            ["data.name=digits"],
            "data.name = 'digits': path of 'npz' is left out",
        ),
    ],
)
def test_other_tables_too(tmp_path: Path, text: str, settings: list[str], note: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    assert Study.from_file(tmp_path / "study.toml", settings).notes == (note,)


@pytest.mark.parametrize(
    ("device", "words"), [("cuda:99", "cuda"), ("gpu", "it must be cpu, cuda"), ("", "it must be cpu, cuda")]
)
def test_a_device_that_is_not_there_is_refused(device: str, words: str) -> None:
    study = Study.from_table({"engine": {"device": device}})
    with pytest.raises(ConfigError, match=words):
        study.engine.compute()
