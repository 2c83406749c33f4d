"""The command line starts at once: nothing heavy is imported for help and listings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedsift.cli

HEAVY = ("torch", "sklearn", "scipy", "flwr", "pydantic")


def imported_by(code: str, tmp_path: Path) -> set[str]:
    """Top-level modules that a fresh interpreter has imported after this code."""
    report = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "FEDSIFT_CACHE": str(tmp_path)},
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_fedsift_imports_next_to_nothing(tmp_path: Path) -> None:
    assert not imported_by("import fedsift; fedsift.__version__", tmp_path) & {"numpy", "rich", *HEAVY}


def test_importing_the_commands_imports_no_package(tmp_path: Path) -> None:
    assert not imported_by("import fedsift.cli", tmp_path) & {"numpy", *HEAVY}


def command(*words: str) -> str:
    """Code that does what a person's command does, and goes on."""
    start = f"import sys; sys.argv = ['fedsift', *{words!r}]\nfrom fedsift.cli import main\n"
    return f"{start}try: main()\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["methods"],
        ["models"],
        ["datasets"],
        ["scenarios"],
        ["noises"],
        ["partitions"],
        ["trackers"],
        ["bench", "list"],
    ],
)
def test_help_and_listings_import_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    assert not imported_by(command(*words), tmp_path) & set(HEAVY)


def test_own_models_are_listed_without_torch_once_they_were_measured(tmp_path: Path) -> None:
    code = f"from fedsift.cli import listings\nlistings._models_key = lambda: 'own source'\n{command('models')}"
    assert "torch" in imported_by(code, tmp_path)
    assert not imported_by(code, tmp_path) & set(HEAVY)


def test_a_command_is_in_one_file_which_is_named_after_one_of_its_commands() -> None:
    import importlib
    import pkgutil

    import typer

    everything: list[str | None] = []
    for module in pkgutil.iter_modules(fedsift.cli.__path__):
        found = importlib.import_module(f"fedsift.cli.{module.name}")
        if not hasattr(found, "register"):
            continue
        app = typer.Typer()
        found.register(app)
        names = [command.name for command in app.registered_commands]
        names += [group.name for group in app.registered_groups]
        assert module.name in names or module.name == "listings"
        everything += names
    assert len(everything) == len(set(everything))
