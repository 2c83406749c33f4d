"""docs/extending.md and CONTRIBUTING.md, performed: their files are written and run, from outside of the package."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

import fedsift
import fedsift.extend
from fedsift.methods._base import methods
from fedsift.protocol.disclosure import declared
from fedsift.training import processes
from fedsift.training.requests import Train
from tests.commands import typed
from tests.docs.blocks import blocks, environment, files, perform, write
from tests.docs.contributed import EXTENDING, NAME, SOURCE, contributed
from tests.promises import test_every_method as promises
from tests.promises.federations import assert_close, assert_same_bits, contract_study, outcome, play

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
EXERCISES = ("fedavgm", "term", "rule", "noise", "partition", "data", "network", "thread")
"""What the page adds, one file each."""

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    processes.close_workers()  # those that run already cannot import the page's files
    with contributed(tmp_path_factory.mktemp("extending")) as root:
        yield root
        processes.close_workers()


@pytest.fixture(scope="module")
def output(folder: Path) -> dict[str, str]:
    """What each of the page's commands and scripts printed, in the page's order."""
    env = environment(folder, PYTHONPATH=os.pathsep.join([str(folder), SOURCE]))
    printed: dict[str, str] = {}
    with chdir(folder):
        for block in blocks(EXTENDING):
            if block.kind == "python" and block.file is None:
                with redirect_stdout(StringIO()) as lines:
                    exec(compile(block.text, EXTENDING.name, "exec"), {})
                printed["script"] = lines.getvalue()
            for command in block.text.splitlines() if block.kind == "sh" else ():
                if command.startswith("fedsift "):
                    printed[command] = typed(command, folder)
                elif not command.startswith("export "):
                    printed[command] = perform(command, folder, env)
    return printed


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_is_one_file_that_uses_the_public_modules_alone(name: str) -> None:
    tree = ast.parse(files(EXTENDING)[f"mine/{name}.py"])
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {module for module in modules if module and module.split(".")[0] in ("fedsift", "mine")}
    assert own == {"fedsift.extend"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import) and "fedsift" in ast.dump(node)]


def test_the_page_names_all_of_the_public_modules() -> None:
    text = EXTENDING.read_text("utf-8")
    missing = [name for name in fedsift.extend.__all__ if f"`{name}`" not in text]
    assert not missing
    for name in fedsift.extend.__all__:
        assert getattr(fedsift.extend, name).__doc__ is not None or not isinstance(getattr(fedsift.extend, name), type)


def test_its_own_test_passes_and_its_table_lists_its_field(output: dict[str, str]) -> None:
    assert "4 passed" in output["pytest -q mine/test_fedavgm.py"]
    table = output[f"fedsift methods {NAME}"]
    assert "beta" in table
    assert "Trained" in table


def test_the_method_runs_by_its_address_and_as_an_object(folder: Path, output: dict[str, str]) -> None:
    runs = [fedsift.load(path) for path in sorted((folder / "runs").iterdir())]
    by_momentum = {run.study["method"]["beta"]: run for run in runs if run.study["method"]["name"] == NAME}
    assert by_momentum.keys() == {0.5, 0.9}
    assert all(run.finished and len(run.rounds) == 3 for run in by_momentum.values())
    assert float(output["script"].split()[-1]) == by_momentum[0.5].summary["accuracy"]["last"]
    one, other = (run.weights for run in by_momentum.values())
    assert any(not torch.equal(one[name], other[name]) for name in one), "beta changes nothing"


def test_the_other_classes_make_a_federation_together(folder: Path, output: dict[str, str]) -> None:
    [run] = [run for run in map(fedsift.load, (folder / "runs").iterdir()) if "Decided" in str(run.study["method"])]
    assert [row["site"] for row in run.sites] == ["university", "neighbour-1", "neighbour-2", "neighbour-3"]
    assert run.study["data"]["name"] == "mine.data:Wine"
    assert run.study["method"]["aggregate"] == "mine.rule:halfway"
    assert run.study["engine"]["name"] == "mine.thread:InThread"
    assert run.card.model == "mine.network:narrow"
    truth = (run.path / "truth.csv").read_text().splitlines()
    assert any(line.startswith("university") for line in truth[1:])
    assert "university" in output["fedsift run other.toml --out runs"]


def test_their_own_transport_gives_the_result_of_the_usual_one(folder: Path, tmp_path: Path) -> None:
    by_transport = []
    for name in ("mine.thread:InThread", "inprocess"):
        run = fedsift.run(folder / "other.toml", engine={"name": name, "trainer": "one"}, out=tmp_path / name[:4])
        by_transport.append((run.weights, [{**row, "seconds": 0} for row in run.rounds]))
    (threads, rows), (usual, usual_rows) = by_transport
    assert_same_bits(threads, usual)
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in usual_rows]


def test_the_rule_changes_the_model(folder: Path, tmp_path: Path) -> None:
    half, mean = (
        fedsift.run(
            folder / "other.toml", method={"aggregate": rule}, engine={"name": "inprocess"}, out=tmp_path / rule[:4]
        )
        for rule in ("mine.rule:halfway", "mean")
    )
    assert any(not torch.equal(half.weights[name], mean.weights[name]) for name in half.weights)


def test_it_declares_what_a_round_asks(folder: Path) -> None:
    assert declared(methods.get(NAME)()) == {"train": (Train,)}


def test_bad_replies_are_set_aside(folder: Path, tmp_path: Path) -> None:
    promises.test_bad_replies_are_set_aside_and_the_run_goes_on(NAME, tmp_path)


def test_stacked_and_in_workers_as_one_at_a_time(folder: Path, tmp_path: Path) -> None:
    settings = ({"trainer": "one"}, {"trainer": "one", "workers": 2}, {"trainer": "cohort"})
    (alone, rows), (federated, federated_rows), (stacked, _) = (
        outcome(play(contract_study(NAME, tmp_path, engine=engine, model={"name": "mlp"}), tmp_path))
        for engine in settings
    )
    assert_same_bits(alone, federated)
    assert rows == federated_rows
    assert_close(alone, stacked, 1e-4)


# Inside the repository ---------------------------------------------------------------------------------------------


def registered(text: str) -> str:
    """The method's file as one of the package's own: registered, and importing from the packages below it."""
    public = "from fedsift.extend import Federation, OneStage, Range, State, Weights, size_weighted, train_round\n"
    assert public in text
    own = """from fedsift.core.ranges import Range
from fedsift.methods._base import OneStage, methods, size_weighted, train_round
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import State
"""
    return text.replace(public, own).replace(
        "@dataclass(frozen=True)\nclass FedAvgM", '@methods.register("fedavgm")\n@dataclass(frozen=True)\nclass FedAvgM'
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the pages' method and command in it."""
    root = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "golden")
    shutil.copytree(SOURCE, root / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests", root / "tests", ignore=ignored)
    (root / "docs").mkdir()
    for name in ("pyproject.toml", ".importlinter", "README.md", "LICENSE", "docs/extending.md"):
        shutil.copy(ROOT / name, root / name)
    command = "src/fedsift/cli/headline.py"
    texts = {
        "src/fedsift/methods/fedavgm.py": registered(files(EXTENDING)["mine/fedavgm.py"]),
        command: files(CONTRIBUTING)[command],
    }
    write(texts, root)
    return root


def test_a_registered_method_is_listed_and_a_command_is_there(repository: Path) -> None:
    env = environment(repository, PYTHONPATH=str(repository / "src"))
    assert "Hsu et al. 2019" in perform("fedsift methods", repository, env | {"COLUMNS": "200"})
    assert "Say what a run found" in perform("fedsift headline --help", repository, env)


@pytest.mark.slow
def test_in_the_repository_linters_types_and_promises_hold(repository: Path) -> None:
    """Linters, types and every promise test of the new method."""
    env = environment(repository, PYTHONPATH=str(repository / "src"), MYPYPATH=str(repository / "src"))
    ours = "src/fedsift/methods/fedavgm.py src/fedsift/cli/headline.py"
    perform(f"python -m ruff check --fix-only --select I {ours}", repository, env)
    perform(f"python -m mypy {ours}", repository, env, 600)
    printed = perform("pytest -q -p no:cacheprovider tests/promises -k 'fedavgm and not mine'", repository, env, 600)
    assert " passed" in printed, "the promise tests did not find the method"
    assert "failed" not in printed
