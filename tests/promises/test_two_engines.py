"""Two engines, one result: every registered method and one of a contributor's, in process and under Flower's
simulation, with one Flower start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsift.core.errors import ConfigError
from fedsift.methods._base import methods
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from tests.docs.contributed import NAME, contributed
from tests.promises.federations import alone_study, assert_close, outcome
from tests.runs.recorded_events import recorded_events

pytest.importorskip("flwr", reason="the Flower engine is an extra: pip install 'fedsift[flower]'")
pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'fedsift[flower]'")

pytestmark = pytest.mark.flower
ALL = [*methods.names(), NAME]
torch.set_num_threads(1)


@dataclasses.dataclass(frozen=True)
class Flown:
    """What one start of Flower made of all jobs."""

    runs: dict[str, tuple[RunFolder, Any]]
    """By name: the run's folder, and its summary or error."""
    told: dict[str, list[int]]
    """The rounds that a listener heard of."""


def chosen(session: pytest.Session) -> list[str]:
    """What this test session asks for: `-k fedavg` runs one method, and pays for one."""
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    wanted = {item.callspec.params["name"] for item in items if item.function is test_flower_equals_in_process}
    if any(item.function is test_a_stopped_simulation_goes_on_as_if_never_stopped for item in items):
        wanted |= set(STOPPED)
    return [name for name in [*ALL, *STOPPED] if name in wanted]


@pytest.fixture(scope="module")
def on_flower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    """The chosen runs under one start of Flower; one of them was stopped in a start of its own before."""
    from fedsift.transports.flower.launch import simulate_many

    place = tmp_path_factory.mktemp("flower")
    with contributed(place):
        names = chosen(request.session)
        studies = [study_of(name, "flower") if name in STOPPED else alone_study(name, place) for name in names]
        jobs = [(study, new_run(study, place)) for study in studies]
        if STOPPED[1] in names:
            with pytest.raises(Enough):
                simulate_many([jobs[names.index(STOPPED[1])]], stop_after(2))
            half_way = jobs[names.index(STOPPED[1])][1]
            assert half_way.checkpoint_file.is_file()
            assert not half_way.finished
        told: dict[str, list[int]] = {name: [] for name in names}
        outcomes = simulate_many(jobs, lambda job, row: told[names[job]].append(row["round"]))
        yield Flown(dict(zip(names, zip((folder for _, folder in jobs), outcomes))), told)


@pytest.mark.parametrize("name", ALL)
def test_flower_equals_in_process(name: str, on_flower: Flown, alone: Callable[[str], RunFolder]) -> None:
    folder, summary = on_flower.runs[name]
    assert isinstance(summary, dict), summary
    here = alone(name)
    weights, rows = outcome(here)
    there, flower_rows = outcome(folder)
    assert_close(weights, there, 1e-5)
    assert len(rows) == len(flower_rows)
    for row, other in zip(rows, flower_rows, strict=True):
        assert row["stage"] == other["stage"]
        assert row["participants"] == other["participants"]
        assert not other["refused"]
        assert row.get("findings", {}).get("noisy") == other.get("findings", {}).get("noisy")
        for metric in ("accuracy", "bacc", "train_loss"):
            assert other.get(metric) == pytest.approx(row.get(metric), abs=1e-4), metric
    assert recorded_events(here) == recorded_events(folder)


# Stopped and gone on with ------------------------------------------------------------------------------------------

STOPPED = ("whole: fedavg", "stopped: fednoro", "impossible: fedavg")
"""Unequal sites: a run of one go, one that is stopped after its second round, one that cannot begin."""
UNEQUAL = ("seconds",)
"""The only value of a round's line that may differ between engines."""


def study_of(name: str, engine: str) -> Study:
    kind, _, method = name.partition(": ")
    table: dict[str, Any] = {
        "name": f"{kind} {method} {engine}",
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 5, "p": 0.9, "alpha": 2.0},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5},
        "model": {"name": "mlp", **({"sites": {"site-00": "lenet5"}} if kind == "impossible" else {})},
        "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
        "method": {"name": method},
        "engine": {"name": engine, "trainer": "one"},  # as at a real site; a cohort differs in the last bits
    }
    study = Study.from_table(table)
    return dataclasses.replace(study, method=study.method.tiny())


class Enough(Exception):
    """Raised by a listener to stop a run in the middle, as a person's Ctrl-C would."""


def stop_after(number: int) -> Callable[[int, dict[str, Any]], None]:
    def listen(job: int, row: dict[str, Any]) -> None:
        if row["round"] == number:
            raise Enough

    return listen


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in UNEQUAL} for row in folder.rounds()]


def relative_difference(first: Path, second: Path) -> float:
    mine, theirs = load_file(first), load_file(second)
    assert mine.keys() == theirs.keys()
    pairs = [(mine[key].double(), theirs[key].double()) for key in mine]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)) for a, b in pairs)


def test_a_stopped_simulation_goes_on_as_if_never_stopped(on_flower: Flown, tmp_path: Path) -> None:
    whole, stopped, impossible = STOPPED
    assert on_flower.told[whole] == [1, 2, 3]
    assert on_flower.told[stopped][-1] == 4
    assert 1 not in on_flower.told[stopped]  # a finished round is not asked again
    for name in (whole, stopped):
        study = study_of(name, "inprocess")
        expected = new_run(study, tmp_path)
        run(study, expected)
        folder, summary = on_flower.runs[name]
        assert isinstance(summary, dict)
        assert lines(folder) == lines(expected)
        mine, theirs = folder.path, expected.path
        assert relative_difference(mine / "model.safetensors", theirs / "model.safetensors") <= 1e-5
        for table in ("sites.csv", "truth.csv"):
            assert (mine / table).read_text() == (theirs / table).read_text()
    from fedsift.transports.remote.notebooks import NotebookStore

    resumed, summary = on_flower.runs[stopped]
    assert summary["detection"]["truth"]  # the launcher knows the truth; the sites' folders do not
    never, reason = on_flower.runs[impossible]  # and it did not keep the others from running
    assert isinstance(reason, ConfigError)
    assert not never.path.exists()  # a run that fails before its first round leaves no folder
    [first_site] = sorted((resumed.path / "sites").glob("00000-*"))
    kept = NotebookStore(first_site / "notebook", resumed.id, "site-00").versions()
    assert kept[-1].startswith("3.0:")
