"""Before the first round: whatever is wrong is one line at the side that can mend it; nobody waits in the dark."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app as commands
from fedsift.core.errors import ConfigError, DataError, FedsiftError, RunError, Stopped
from fedsift.core.files import line_with_check
from fedsift.deploy.app import write_app
from fedsift.deploy.coordinator import starting
from fedsift.deploy.coordinator.starting import NewRounds, follow, waiting_words
from fedsift.deploy.flower_commands import SiteProcess
from fedsift.deploy.site import worker
from fedsift.deploy.temporary import LONGEST_SOCKET, PREFIX, new_socket, remove_stale
from fedsift.deploy.waiting import SILENT, StatusLine
from fedsift.runs.events import Changed, read_events
from fedsift.runs.folder import WAITING, RunFolder
from fedsift.runtime.gate.protection import GateLimits
from fedsift.study.running import CHANGEABLE
from fedsift.study.study import Study
from tests.deploy.test_site_data import write_site

HERE = "127.0.0.1:8000"
IMAGES = np.zeros((6, 1, 2, 2), np.uint8)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    study = Study.from_table({"model": {"name": "mlp"}, "method": {"name": "fedavg", "rounds": 3}})
    write_app(study, tmp_path / "app")
    return tmp_path / "app"


# The coordinator's side ----------------------------------------------------------------------------------------------


def test_a_run_folder_is_for_its_account_alone(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*parts: Any, **options: Any) -> None:
        raise Stopped("enough was seen")

    monkeypatch.setattr(starting, "start", start)
    before = os.umask(0o022)
    try:
        words = ["flower", "start", str(app), "--run-folder", str(tmp_path / "run"), "--insecure"]
        CliRunner().invoke(commands, words)
    finally:
        os.umask(before)
    found = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert tmp_path / "run" / "study.toml" in found
    assert {path.stat().st_mode & 0o777 for path in found} <= {0o600, 0o700}


def test_another_study_over_an_old_run_is_refused_by_the_key_that_differs(app: Path, tmp_path: Path) -> None:
    starting.prepare_run(app, tmp_path / "run", HERE)
    text = (app / "study.toml").read_text("utf-8")
    (app / "study.toml").write_text(text.replace("rounds = 3", "rounds = 4"), "utf-8")
    with pytest.raises(ConfigError, match=r"method\.rounds was 3, the app says 4.*new --run-folder"):
        starting.prepare_run(app, tmp_path / "run", HERE)


def changes_of(folder: RunFolder) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    events = [moment.event for moment in read_events(folder.path)]
    return [(event.round, event.before, event.now) for event in events if isinstance(event, Changed)]


def test_what_a_coordinator_may_change_is_taken_over_and_written_down(app: Path, tmp_path: Path) -> None:
    """By the command, so that the app stays as the sites have pinned it, or by another app; in both cases every file
    of the run is still what the run wrote."""
    folder = starting.prepare_run(app, tmp_path / "run", HERE)
    pinned = (app / "study.toml").read_text("utf-8")
    starting.prepare_run(app, tmp_path / "run", HERE, changes={"gate.norm_factor": 9.0, "federation.quorum": 0.25})
    study = Study.from_file(RunFolder.open(folder.path).study_file)
    assert (study.gate.norm_factor, study.federation.quorum) == (9.0, 0.25)
    assert (app / "study.toml").read_text("utf-8") == pinned
    told = {"federation.quorum": 0.5, "gate.norm_factor": 6.0}, {"federation.quorum": 0.25, "gate.norm_factor": 9.0}
    assert changes_of(folder) == [(0, *told)]
    starting.prepare_run(app, tmp_path / "run", HERE, changes={"gate.norm_factor": 9.0})
    assert len(changes_of(folder)) == 1, "what is so already is no change"
    (app / "study.toml").write_text(pinned.replace("deadline = 600.0", "deadline = 60.0"), "utf-8")
    starting.prepare_run(app, tmp_path / "run", HERE)
    study = Study.from_file(RunFolder.open(folder.path).study_file)
    assert (study.gate.norm_factor, study.federation.deadline) == (9.0, 60.0), "the other change stands"
    assert changes_of(folder)[1:] == [(0, {"federation.deadline": 600.0}, {"federation.deadline": 60.0})]
    starting.prepare_run(app, tmp_path / "run", HERE)
    assert len(changes_of(folder)) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.rounds": 9}, r"method\.rounds cannot be changed in a run that has begun.*gate\.norm_factor"),
        ({"seed": 9}, "seed cannot be changed"),
        ({"federation.min_count": 1}, r"federation\.min_count cannot be changed"),
        ({"gate.norm_fctor": 9.0}, r"gate\.norm_fctor cannot be changed"),
        ({"gate.norm_factor": -1.0}, "it must be at least 0"),
        ({"federation.quorum": 2.0}, "above 0 and at most 1"),
    ],
)
def test_what_makes_another_study_is_not_changed(
    changes: dict[str, Any], words: str, app: Path, tmp_path: Path
) -> None:
    folder = starting.prepare_run(app, tmp_path / "run", HERE)
    before = folder.study_file.read_bytes()
    with pytest.raises(ConfigError, match=words):
        starting.prepare_run(app, tmp_path / "run", HERE, changes=changes)
    assert folder.study_file.read_bytes() == before and changes_of(folder) == []


def test_a_run_that_is_under_way_is_not_changed(app: Path, tmp_path: Path) -> None:
    folder = starting.prepare_run(app, tmp_path / "run", HERE)
    other = RunFolder(folder.path)
    other.lock()
    try:
        with pytest.raises(RunError, match="is under way: stop it, then change gate.against"):
            starting.prepare_run(app, tmp_path / "run", HERE, changes={"gate.against": 9.0})
    finally:
        other.unlock()


def test_every_limit_of_the_gate_may_change(app: Path, tmp_path: Path) -> None:
    """A new key of the table is on the list, or this says so."""
    assert {f"gate.{entry.name}" for entry in dataclasses.fields(GateLimits)} == {
        key for key in CHANGEABLE if key.startswith("gate.")
    }


def test_another_version_of_fedsift_is_refused(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starting.prepare_run(app, tmp_path / "run", HERE)
    monkeypatch.setattr(starting, "__version__", "99.0")
    with pytest.raises(ConfigError, match=r"app' was made by fedsift .*, this is 99\.0"):
        starting.prepare_run(app, tmp_path / "run", HERE)
    project = (app / "pyproject.toml").read_text("utf-8")
    (app / "pyproject.toml").write_text(project.replace("fedsift[deploy]==", "other=="), "utf-8")
    with pytest.raises(ConfigError, match=r"run began with fedsift .*, this is 99\.0"):
        starting.prepare_run(app, tmp_path / "run", HERE)


def test_a_program_that_let_go_of_its_run_without_a_word_has_died(app: Path, tmp_path: Path) -> None:
    folder = starting.prepare_run(app, tmp_path / "run", HERE)
    now = [0.0]
    program = starting.CoordinatorProcess(RunFolder(folder.path), clock=lambda: now[0])
    assert not program.died()
    now[0] += 100.0
    assert not program.died()  # it may take its time to come
    folder.lock()
    assert not program.died()
    folder.unlock()  # as when it is killed
    now[0] += starting.DIED_AFTER
    assert not program.died()
    now[0] += 0.1
    assert program.died()
    folder.write_json("failure.json", {"error": "it said why", "exit_code": 4})
    assert not program.died()


def test_a_disk_that_is_full_is_named_as_the_reason(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = starting.prepare_run(app, tmp_path / "run", HERE)
    with pytest.raises(FedsiftError, match="says more"):
        starting._outcome(folder, tmp_path / "log")

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FedsiftError, match=r"run cannot be written \(No space left on device\)"):
        starting._outcome(folder, tmp_path / "log")


# A site's side -------------------------------------------------------------------------------------------------------


def trouble(path: Path, place: Path) -> FedsiftError:
    """What the person at the site is told when the site's process cannot start."""
    with pytest.raises(FedsiftError) as found:
        SiteProcess(path, place).start()
    assert "\n" not in str(found.value)
    return found.value


def test_truncated_data_and_labels_out_of_range_are_told_before_anything_connects(tmp_path: Path) -> None:
    path = write_site(tmp_path / "cut")
    data = path.parent / "data.npz"
    data.write_bytes(data.read_bytes()[:-200])
    place = new_socket()
    cut = trouble(path, place)
    assert isinstance(cut, DataError)
    assert "data.npz" in str(cut)
    arrays = {"images": IMAGES, "labels": np.array([0, 1, 7, 0, 1, 0]), "classes": np.array(["a", "b"])}
    with pytest.raises(DataError, match="7"):
        worker.serve(write_site(tmp_path / "range", arrays), place)


def test_a_notebook_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    (tmp_path / "notebook").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"site 'north': its notebook .* cannot be written .* name another"):
        worker.serve(path, tmp_path / "sock")


def test_a_site_that_withdrew_does_not_start(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    (tmp_path / "notebook" / "north" / "withdrawn.json").write_text("{")
    with pytest.raises(ConfigError, match="has withdrawn .* remove .*withdrawn.json"):
        worker.serve(path, tmp_path / "sock")


def test_a_long_temporary_path_gives_way_to_a_short_one(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    place = new_socket([long, Path("/tmp")])
    assert place.is_relative_to("/tmp")
    assert len(str(place)) <= LONGEST_SOCKET
    place.parent.joinpath("pid").unlink()
    place.parent.rmdir()
    with pytest.raises(ConfigError, match="TMPDIR"):
        new_socket([long])


def test_folders_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name, owner in (("old", str(ended.pid)), ("mine", str(os.getpid())), ("odd", "no number")):
        (tmp_path / f"{PREFIX}{name}").mkdir()
        (tmp_path / f"{PREFIX}{name}" / "pid").write_text(owner)
    assert [folder.name for folder in remove_stale(tmp_path)] == [f"{PREFIX}old"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [f"{PREFIX}mine", f"{PREFIX}odd"]


# Following -----------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes by resting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plans: list[tuple[float, Callable[[], Any]]] = []

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.now += seconds
        for plan in [plan for plan in self.plans if plan[0] <= self.now]:
            self.plans.remove(plan)
            plan[1]()


def test_nothing_is_silent_for_more_than_five_seconds(tmp_path: Path) -> None:
    folder, clock = RunFolder(tmp_path), Clock()
    said: list[tuple[float, str]] = [(0.0, "")]
    row = {"round": 1, "stage": "train"}
    wait = {"what": "round 1 (train): answers to Train", "since": 0.0, "at": 0.0}
    clock.plans = [
        (12.0, lambda: folder.write_json(WAITING, {**wait, "waiting": {"north": "asked"}})),
        (30.0, lambda: folder.append_round(row)),
        (31.0, lambda: folder.write_json(WAITING, {**wait, "waiting": {"south": "gone for 12 s"}})),
        (60.0, lambda: folder.write_json("summary.json", {})),
    ]
    heard: list[int] = []

    def listen(row: dict[str, Any]) -> None:
        heard.append(row["round"])
        said.append((clock.now, "round"))

    status = StatusLine(lambda words: said.append((clock.now, words)), clock)
    follow(folder, lambda: True, lambda: "the SuperLink has the app", listen, status, clock.rest)
    assert heard == [1]
    times = [at for at, _ in [*said, (60.0, "")]]
    assert max(b - a for a, b in pairwise(times)) <= 5.0
    words = [text for _, text in said]
    assert words[1] == "the SuperLink has the app"
    assert "the SuperLink has the app (4 s)" in words
    assert "round 1 (train): answers to Train, waiting for north (asked)" in words
    assert "round 1 (train): answers to Train, waiting for south (gone for 12 s)" in words


def test_quick_rounds_of_which_no_line_is_printed_are_no_silence(tmp_path: Path) -> None:
    """A log gets a line of a round now and then; between them it is told what is waited for."""
    folder, clock = RunFolder(tmp_path), Clock()
    said = [0.0]
    wait = {
        "what": "round 1 (train): answers to Train",
        "since": 0.0,
        "at": 0.0,
        "waiting": {"north": "asked"},
    }
    folder.write_json(WAITING, wait)
    for number in range(1, 12):
        row = {"round": number, "stage": "train"}
        clock.plans.append((3.0 * number, partial(folder.append_round, row)))
    clock.plans.append((34.0, partial(folder.write_json, "summary.json", {})))
    follow(
        folder,
        lambda: True,
        lambda: "",
        lambda row: None,
        StatusLine(lambda words: said.append(clock.now), clock),
        clock.rest,
    )
    assert max(b - a for a, b in pairwise([*said, 34.0])) <= 5.0


def test_figures_alone_are_no_news() -> None:
    clock, said = Clock(), []
    status = StatusLine(said.append, clock)
    for second in range(int(SILENT)):
        clock.now = float(second)
        status.now(f"gone for {second} s")
    assert said == ["gone for 0 s"]
    clock.now = SILENT
    status.now("gone for 9 s")
    assert said[1:] == [f"gone for 9 s ({SILENT:.0f} s)"]


def test_rounds_are_read_on_from_where_they_were_read_to(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    rounds = NewRounds(file, reported=1)
    assert rounds.new() == []
    one, two, three, four = (line_with_check({"round": number}) + "\n" for number in (1, 2, 3, 4))
    file.write_text(one + two + three[:6])
    assert [row["round"] for row in rounds.new()] == [2]
    with file.open("a") as lines:
        lines.write(three[6:])
    assert [row["round"] for row in rounds.new()] == [3]
    file.write_text(one)  # gone on with from an earlier checkpoint
    assert rounds.new() == []
    with file.open("a") as lines:
        lines.write(four)
    assert [row["round"] for row in rounds.new()] == [4]
    with file.open("a") as lines:
        lines.write('{"round": 5}\n')
    with pytest.raises(RunError, match=r"rounds.jsonl is damaged"):
        rounds.new()


def test_a_run_in_use_is_known_as_such(tmp_path: Path) -> None:
    mine, other = RunFolder(tmp_path), RunFolder(tmp_path)
    assert not other.in_use
    mine.lock()
    assert other.in_use
    mine.unlock()
    assert not other.in_use


def test_a_half_written_word_is_no_word(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert waiting_words(folder) == ""
    (tmp_path / WAITING).write_text("{")
    assert waiting_words(folder) == ""
    folder.write_json(WAITING, {"what": "the run begins", "waiting": {}})
    assert waiting_words(folder) == "the run begins"
