"""Disks, folders and signals: one line, an exit code, and how to go on."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
from pathlib import Path

import pytest
import typer

from fedsift.cli import output
from fedsift.cli import run as run_command
from fedsift.cli.failures import STORAGE, Terminated, exit_code_of, line_of, sigterm_as_interrupt
from fedsift.core.errors import ConfigError
from fedsift.report.console import PlainConsole
from fedsift.study.running import new_run
from fedsift.study.study import Study

cli_module = importlib.import_module("fedsift.cli.main")


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line when a command ends with this error."""

    def broken(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli_module, "app", broken)
    monkeypatch.delenv("FEDSIFT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli_module.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the disk is read-only"),
        (errno.EACCES, "no permission"),
        (errno.ENAMETOOLONG, "the path is too long"),
        (errno.ENOTDIR, "a part of the path is a file"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_disks_error_is_one_line(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = fail_with(OSError(number, os.strerror(number), "/some/[bold]folder"), monkeypatch)
    said = capsys.readouterr().err
    assert code == STORAGE
    assert said.count("\n") == 1
    assert said.startswith("error: /some/[bold]folder: ")
    assert words in said


def test_brackets_in_a_hint_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("pip install 'fedsift[flower]' and [/] and \x1b[2J")
    assert fail_with(error, monkeypatch) == 2
    assert capsys.readouterr().err == "error: pip install 'fedsift[flower]' and [/] and \\x1b[2J\n"


def test_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsift.cli.failures._silence", lambda: None)
    assert line_of(BrokenPipeError(errno.EPIPE, "Broken pipe")) == ""
    assert exit_code_of(BrokenPipeError(errno.EPIPE, "Broken pipe")) == 141


def test_sigterm_stops_as_ctrl_c_does_and_the_handler_goes_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_command_that_sigterm_ends_by_itself_has_its_exit_code_and_not_that_of_ctrl_c() -> None:
    app = typer.Typer()

    @app.command()
    def wait() -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, sigterm_as_interrupt():
        app([])
    assert ended.value.code == 143


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_a_stopped_run_says_how_to_go_on(
    stop: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*arguments: object) -> None:
        raise stop

    monkeypatch.setattr("fedsift.study.running.run", stopped)
    study = Study.from_table({"name": "x"})
    folder = new_run(study, tmp_path / "my [red] runs")
    with pytest.raises(typer.Exit) as ended:
        run_command.go(study, folder, as_json=True)
    assert ended.value.exit_code == code
    assert f"Go on with: fedsift resume '{folder.path}'" in capsys.readouterr().err


def test_out_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        new_run(Study.from_table({}), tmp_path / "file" / "runs")
    assert exit_code_of(caught.value) == STORAGE
    assert str(tmp_path / "file") in line_of(caught.value)


def test_a_table_never_cuts_a_name_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = PlainConsole(file=io.StringIO(), width=80)
    monkeypatch.setattr(output, "stdout", console)
    site = "university-hospital-of-a-town-with-a-very-long-name-and-several-departments-0123456789"
    output.print_table("sites", ["site", "a", "b", "c"], [[site, "1" * 30, "2" * 30, "3" * 30]])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    first = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert first == site
    assert "…" not in "".join(lines)
