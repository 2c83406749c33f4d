"""Two engines, one result: every registered method, in process and under Flower's simulation, with one Flower start."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsift.methods import methods
from fedsift.runs import RunFolder
from fedsift.study.running import new_run
from tests.runs.told import told

from .federations import ALONE, assert_close, contract_study, outcome, play

pytest.importorskip("flwr", reason="the Flower engine is an extra: pip install 'fedsift[flower]'")
pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'fedsift[flower]'")

pytestmark = pytest.mark.flower
torch.set_num_threads(1)


def chosen(session: pytest.Session) -> list[str]:
    """The methods that this test session asks for: `-k fedavg` runs one, and pays for one."""
    wanted = {
        item.callspec.params["name"]
        for item in session.items
        if isinstance(item, pytest.Function) and item.function is test_flower_equals_in_process
    }
    return [name for name in methods if name in wanted]


@pytest.fixture(scope="module")
def on_flower(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[RunFolder, Any]]:
    """The chosen methods' runs under one start of Flower, each with its summary or error."""
    from fedsift.study.on_flower import simulate_many

    place = tmp_path_factory.mktemp("flower")
    names = chosen(request.session)
    studies = [contract_study(name, place, engine=ALONE) for name in names]
    folders = [new_run(study, place) for study in studies]
    outcomes = simulate_many(list(zip(studies, folders)))
    return dict(zip(names, zip(folders, outcomes)))


@pytest.mark.parametrize("name", methods.names())
def test_flower_equals_in_process(
    name: str, on_flower: dict[str, tuple[RunFolder, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, summary = on_flower[name]
    assert isinstance(summary, dict), summary
    place = tmp_path_factory.mktemp("inprocess")
    here = play(contract_study(name, place, engine=ALONE), place)
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
    assert told(here) == told(folder)
