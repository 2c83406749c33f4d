"""A run in a terminal: from 60 to 200 columns, without colour, without block characters, in a pipe, in every state."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from fedsift.cli.main import app
from fedsift.report.console import PlainConsole
from fedsift.report.watching import BLOCKS, PLAIN, RunScreen, TerminalSymbols, follow, sparkline
from fedsift.runs.events import (  # fmt: skip
    FAILED,
    FINISHED,
    Absent,
    Answered,
    Asked,
    Checkpointed,
    Ended,
    EventLog,
    Found,
    Refused,
    RoundDone,
    Started,
)
from tests.report.made_runs import make_run

SITES = ("north", "south, by the sea", "east\u202e", *(f"clinic-{n:02d}" for n in range(9)))
STAGES = (
    {"name": "warm up", "rounds": 4, "trains": True},
    {"name": "find noisy sites", "rounds": 1, "trains": False},
    {"name": "robust training", "rounds": 15, "trains": True},
)


def told(folder: Path, *, rounds: int = 6, ended: Ended | None = None) -> Path:
    """A folder whose events have come to the middle of a round."""
    say = EventLog(folder, clock=iter(range(1000, 9000)).__next__)
    say(Started("run", "FedNoRo", "inprocess", SITES, 20, STAGES))
    for number in range(1, rounds + 1):
        stage = "warm up" if number < 5 else "find noisy sites" if number == 5 else "robust training"
        say(Asked(number, stage, "Train", SITES))
        say(Answered(number, "Train", SITES))
        if number == 3:
            say(Refused(number, "Train", "north", "its update is 40 times as long as the others'"))
        if number == 5:
            say(Found(number, {"noisy": ["clinic-03"], "probability": {"clinic-03": 0.97}}))
        values = {"accuracy": number / 20, "bacc": number / 25} if number != 5 else {}
        say(RoundDone(number, 20, stage, 12, 1000, 2000, 1.0, values))
        say(Checkpointed(number))
    say(Asked(rounds + 1, "robust training", "Train", SITES))
    say(Answered(rounds + 1, "Train", SITES[3:]))
    say(Absent(rounds + 1, "Train", "south, by the sea", "no answer in 60 s"))
    if ended is not None:
        say(ended)
    return folder


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScreen:
    folder = told(make_run(tmp_path, rows=[], finished=False))
    monkeypatch.setattr("fedsift.runs.folder.RunFolder.in_use", True)
    return RunScreen(folder)


def drawn(view: RunScreen, width: int, height: int = 40, signs: TerminalSymbols = BLOCKS) -> list[str]:
    return [line.plain for line in view.lines(width, height, signs)]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_width_shows_stage_sites_scores_and_findings(running: RunScreen, width: int) -> None:
    lines = drawn(running, width)
    text = "\n".join(lines)
    assert all(len(line) <= width for line in lines), max(lines, key=len)
    assert "FedNoRo" in lines[0] and "running" in lines[0] and lines[0].endswith("round 6 of 20")
    assert "30 %" in lines[1]
    assert "robust training 1/15" in lines[2]
    assert "accuracy 30.0 %" in lines[3]
    assert "12 sites" in lines[4] and "9 answered" in lines[4] and "2 late" in lines[4]
    assert "1 of 12 sites look noisy: clinic-03 (97" in " ".join(text.split())
    north = next(line for line in lines if line.startswith("north "))
    assert "■■×■■■" in north, "the refusal stays where it happened"
    assert "\u202e" not in text
    assert any(line.startswith("east\\u202e") for line in lines)


def test_a_small_window_keeps_those_that_need_attention(running: RunScreen) -> None:
    lines = drawn(running, 80, 16)
    assert len(lines) <= 16
    text = "\n".join(lines)
    assert "south, by the sea" in text and "north" in text and "more" in text


def test_a_terminal_without_blocks_loses_nothing(running: RunScreen) -> None:
    text = "\n".join(drawn(running, 80, signs=PLAIN))
    for sign in "■□×█▁·›":
        assert sign not in text
    assert "##x###" in text and "robust training 1/15" in text


def test_no_color_means_no_escape(running: RunScreen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = PlainConsole(file=io.StringIO(), force_terminal=True, width=80)
    console.print(running)
    colours = re.findall(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", console.file.getvalue())  # type: ignore[attr-defined]
    assert not colours


def test_a_pipe_gets_lines_as_they_come_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = told(make_run(tmp_path, rows=[], finished=False))
    monkeypatch.setattr("fedsift.runs.folder.RunFolder.in_use", True)
    view, out = RunScreen(folder), Console(file=io.StringIO(), width=60)

    def pause(seconds: float) -> None:
        EventLog(folder)(Ended(FAILED, "quorum: 3 of 12 sites answered", 6))
        monkeypatch.setattr("fedsift.runs.folder.RunFolder.in_use", False)

    follow(view, out, pause)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text
    assert "round 3: set aside north: its update is 40 times as long as the others'\n" in text
    assert "running, round 6 of 20, robust training, accuracy 30.0 %, bacc 24.0 %\n" in text
    assert text.endswith(f"quorum: 3 of 12 sites answered\ngo on with: fedsift resume {folder}\n")


@pytest.mark.parametrize(
    ("ended", "word"),
    [
        (None, "interrupted"),
        (Ended(FAILED, "disk full", 5), "failed: disk full"),
        (Ended(FINISHED), "failed"),
    ],
)
def test_a_run_that_does_not_run_is_shown_as_what_it_is(tmp_path: Path, ended: Ended | None, word: str) -> None:
    view = RunScreen(told(make_run(tmp_path, rows=[], finished=False), ended=ended))
    assert word in drawn(view, 120)[0]


def test_a_finished_run_and_a_folder_without_events(tmp_path: Path) -> None:
    folder = told(make_run(tmp_path), ended=Ended(FINISHED))
    assert "finished" in drawn(RunScreen(folder), 80)[0]
    bare = RunScreen(make_run(tmp_path, rows=[], finished=False))
    assert "new" in drawn(bare, 80)[0]
    (bare.folder.path / "events.jsonl").write_bytes(b'{"half": \xff\n[1]\n{"kind"')
    bare.look()
    assert drawn(bare, 60)


def test_the_command_prints_one_look_as_text_and_as_json(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    folder = told(make_run(tmp_path), ended=Ended(FINISHED))
    shown = CliRunner().invoke(app, ["watch", str(folder), "--once"])
    assert shown.exit_code == 0 and "FedNoRo" in shown.stdout
    value = json.loads(CliRunner().invoke(app, ["watch", str(folder), "--json"]).stdout)
    assert value["state"] == "finished" and value["round"] == 6 and value["sites"][0] == "north"


def test_a_curve_in_a_few_characters() -> None:
    assert sparkline([0.0, 1 / 7, 1.0], 8, BLOCKS.heights) == "▁▂█"
    assert len(sparkline(list(range(1000)), 24, BLOCKS.heights)) <= 24
    assert sparkline([1.0, 1.0], 8, BLOCKS.heights) == "▁▁"
    assert sparkline([1.0], 8, BLOCKS.heights) == ""
