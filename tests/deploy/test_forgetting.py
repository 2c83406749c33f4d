"""Forgetting a sample at a deployed site: what it kept is gone, what left is named, the sample does not come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import withdraw
from fedsift.deploy.site.data import open_site, site_data
from fedsift.deploy.site.embeddings import note_embedding
from fedsift.deploy.site.forgetting import forget_at_site, forgotten_at, serving
from fedsift.label_audit.at_site import CountLabels
from fedsift.methods.fedcorr import ScoreModel
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import ReplyEnvelope, Request, RequestEnvelope, RequestMoment
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from fedsift.transports.remote.encoding import decode, encode
from tests.deploy.test_site_data import write_site

NAMES = [f"scan-{k}" for k in range(12)]
HOSTILE = "../../secret\x1b[2J[bold]\n"


def site(folder: Path, names: list[str] | None = None) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "images": rng.integers(0, 255, (12, 1, 2, 2), dtype=np.uint8),
        "labels": np.array([0, 1] * 6),
        "classes": np.array(["a", "b"]),
    }
    if names is not None:
        arrays["ids"] = np.array(names)
    path = write_site(folder, arrays)
    (folder / "notebook" / "north").mkdir(parents=True, exist_ok=True)
    return path


def ask(path: Path, request: Request[Any], run: str = "run", ask: int = 0, expects: str = "") -> ReplyEnvelope:
    envelope = RequestEnvelope(run, "north", RequestMoment(1, "train", 0, ask), expects, request)
    encoded = encode(envelope).with_note(model="mlp", session="1")
    answer = decode(worker._reply(encoded, path))
    assert isinstance(answer, ReplyEnvelope)
    return answer


def visit(path: Path, run: str) -> None:
    """What FedCorr does in a visit: train, and note the loss of every sample."""
    weights = initial_weights("mlp", (1, 2, 2), 3, 1)
    answer = ask(path, Train(weights, Recipe(batch_size=4), then=(ScoreModel(k=3),)), run)
    assert answer.failure == ""


def everything(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


LONG = "r" * 90
"""A run's name that is cut in the name of its folder."""


def test_notes_of_every_run_are_gone_and_the_runs_are_closed(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    for run in ("first", "second", LONG):
        visit(path, run)
    notebook = tmp_path / "notebook" / "north"
    assert len(list(notebook.glob("runs/*/*.pages"))) == 3
    [found] = forget_at_site(path, ["scan-3"], who="owner")
    assert {"first", "second", LONG} <= set(found.runs)
    assert list(notebook.glob("runs/*/*.pages")) == list(notebook.glob("runs/*/*.answer")) == []
    assert len(found.files) == 6 and not any(Path(file).exists() for file in found.files)
    for run in ("first", LONG):
        later = ask(path, CountLabels((1, 3)), run, ask=1, expects="0.0:train")
        assert later.failure.startswith("NotebookGone: site 'north' has removed its notes of run")
        again = ask(path, CountLabels((1, 3)), run)
        assert again.failure.startswith("NotebookGone: ")
    visit(path, "third")
    kept = next((notebook / "runs" / "third").glob("*.pages"))
    assert kept.is_file()


def test_a_forgotten_sample_does_not_come_back_while_the_data_hold_it(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    before = open_site(path)
    forget_at_site(path, ["scan-3", "scan-7"], who="owner")
    _, dataset, train, _ = site_data(path)
    names = {dataset.id_of(int(row)) for row in train}
    assert names == set(NAMES) - {"scan-3", "scan-7"}
    assert (len(before.samples), len(open_site(path).samples)) == (12, 10)
    with pytest.raises(DataError, match="has forgotten 'scan-3' already"):
        forget_at_site(path, ["scan-3"], who="owner")
    withdraw(tmp_path / "notebook" / "north", erase=True)
    assert "scan-7" in forgotten_at(tmp_path / "notebook" / "north")


def test_what_stays_names_no_sample(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    visit(path, "first")
    forget_at_site(path, ["scan-3"], who="owner")
    notebook = tmp_path / "notebook" / "north"
    assert b"scan-3" not in everything(notebook)
    [line] = (notebook / "forgotten.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["body"]["runs"] == ["first"]
    assert (notebook / "forgotten.jsonl").stat().st_mode & 0o077 == 0
    assert (notebook / "egress.jsonl").is_file()


def test_a_site_that_runs_is_not_touched(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    visit(path, "first")
    notebook = tmp_path / "notebook" / "north"
    before = everything(notebook / "runs")
    with serving(notebook), serving(notebook), pytest.raises(ConfigError, match="is running and holds"):
        forget_at_site(path, ["scan-3"], who="owner")
    assert everything(notebook / "runs") == before
    assert len(forgotten_at(notebook)) == 0
    forget_at_site(path, ["scan-3"], who="owner")


@pytest.mark.parametrize("name", ["scan-12", "", "../runs", "*", "0", HOSTILE])
def test_a_name_that_no_sample_has_removes_nothing(tmp_path: Path, name: str) -> None:
    path = site(tmp_path, NAMES)
    visit(path, "first")
    before = everything(tmp_path / "notebook")
    with pytest.raises(DataError, match="has no sample") as refused:
        forget_at_site(path, ["scan-3", name], who="owner")
    assert str(refused.value).isprintable()
    assert everything(tmp_path / "notebook") == before


def test_a_sample_with_a_hostile_name_is_forgotten_like_others(tmp_path: Path) -> None:
    path = site(tmp_path, [HOSTILE, *NAMES[1:]])
    visit(path, "first")
    shown = CliRunner().invoke(app, ["flower", "forget", str(path), HOSTILE])
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output and "[bold]" in shown.output
    assert "runs that may have seen it: first" in shown.output
    assert "not removed: egress.jsonl" in shown.output
    assert len(open_site(path).samples) == 11
    assert sorted(item.name for item in tmp_path.iterdir()) == ["data.npz", "notebook", "site.toml"]


def test_what_was_removed_from_the_data_first_needs_a_word(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    visit(path, "first")
    (tmp_path / "data.npz").unlink()
    shown = CliRunner().invoke(app, ["flower", "forget", str(path), "scan-3", "--gone", "--json"])
    assert shown.exit_code == 0, shown.output
    [found] = json.loads(shown.output)
    assert found["runs"] == ["first"]
    assert not list(tmp_path.glob("notebook/north/runs/*/*.pages"))


def test_rows_without_names_are_not_known_by_their_number(tmp_path: Path) -> None:
    path = site(tmp_path)
    visit(path, "first")
    [found] = forget_at_site(path, ["3"], who="owner")
    assert any("remove the row" in note for note in found.notes)
    assert len(open_site(path).samples) == 12  # another sample has that number once the row is gone
    assert not list(tmp_path.glob("notebook/north/runs/*/*.pages"))


def test_features_of_the_pictures_are_removed(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    cached = tmp_path / "cache.npy"
    cached.write_bytes(b"features")
    note_embedding(tmp_path / "notebook" / "north", "features:efficientnet-lite0@64", cached)
    [found] = forget_at_site(path, ["scan-3"], who="owner")
    assert found.files == (str(cached),)
    assert not cached.exists()


def test_pages_that_cannot_be_read_go_all_the_same(tmp_path: Path) -> None:
    path = site(tmp_path, NAMES)
    visit(path, "first")
    for file in tmp_path.glob("notebook/north/runs/first/*.pages"):
        file.write_bytes(b"cut off")
    forget_at_site(path, ["scan-3"], who="owner")
    assert not list(tmp_path.glob("notebook/north/runs/*/*.pages"))
