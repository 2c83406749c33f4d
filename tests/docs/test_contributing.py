"""CONTRIBUTING.md, performed: its files are written, its commands run, its method keeps every promise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsift
from fedsift.methods._base import methods
from fedsift.protocol.disclosure import declared
from fedsift.runs.folder import RunFolder
from fedsift.training import processes
from fedsift.training.requests import Train
from tests.commands import typed
from tests.docs.blocks import blocks, environment, files, perform, write
from tests.docs.contributed import NAME, PAGE, SOURCE, contributed
from tests.promises import test_every_method as promises
from tests.promises.federations import (
    alone_study,
    assert_close,
    assert_same_bits,
    contract_study,
    outcome,
    play,
)

ROOT = PAGE.parent
MINE = ("momentum.py", "fedavgm.py", "test_fedavgm.py")

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    processes.close_workers()  # those that run already cannot import the page's files
    with contributed(tmp_path_factory.mktemp("contributing")) as root:
        yield root
        processes.close_workers()


@pytest.fixture(scope="module")
def watched(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """One honest run of the method, with what was seen in it."""
    seen = promises.watched_run(NAME, tmp_path_factory.mktemp("honest"))
    return lambda name: seen


@pytest.fixture(scope="module")
def undisturbed(watched: Any) -> Callable[[str], RunFolder]:
    return lambda name: watched(name)[0]


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, str]:
    """What each of the page's commands and scripts said, in the page's order."""
    env = environment(folder, PYTHONPATH=os.pathsep.join([str(folder), SOURCE]))
    heard: dict[str, str] = {}
    with chdir(folder):
        for block in blocks(PAGE):
            if block.kind == "python" and block.file is None:
                with redirect_stdout(StringIO()) as told:
                    exec(compile(block.text, "CONTRIBUTING.md", "exec"), {})
                heard["script"] = told.getvalue()
            for command in block.text.splitlines() if block.kind == "sh" else ():
                if command.startswith("fedsift "):
                    heard[command] = typed(command, folder)
                elif not command.startswith("export "):
                    heard[command] = perform(command, folder, env)
    return heard


def test_the_page_writes_what_it_speaks_of() -> None:
    assert {f"mine/{name}" for name in MINE} <= files(PAGE).keys()
    assert {"study.toml", "other.toml", "mine/fedavgm.md", "src/fedsift/cli/headline.py"} <= files(PAGE).keys()


def test_its_own_test_passes_and_its_table_lists_its_field(said: dict[str, str]) -> None:
    assert "3 passed" in said["pytest -q mine/test_fedavgm.py"]
    table = said[f"fedsift methods {NAME}"]
    assert "beta" in table
    assert "Trained" in table


def test_the_method_runs_by_its_address_and_as_an_object(folder: Path, said: dict[str, str]) -> None:
    runs = [fedsift.load(path) for path in sorted((folder / "runs").iterdir())]
    by_momentum = {run.study["method"]["beta"]: run for run in runs if run.study["method"]["name"] == NAME}
    assert by_momentum.keys() == {0.5, 0.9}
    assert all(run.finished and len(run.rounds) == 3 for run in by_momentum.values())
    assert float(said["script"].split()[-1]) == by_momentum[0.5].summary["accuracy"]["last"]
    one, other = (run.weights for run in by_momentum.values())
    assert any(not torch.equal(one[name], other[name]) for name in one), "beta changes nothing"


def test_the_other_classes_make_a_federation_together(folder: Path, said: dict[str, str]) -> None:
    [run] = [run for run in map(fedsift.load, (folder / "runs").iterdir()) if "Decided" in str(run.study["method"])]
    assert [row["site"] for row in run.sites] == ["university", "neighbour-1", "neighbour-2", "neighbour-3"]
    assert run.study["data"]["name"] == "mine.data:Wine"
    assert run.card.model == "mine.network:narrow"
    truth = (run.path / "truth.csv").read_text().splitlines()
    assert any(line.startswith("university") for line in truth[1:])
    assert "university" in said["fedsift run other.toml --out runs"]


# The promises, by address ------------------------------------------------------------------------------------------


def test_it_declares_what_a_round_asks(folder: Path) -> None:
    assert declared(methods.get(NAME)()) == {"train": (Train,)}


def test_it_runs_every_stage_and_writes_everything(undisturbed: Any) -> None:
    promises.test_runs_every_stage_and_writes_everything(NAME, undisturbed)
    promises.test_the_resolved_study_builds_the_same_study(NAME, undisturbed)


def test_any_order_one_result(folder: Path, tmp_path: Path) -> None:
    alone = play(alone_study(NAME, tmp_path), tmp_path)
    promises.test_any_order_one_result(NAME, lambda name: alone, tmp_path)


def test_replies_hold_what_they_declare(watched: Any) -> None:
    promises.test_replies_hold_what_they_declare_and_nothing_else(NAME, watched)


def test_bad_replies_are_set_aside(folder: Path, tmp_path: Path) -> None:
    promises.test_bad_replies_are_set_aside_and_the_run_goes_on(NAME, tmp_path)


def test_killed_and_resumed_equals_never_stopped(undisturbed: Any, tmp_path: Path) -> None:
    promises.test_killed_and_resumed_equals_never_stopped(NAME, undisturbed, tmp_path)


def test_stacked_and_in_workers_as_one_at_a_time(folder: Path, tmp_path: Path) -> None:
    settings = ({"trainer": "one"}, {"trainer": "one", "workers": 2}, {"trainer": "cohort"})
    (alone, rows), (spread, spread_rows), (stacked, _) = (
        outcome(play(contract_study(NAME, tmp_path, engine=engine, model={"name": "mlp"}), tmp_path))
        for engine in settings
    )
    assert_same_bits(alone, spread)
    assert rows == spread_rows
    assert_close(alone, stacked, 1e-4)


# Into the house ----------------------------------------------------------------------------------------------------


def moved(text: str, method: bool) -> str:
    """A file of `mine` as section 6 says to move it."""
    text = text.replace("mine.momentum", "fedsift.aggregate.momentum")
    text = text.replace("mine.fedavgm", "fedsift.methods.fedavgm")
    if method:
        text = text.replace("import OneStage, size_weighted", "import OneStage, methods, size_weighted")
        text = text.replace(
            "@dataclass(frozen=True)\nclass FedAvgM",
            '@methods.register("fedavgm")\n@dataclass(frozen=True)\nclass FedAvgM',
        )
    return text


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with the page's method and command moved in."""
    root = tmp_path_factory.mktemp("house")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "golden")
    shutil.copytree(SOURCE, root / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests", root / "tests", ignore=ignored)
    for name in ("pyproject.toml", ".importlinter", "README.md", "LICENSE", PAGE.name):
        shutil.copy(ROOT / name, root / name)
    texts = files(PAGE)
    write(
        {
            "src/fedsift/aggregate/momentum.py": moved(texts["mine/momentum.py"], method=False),
            "src/fedsift/methods/fedavgm.py": moved(texts["mine/fedavgm.py"], method=True),
            "tests/methods/test_fedavgm.py": moved(texts["mine/test_fedavgm.py"], method=False),
            "src/fedsift/cli/headline.py": texts["src/fedsift/cli/headline.py"],
        },
        root,
    )
    return root


def test_in_the_house_it_is_listed_and_the_command_is_there(house: Path) -> None:
    env = environment(house, PYTHONPATH=str(house / "src"))
    assert "Hsu et al. 2019" in perform("fedsift methods", house, env | {"COLUMNS": "200"})
    assert "Say what a run found" in perform("fedsift headline --help", house, env)


@pytest.mark.slow
def test_in_the_house_the_rooms_and_the_promises_hold(house: Path) -> None:
    """Linters, types, import contracts, its own test, and every contract test of the new method."""
    env = environment(house, PYTHONPATH=str(house / "src"), MYPYPATH=str(house / "src"))
    ours = "src/fedsift/aggregate/momentum.py src/fedsift/methods/fedavgm.py src/fedsift/cli/headline.py"
    perform(f"python -m ruff check --fix-only --select I {ours} tests/methods/test_fedavgm.py", house, env)
    perform(f"python -m ruff check {ours} tests/methods/test_fedavgm.py", house, env)
    perform(f"python -m mypy {ours}", house, env, 600)
    perform("python -c 'from importlinter.cli import lint_imports; raise SystemExit(lint_imports())'", house, env)
    told = perform(
        "pytest -q -p no:cacheprovider tests/methods/test_fedavgm.py tests/contract -k fedavgm",
        house,
        env,
        600,
    )
    assert "3 passed" not in told, "the contract tests did not find the method"
    assert " passed" in told
    assert "failed" not in told
