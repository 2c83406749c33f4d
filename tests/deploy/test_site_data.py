"""A site's file and data, and the site's answers without any Flower process."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedsift.core.codec import digest_of
from fedsift.core.errors import ConfigError, DataError
from fedsift.data.dataset import FederatedDataset
from fedsift.deploy.site import client_app as client
from fedsift.deploy.site.data import open_site, own_secret
from fedsift.deploy.trial_data import export_trial
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from fedsift.transports.flower.records import to_records
from fedsift.transports.remote.answering import answer as answer_in
from fedsift.transports.remote.encoding import encode
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest
from fedsift.transports.remote.notebooks import NotebookStore
from tests.data.pictures_on_disk import labelled_folder
from tests.runtime.exported import (
    assert_no_truth,
    assert_one_public_set,
    assert_same_samples,
    pairs,
    small_data,
)

BASE: dict[str, Any] = {
    "name": "north",
    "classes": ["a", "b", "c"],
    "held_out": 0.0,
    "data": {"name": "npz", "path": "data.npz"},
}


def write_site(folder: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    given = {
        "images": np.arange(6 * 4, dtype=np.uint8).reshape(6, 1, 2, 2),
        "labels": np.array([0, 1, 1, 0, 1, 0]),
        "classes": np.array(["a", "b"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **(given if arrays is None else arrays))
    (folder / "site.toml").write_text(tomli_w.dumps({**BASE, **changes}), "utf-8")
    return folder / "site.toml"


@pytest.fixture(scope="module")
def federated() -> FederatedDataset:
    return small_data()


@pytest.fixture(scope="module")
def trial(federated: FederatedDataset, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return export_trial(federated, {}, tmp_path_factory.mktemp("trial"))


def test_a_trial_site_is_the_site_that_the_in_process_engine_serves(
    federated: FederatedDataset, trial: list[Path]
) -> None:
    for mine, theirs in pairs(federated, trial, open_site):
        assert mine.facts == dataclasses.replace(theirs.facts, test=0)
        assert_same_samples(mine, theirs)


def test_a_trials_public_set_is_the_same_at_every_site(federated: FederatedDataset, tmp_path: Path) -> None:
    assert_one_public_set(federated, lambda chosen: export_trial(chosen, {}, tmp_path), open_site)


def test_a_trial_site_has_no_test_set_and_a_secret_of_its_own(trial: list[Path]) -> None:
    first, second, _ = (open_site(path) for path in trial)
    assert first.test is None
    assert len(first.secret) == 64
    assert first.secret != second.secret
    place = trial[0].parent / "notebook" / first.name
    assert own_secret(place) == first.secret
    assert (place / "secret").stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == place.parent.stat().st_mode & 0o777 == 0o700
    assert first.secret not in repr(first)


def test_the_truth_is_no_part_of_a_trial(federated: FederatedDataset, trial: list[Path]) -> None:
    assert_no_truth(federated, trial[0].parent, trial[0])


def test_a_site_may_lack_classes_of_the_federation(tmp_path: Path) -> None:
    opened = open_site(write_site(tmp_path, classes=["b", "c", "a"]))
    assert opened.given.tolist() == [2, 0, 0, 2, 0, 2]
    assert opened.introduction("mlp").classes == ("b", "c", "a")


def test_a_share_is_held_out_for_evaluation(tmp_path: Path) -> None:
    opened = open_site(write_site(tmp_path, held_out=0.34))
    assert (len(opened.samples), opened.facts("mlp").held_out) == (4, 2)


def test_changed_data_are_read_again(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    assert open_site(path) is open_site(path)
    first = open_site(path)
    write_site(tmp_path, {"images": np.zeros((2, 1, 2, 2), np.uint8), "labels": np.array([0, 1])}, classes=["0", "1"])
    assert len(first.samples) == 6
    assert len(open_site(path).samples) == 2


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"nmae": "x"}, ConfigError, "nmae.*name"),
        ({"name": " "}, ConfigError, "'name' is empty"),
        ({"classes": ["a", "a"]}, ConfigError, "once"),
        ({"annotated": ["z"]}, ConfigError, "'z'"),
        ({"classes": ["a", "c"]}, DataError, "'north'.*class 'b'"),
        ({"multilabel": True}, DataError, "'north'.*one label"),
        ({"data": {"name": "npz", "path": "nowhere.npz"}}, DataError, "nowhere.npz"),
        ({"data": {"name": "nzp"}}, ConfigError, "nzp"),
    ],
)
def test_mistakes_in_a_site_file_are_named(tmp_path: Path, changes: dict[str, Any], kind: type, words: str) -> None:
    with pytest.raises(kind, match=f"(?s){words}"):
        open_site(write_site(tmp_path, **changes))


def test_a_missing_site_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"site\.toml' does not exist"):
        open_site(tmp_path / "site.toml")


def train(site: str = "north", run: str = "run", expects: str = "") -> RequestEnvelope:
    weights = initial_weights("mlp", (1, 2, 2), 3, seed=1)
    return RequestEnvelope(run, site, RequestMoment(1, "train", 0, 0), expects, Train(weights, Recipe()))


def answer(asked: Any, path: Path, session: str, expose_errors: bool = False) -> Any:
    return answer_in(asked, lambda: open_site(path, "mlp"), "mlp", session, expose_errors=expose_errors)


def test_a_site_introduces_itself(tmp_path: Path) -> None:
    reply = answer(IntroductionRequest(), write_site(tmp_path), "session")
    assert isinstance(reply, Introduction)
    assert (reply.facts.name, reply.facts.samples, reply.facts.model) == ("north", 6, "mlp")


def test_the_notebook_is_on_disk_before_the_answer_is_out(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    reply = answer(train(), path, "session")
    assert isinstance(reply, ReplyEnvelope)
    assert reply.failure == ""
    assert (tmp_path / "notebook" / "north" / "runs" / "run" / "0.0.answer").is_file()
    again = answer(train(), path, "another session")
    assert digest_of(again) == digest_of(reply)


def test_a_request_for_another_site_is_refused(tmp_path: Path) -> None:
    reply = answer(train(site="south"), write_site(tmp_path), "session")
    assert "this is 'north'" in reply.failure


def test_a_lost_notebook_is_reported_by_its_name(tmp_path: Path) -> None:
    reply = answer(train(expects="7.0:train"), write_site(tmp_path), "session")
    assert reply.reply is None
    assert reply.failure.startswith("NotebookGone: site 'north'")


def test_the_text_of_an_unforeseen_error_stays_at_the_site(tmp_path: Path) -> None:
    path = write_site(tmp_path, data={"name": "npz", "path": "patient-4711.npz"})
    assert answer(IntroductionRequest(), path, "").failure == "the site failed: DataError; its own log says more"
    assert "4711" in answer(IntroductionRequest(), path, "", expose_errors=True).failure


def test_a_full_disk_is_named_and_the_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*parts: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/home/patient-4711")

    monkeypatch.setattr(NotebookStore, "keep", full)
    said = answer(train(), write_site(tmp_path), "").failure
    assert said == "the site failed: No space left on device; its own log says more"


def test_a_node_knows_its_site_from_its_own_settings_alone() -> None:
    message = SimpleNamespace(content=to_records(encode(IntroductionRequest())))
    context = SimpleNamespace(node_config={"site": "/data/site.toml", "partition-id": 0}, run_id=1)
    with pytest.raises(ConfigError, match="fedsift flower site"):
        client.call(message, context)  # type: ignore[arg-type]


def test_pictures_become_features_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedsift.training.features as features

    def three_means() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    monkeypatch.setattr(features, "_extractor", lambda name: features.Extractor(three_means()))
    monkeypatch.setattr(features, "cache_root", lambda: tmp_path / "cache")
    path = write_site(tmp_path / "site")
    opened = open_site(path, "features:three-means")
    assert opened.samples.shape == (3,)
    assert opened.introduction("features:three-means").facts.model == "features:three-means"
    assert open_site(path, "mlp").samples.shape == (1, 2, 2)


def picture_site(folder: Path, **data: Any) -> Path:
    labelled_folder(folder / "own", count=6, classes=("a", "b"))
    return write_site(folder, data={"name": "folder", "path": "own", "size": 8, **data})


def test_a_table_that_is_not_there_is_told_with_the_site_and_where_one_is(tmp_path: Path) -> None:
    path = picture_site(tmp_path, table="labels.csv")
    found = tmp_path / "own" / "labels.csv"
    with pytest.raises(DataError, match=rf"site 'north': there is no table .*, but there is {found}: name it"):
        open_site(path)
    found.unlink()
    with pytest.raises(DataError, match=f"site 'north': there is no table {tmp_path / 'labels.csv'}"):
        open_site(path)


def test_pictures_that_are_left_out_are_told_at_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = picture_site(tmp_path)
    broken = tmp_path / "own" / "pictures" / "p003.png"
    broken.write_bytes(broken.read_bytes()[:60])
    (tmp_path / "own" / "pictures" / "p004.png").unlink()
    with caplog.at_level(logging.WARNING, "fedsift.site"):
        assert open_site(path).facts("").samples == 4
    assert "site 'north': 1 pictures of the table are not there, e.g. 'pictures/p004.png'" in caplog.text
    assert "p003.png" in caplog.text


def test_a_cache_that_cannot_be_written_is_one_line_with_the_key_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"site 'north': '.*file/cache.*FEDSIFT_CACHE names another folder"):
        open_site(picture_site(tmp_path))


def write_table(folder: Path, rows: list[str], **data: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.csv").write_text("\n".join(["id,age,sodium,label", *rows]) + "\n", "utf-8")
    described = {**BASE, "held_out": 0.0, "data": {"name": "table", "path": "own.csv", **data}}
    (folder / "site.toml").write_text(tomli_w.dumps(described), "utf-8")
    return folder / "site.toml"


def test_a_site_whose_data_are_a_table_of_numbers(tmp_path: Path) -> None:
    """Class "b" is not there, and is a class all the same; sites that share a scale mean the same by a number."""
    (tmp_path / "scaling.json").write_text(json.dumps({"age": [50, 10], "sodium": [140, 2]}), "utf-8")
    own = open_site(write_table(tmp_path / "one", ["x,60,142,a", "y,40,140,a"], scaling="../scaling.json"))
    other = open_site(write_table(tmp_path / "two", ["z,60,142,b", "w,90,120,a"], scaling="../scaling.json"))
    assert own.classes == ("a", "b", "c")
    assert own.given.tolist() == [0, 0]
    seen = [opened.samples.pool[opened.samples.rows] for opened in (own, other)]
    assert seen[0].tolist() == [[1.0, 1.0], [-1.0, 0.0]]
    assert seen[1][0].tolist() == seen[0][0].tolist()


def test_a_table_that_changed_is_read_again(tmp_path: Path) -> None:
    path = write_table(tmp_path, ["x,60,142,a", "y,40,140,b"])
    assert open_site(path).given.tolist() == [0, 1]
    (tmp_path / "own.csv").write_text("id,age,sodium,label\nx,60,142,b\ny,40,140,b\nz,1,1,a\n", "utf-8")
    os.utime(tmp_path / "own.csv", ns=(1, 1))
    assert open_site(path).given.tolist() == [1, 1, 0]
