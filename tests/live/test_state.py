"""What a folder says of its run, truthfully: interrupted, failed, resumed, elsewhere, foreign, half written."""

from __future__ import annotations

import asyncio
import json
import math
import platform
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.files import line_with_check
from fedsift.live.actions import present_state
from fedsift.live.overview import RunList, glance
from fedsift.live.run_view import RunView
from fedsift.runs.events import EVENTS
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import state_of
from tests.live.made import Made

HERE = {"host": platform.node(), "process": 1}


def words(made: Made) -> tuple[str, str]:
    """By both ways of looking: at a glance, and closely."""
    seen, close = glance(made.folder), present_state(made.folder)
    assert (seen.state, seen.why) == (close.word, close.why)
    return close.word, close.why


def test_from_a_folder_to_its_end(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert words(made)[0] == "new"
    holder = RunFolder(made.folder.path)
    holder.lock()
    assert words(made)[0] == "starting"
    made.start(**HERE)
    made.round(1)
    assert words(made)[0] == "running"
    made.folder.ask_to_stop()
    assert words(made)[0] == "stopping"
    made.end("stopped", "on request")
    holder.unlock()
    assert words(made) == ("stopped", "on request")
    holder.lock()
    (made.folder.path / "stop").unlink()
    assert words(made)[0] == "starting"
    made.start(done=1, **HERE)
    assert words(made)[0] == "running"
    made.end()
    holder.unlock()
    assert words(made)[0] == "finished"


def test_a_killed_run_is_interrupted_not_running(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    made.round(1)
    word, why = words(made)
    assert word == "interrupted"
    assert "nothing up to the last checkpoint is lost" in why


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    made.end("failed", "2 of 4 replies accepted, 3 needed")
    assert words(made) == ("failed", "2 of 4 replies accepted, 3 needed")


def test_a_run_on_another_machine_runs_while_it_speaks(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(host="another machine")
    started = RunView(made.folder).tail.new()[0].event
    assert state_of(made.folder, started, None, 100.0, 200.0).word == "running"  # type: ignore[arg-type]
    silent = state_of(made.folder, started, None, 100.0, 1000.0)  # type: ignore[arg-type]
    assert silent.word == "silent"
    assert "no sign of life from another machine for 15 minutes" in silent.why


def test_a_run_that_says_finished_without_a_result_is_not(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    made.end()
    (made.folder.path / "summary.json").unlink()
    assert words(made) == ("failed", "it ended, but summary.json is missing")


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"at":', b"\x00\xff" * 5000, b'{"at":1,"kind":"round"}\n' * 3])
def test_foreign_and_half_written_folders_are_shown_as_what_they_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.mkdir()
    (path / "study.toml").write_bytes(b"\xff not toml [[")
    (path / "plan.json").write_bytes(b'{"rounds": "many", "method":')
    (path / EVENTS).write_bytes(content)
    (path / "rounds.jsonl").write_bytes(b'{"round": 1')
    [seen] = RunList(tmp_path).glances()
    assert (seen["state"], seen["round"], seen["of"]) == ("interrupted", 0, 0)


def test_numbers_that_are_none_in_a_foreign_file_do_not_end_the_stream(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    line: dict[str, Any] = {"at": 1, "kind": "round", "round": 1, "of": 6, "stage": "s"}
    line |= {"participants": 1, "bytes_down": 1, "bytes_up": 1, "seconds": math.inf}
    with (made.folder.path / EVENTS).open("a") as file:
        file.write(line_with_check({**line, "values": {"accuracy": math.nan, "loss": -math.inf}}) + "\n")
    told = json.loads(asyncio.run(first_message(RunView(made.folder))), parse_constant=lambda word: pytest.fail(word))
    assert told["round"] == 1
    assert told["curves"]["accuracy"] == [[1, None]]


def test_a_damaged_file_is_named_on_the_page_and_in_the_list(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    made.end()
    file = made.folder.path / "summary.json"
    file.write_bytes(file.read_bytes().replace(b"0.6", b"0.8"))
    [seen] = RunList(tmp_path).glances()
    assert (seen["state"], seen["score"]) == ("failed", "")
    assert "summary.json is damaged" in seen["why"]
    told = json.loads(asyncio.run(first_message(RunView(made.folder))))
    assert told["state"] == "failed"
    assert "summary.json is damaged" in told["why"]


async def first_message(watch: RunView) -> str:
    return await anext(watch.messages())  # type: ignore[arg-type]


def test_a_run_from_before_there_were_events_shows_its_result(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.folder.write_json("summary.json", {"accuracy": {"final": 0.75}})
    [seen] = RunList(tmp_path).glances()
    assert (seen["state"], seen["score"], seen["of"]) == ("finished", "accuracy 75.0%", 6)


def test_only_run_folders_of_this_place_are_listed(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    Made(place, "one")
    Made(elsewhere, "other")
    (place / "link").symlink_to(elsewhere / "other")
    (place / ".hidden").mkdir()
    (place / "notes").mkdir()
    runs = RunList(place)
    assert runs.names() == ["one"]
    for name in ("link", "..", ".", "", "one/../one", "../elsewhere/other", "/etc", "one\x00"):
        assert runs.folder(name) is None
    assert RunList(place / "one").single


def test_a_glance_is_kept_until_something_changes(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start(**HERE)
    runs = RunList(tmp_path)
    assert runs.glances()[0]["round"] == 0
    made.round(1)
    assert runs.glances()[0]["round"] == 1
