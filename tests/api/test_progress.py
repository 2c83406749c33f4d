"""Progress: silent in a script, a changing line in a notebook, a bar in a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedsift.api import progress
from fedsift.api.progress import api_progress, round_progress
from fedsift.report import console
from tests.report.made_runs import make_run
from tests.report.test_watching import told

ROW = {"round": 2, "stage": "train", "accuracy": 0.5, "refused": {"<s>[b]": "late"}, "warnings": ["hm"]}


def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """An IPython that writes down what it is asked to show."""
    shown: list[tuple[str, str]] = []

    def display(thing: Any, display_id: bool = False) -> Any:
        shown.append(("new", thing._repr_html_()))
        if not display_id:
            return None
        return SimpleNamespace(update=lambda thing: shown.append(("update", thing._repr_html_())))

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_sees_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notebook(monkeypatch)
    with api_progress("fedavg", 4, done=1) as listen:
        listen(ROW)
    assert shown == [
        ("new", "<code>fedavg 1/4</code>"),
        ("update", "<code>fedavg 2/4  train  accuracy 50.0</code>"),
        ("new", "<code>round 2: set aside &lt;s&gt;[b]: late</code>"),
        ("new", "<code>round 2: hm</code>"),
    ]
    shown.clear()
    with api_progress("fedavg", 4, wanted=False) as listen:
        listen(ROW)
    assert shown == []


def test_a_script_is_quiet_unless_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    with api_progress("fedavg", 2) as listen:
        listen(ROW)
    assert capsys.readouterr() == ("", "")
    with api_progress("fedavg", 2, wanted=True) as listen:
        listen(ROW)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "fedavg 2/2 train  accuracy 50.0; set aside <s>[b]: late\nfedavg 2/2 warning: hm\n"


def test_the_command_line_says_where_it_stands_and_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with round_progress("fedavg", 9, silent=True) as listen:
        listen(ROW)
    assert capsys.readouterr().err == ""
    with round_progress("fedavg", 9) as listen:
        calm = {**ROW, "refused": {}, "warnings": [], "participants": 3}
        listen(calm)  # too soon for another line
        listen({**calm, "round": 5, "stage": "sift", "accuracy": None})  # a new stage is news
        listen({**calm, "round": 9})
    assert capsys.readouterr().err == "fedavg 5/9 sift  3 sites\nfedavg 9/9 train  accuracy 50.0  3 sites\n"


def test_a_terminal_gets_a_bar_with_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = console.PlainConsole
    monkeypatch.setattr(
        progress,
        "PlainConsole",
        lambda **options: plain(force_terminal=True, width=120, color_system=None, **options),
    )
    with api_progress("fed[avg]", 4) as listen:
        listen(ROW)
        listen({**ROW, "refused": {"[/b]": "[/foo] \x1b[2J"}, "warnings": ["[/bar]"]})
    text = capsys.readouterr().err
    assert "set aside [/b]: [/foo] \\x1b[2J" in text and "[/bar]" in text
    assert "fed[avg]" in text
    assert "2/4" in text
    assert "set aside <s>[b]: late" in text


@pytest.mark.parametrize("width", [60, 200])
def test_a_terminal_shows_stage_and_sites_of_a_run_that_has_a_folder(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = console.PlainConsole
    options = {"force_terminal": True, "width": width, "color_system": None}
    monkeypatch.setattr(progress, "PlainConsole", lambda **more: plain(**options, **more))
    monkeypatch.setattr("fedsift.runs.folder.RunFolder.in_use", True)
    folder = told(make_run(tmp_path, rows=[], finished=False))
    with round_progress("fednoro", 20, folder=folder) as listen:
        listen(ROW)
    text = capsys.readouterr().err
    assert "robust training 1/15" in text and "12 sites" in text and "round 6 of 20" in text
    assert "round 2: set aside <s>[b]: late" in text
