"""Trackers: told each round once, kept away from the run's result, and unable to stop it."""

from __future__ import annotations

import csv
import json
import sys
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.errors import ConfigError
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, reopen, run
from fedsift.study.study import Study
from fedsift.study.tracking import TrackerThreads, figures_of, settings_of
from fedsift.tracking.base import Tracker, trackers

TABLE = {
    "partition": {"name": "iid", "sites": 3},
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg", "rounds": 3},
}
RESULTS = ("study.toml", "sites.csv", "model.safetensors")


@dataclass
class Noting(Tracker):
    """Notes every call."""

    fails_in: str = ""
    calls: list[tuple[Any, ...]] = field(default_factory=list, init=False)

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fails_in:
            raise ConnectionError("no route\nto host")

    def start(self, params: Mapping[str, Any]) -> None:
        self._note("start", dict(params))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._note("metrics", dict(values), step)

    def artifact(self, path: Path) -> None:
        self._note("artifact", path.name)

    def end(self) -> None:
        self._note("end", self.run.state)


@dataclass
class Exits(Tracker):
    """A library that ends the program."""

    def start(self, params: Mapping[str, Any]) -> None:
        sys.exit("log in first")


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "accuracy": 0.5, "refused": {}, "warnings": [], **more}


def bytes_of(folder: RunFolder) -> dict[str, bytes]:
    lines = [{**line, "seconds": 0} for line in folder.rounds()]
    return {name: (folder.path / name).read_bytes() for name in RESULTS} | {"r": json.dumps(lines).encode()}


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    study = Study.from_table(TABLE)
    folder = new_run(study, tmp_path_factory.mktemp("plain"))
    run(study, folder)
    return folder


def test_a_tracked_run_has_the_bytes_of_an_untracked_one(untracked: RunFolder, tmp_path: Path) -> None:
    noting = Noting()
    study = Study.from_table({**TABLE, "track": {"csv": True, "noting": noting}})
    assert study == Study.from_table(TABLE), "who is told of a run is no part of what it computes"
    folder = new_run(study, tmp_path)
    summary = run(study, folder)
    assert bytes_of(folder) == bytes_of(untracked)
    assert summary["warnings"] == []

    kinds = [call[0] for call in noting.calls]
    assert kinds == ["start", "metrics", "metrics", "metrics", "artifact", "artifact", "end"]
    assert noting.calls[0][1]["method.rounds"] == 3
    assert [call[2] for call in noting.calls[1:4]] == [1, 2, 3]
    assert noting.calls[-1] == ("end", "finished")
    lines = list(csv.DictReader((folder.path / "track/csv/metrics.csv").open()))
    rounds = folder.rounds()
    assert [int(line["round"]) for line in lines] == [1, 2, 3]
    assert [float(line["accuracy"]) for line in lines] == [r["accuracy"] for r in rounds]
    assert [float(line["recall/7"]) for line in lines] == [r["recall"][7] for r in rounds]
    settings = dict(list(csv.reader((folder.path / "track/csv/params.csv").open()))[1:])
    assert settings["method.name"] == "fedavg"


@pytest.mark.parametrize(("where", "told"), [("start", 0), ("metrics", 1), ("artifact", 3), ("end", 3)])
def test_a_failing_tracker_never_stops_a_run(where: str, told: int, untracked: RunFolder, tmp_path: Path) -> None:
    noting, seen = Noting(fails_in=where), []
    study = Study.from_table({**TABLE, "track": {"noting": noting, "csv": True}})
    folder = new_run(study, tmp_path)
    summary = run(study, folder, lambda line: seen.extend(line["warnings"]))
    assert bytes_of(folder) == bytes_of(untracked)
    assert sum(call[0] == "metrics" for call in noting.calls) == told
    [warning] = summary["warnings"]
    assert "'noting' has stopped" in warning and "no route to host" in warning and "\n" not in warning
    assert json.loads((folder.path / "summary.json").read_text())["warnings"] == [warning]
    assert seen in ([], [warning]), "said once, while it runs or at the end"
    assert len((folder.path / "track/csv/metrics.csv").read_text().splitlines()) == 4, "others go on"


def test_a_tracker_that_ends_the_program_or_hangs_is_left_behind(tmp_path: Path) -> None:
    forever = threading.Event()

    @dataclass
    class Hangs(Tracker):
        def metrics(self, values: Mapping[str, float], step: int) -> None:
            forever.wait()

    following = TrackerThreads({"exits": Exits(), "hangs": Hangs()}, tmp_path, {})
    following.round(row(1))
    following.close("finished", timeout=0.2)
    exits, hangs = following.news()
    assert "log in first" in exits and "did not answer" in hangs
    assert following.news() == [], "each says it once"
    forever.set()


def test_a_resumed_run_tells_each_round_once(tmp_path: Path) -> None:
    study = Study.from_table({**TABLE, "track": {"csv": True}})
    folder = new_run(study, tmp_path)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, folder, stop)
    again, folder = reopen(folder.path)
    assert not again.track, "the study has none; the folder knows them"
    run(again, folder)
    lines = list(csv.DictReader((folder.path / "track/csv/metrics.csv").open()))
    assert [int(line["round"]) for line in lines] == [1, 2, 3]


def test_rounds_that_a_tracker_missed_come_first(tmp_path: Path) -> None:
    first = TrackerThreads({"csv": trackers.get("csv")()}, tmp_path, {})
    first.round(row(1))
    first.close("interrupted")
    noting = Noting()
    past = [row(1), row(2)]
    later = TrackerThreads({"csv": trackers.get("csv")(), "noting": noting}, tmp_path, {}, past)
    later.round(row(3, extra=1.5))
    later.close("finished")
    assert [call[2] for call in noting.calls if call[0] == "metrics"] == [1, 2, 3]
    assert (tmp_path / "track/csv/metrics.csv").read_text() == (
        "round,accuracy,refused,extra\n1,0.5,0.0,\n2,0.5,0.0,\n3,0.5,0.0,1.5\n"
    )
    assert not noting.run.resumed


def test_a_folder_with_an_unreadable_track_file_goes_on_and_says_so(tmp_path: Path) -> None:
    study = Study.from_table(TABLE)
    folder = new_run(study, tmp_path)
    (folder.path / "track.toml").write_text("[sometracker]\n")
    summary = run(study, folder)
    assert any("unknown tracker 'sometracker'" in text for text in summary["warnings"])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"tensorbord": True}, "Did you mean 'tensorboard'"),
        ({"csv": 3}, "true, false or a table"),
        ({"csv": {"foldr": "x"}}, "Did you mean 'folder'"),
        ({"wandb": {"mode": "cloud"}}, "track.wandb.mode"),
    ],
)
def test_a_wrong_table_is_refused_with_the_fix(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Study.from_table({**TABLE, "track": table})


def test_false_leaves_a_tracker_out_and_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Study.from_table({**TABLE, "track": {"csv": False}}).track
    monkeypatch.setattr("fedsift.tracking.base.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsift\[mlflow\]'"):
        new_run(Study.from_table({**TABLE, "track": {"mlflow": True}}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figures_hold_no_names_of_sites() -> None:
    line = row(
        4,
        of=9,
        stage="find",
        trains=True,
        loss=float("nan"),
        recall=[0.5, None],
        refused={"north": "late"},
        findings={"noisy": ["north", "south"]},
    )
    assert figures_of(line, ("cat", "dog")) == {
        "accuracy": 0.5, "recall/cat": 0.5, "refused": 1.0, "noisy_sites": 2.0,
    }  # fmt: skip
    assert settings_of({"a": {"b": 1, "c": {"d": [1, 2]}}}) == {"a.b": 1, "a.c.d": "[1, 2]"}


class FakeRun:
    """What wandb.init and trackio.init return, as far as we call it."""

    def __init__(self, calls: list[Any], **options: Any) -> None:
        self.calls, self.id = calls, options.get("id") or "abc"
        calls.append(("init", options))

    def __getattr__(self, name: str) -> Any:
        return lambda *words, **options: self.calls.append((name, words, options))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_are_called_as_they_wish(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake = types.ModuleType(name)
    fake.init = lambda **options: FakeRun(calls, **options)  # type: ignore[attr-defined]
    fake.Settings = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr("fedsift.tracking.base.find_spec", lambda package: True)
    (tmp_path / "summary.json").write_text("{}")
    for number in (1, 2):
        following = TrackerThreads({name: trackers.get(name)()}, tmp_path, {"seed": 1})
        following.round(row(number))
        following.close("finished" if number == 2 else "interrupted")
        assert following.news() == []
    kinds = [call[0] for call in calls]
    keep = "save" if name == "wandb" else "log_artifact"
    assert kinds == ["init", "log", "finish", "init", "log", keep, "finish"]
    assert calls[1][1:] == (({"accuracy": 0.5, "refused": 0.0},), {"step": 1})
    again = calls[3][1]
    assert again["resume"] == "allow" and (name == "trackio" or again["id"] == "abc")
    assert name == "trackio" or calls[0][1]["mode"] == "offline"


def test_a_deployed_app_keeps_its_trackers_with_the_coordinator(tmp_path: Path) -> None:
    from fedsift.deploy.app import write_app
    from fedsift.deploy.coordinator.starting import prepare_run

    app = tmp_path / "an-app"
    write_app(Study.from_table({**TABLE, "track": {"csv": {"folder": str(tmp_path / "figures")}}}), app)
    assert "figures" not in (app / "study.toml").read_text()
    assert "track.toml" in (app / "pyproject.toml").read_text(), "it is left out of what the sites receive"
    folder = prepare_run(app, tmp_path / "runs" / "first", "127.0.0.1:9")
    assert "figures" in (folder.path / "track.toml").read_text()
