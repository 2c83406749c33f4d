"""README.md: its commands exist with the options that it shows, its study is one, its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

import fedsift
from fedsift.cli.main import app
from fedsift.study.study import Study
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks(README)
    for line in block.text.splitlines()
    if not block.kind and line.startswith("fedsift ")
]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the words that are left."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_the_readme_names_every_command_of_the_first_hour() -> None:
    named = {shlex.split(line)[1] for line in COMMANDS}
    assert {
        "doctor",
        "audit",
        "review",
        "labels",
        "plan",
        "run",
        "resume",
        "report",
        "predict",
        "export",
    } <= named


def test_verdicts_are_imported_before_labels_are_applied_by_them() -> None:
    order = [" ".join(shlex.split(line)[1:3]) for line in COMMANDS]
    assert order.index("review import") < order.index("labels apply")


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_exists_with_its_options(line: str) -> None:
    command, rest = command_of(shlex.split(line)[1:])
    assert command.help, f"{line}: no help"
    assert rest == [] or not isinstance(command, click.Group), f"{line}: '{rest[0]}' is no command"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_the_listings_that_it_names_exist() -> None:
    [line] = [line for line in README.read_text("utf-8").splitlines() if line.startswith("fedsift methods [NAME]")]
    for name in re.findall(r"\w+", line.partition("# also ")[2]):
        assert command_of([name])[1] == [], f"there is no `fedsift {name}`"


def test_its_study_and_its_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study as printed is valid; it and the script are run with fewer rounds and sites."""
    monkeypatch.chdir(tmp_path)
    [study] = [block.text for block in blocks(README) if block.kind == "toml" and "study.toml" in block.text]
    Path("study.toml").write_text(study, encoding="utf-8")
    assert Study.from_file(Path("study.toml")).method.total_rounds == 41
    Path("study.toml").write_text(study.replace("sites = 20", "sites = 5").replace("warm_up = 10", "warm_up = 2"))
    [script] = [block.text for block in blocks(README) if block.kind == "python"]
    scope: dict[str, object] = {}
    exec(compile(script.replace('"rounds": 40', '"rounds": 3'), "README.md", "exec"), scope)
    run = scope["run"]
    assert isinstance(run, fedsift.Run)
    assert run.finished
    assert Path("r.html").is_file()
