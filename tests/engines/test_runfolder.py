"""Run folders: nothing half written, nothing lost, nothing extra after a crash."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsift.contract.errors import RunError
from fedsift.engines.runfolder import Checkpoint, RunFolder, plain, safe_name


def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    made.write_text("study.toml", "seed = 1\n")
    return made


def point(done: int) -> Checkpoint:
    return Checkpoint(done, {"w": torch.full((2,), float(done))}, {"a": f"{done}.0:x"}, {})


def test_names_are_numbered_on(tmp_path: Path) -> None:
    assert [RunFolder.create(tmp_path, "run").id for _ in range(3)] == ["run", "run-2", "run-3"]


def test_restore_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    made = folder(tmp_path)
    notebooks = {"a": {"labels": torch.tensor([1])}}
    made.append_round({"round": 1})
    made.checkpoint(point(1), notebooks, {"a"})
    made.append_round({"round": 2})  # killed before the second checkpoint
    with made.rounds_file.open("a") as file:
        file.write('{"round": 3, "cut sho')
    (made.path / "x.tmp").write_text("left over")
    again = RunFolder.open(made.path)
    restored = again.restore()
    assert restored is not None
    state, pages = restored
    assert state.rounds_done == 1
    assert torch.equal(state.state["w"], torch.ones(2))
    assert torch.equal(pages["a"]["labels"], torch.tensor([1]))
    assert [row["round"] for row in again.rounds()] == [1]
    assert not (made.path / "x.tmp").exists()


def test_notebooks_of_a_killed_round_are_ignored(tmp_path: Path) -> None:
    from fedsift.contract import codec

    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1), {"a": {"n": 1}}, {"a"})
    codec.save(
        made.path / "notebooks/a/2.safetensors", {"n": 2}
    )  # written, then killed before the checkpoint
    restored = RunFolder.open(made.path).restore()
    assert restored is not None
    assert restored[1]["a"] == {"n": 1}


def test_only_the_current_notebook_stays_on_disk(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for done in (1, 2, 3):
        made.append_round({"round": done})
        made.checkpoint(point(done), {"a": {"n": done}, "b": {"n": 0}}, {"a", "b"} if done == 1 else {"a"})
    files = sorted(str(file.relative_to(made.path)) for file in made.path.glob("notebooks/*/*"))
    assert files == ["notebooks/a/3.safetensors", "notebooks/b/1.safetensors"]


def test_without_a_checkpoint_a_run_starts_over(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    assert made.restore() is None
    assert made.rounds() == []


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.lock()
    with pytest.raises(RunError, match="in use"):
        RunFolder.open(made.path).lock()
    made.unlock()
    other = RunFolder.open(made.path)
    other.lock()
    other.unlock()


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        RunFolder.open(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.checkpoint_file.write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match="checkpoint.safetensors cannot be read"):
        made.restore()


def test_lost_lines_are_an_error_not_a_silence(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1), {}, set())
    made.rounds_file.unlink()
    with pytest.raises(RunError, match="has 0 lines, the checkpoint counts 1"):
        made.restore()


def test_site_names_become_safe_and_distinct_file_names() -> None:
    assert safe_name("site-01") == "site-01"
    names = ["a/b", "a_b", "../up", "", "ü", "x" * 200, "x" * 199]
    made = [safe_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all("/" not in name and name and not name.startswith(".") for name in made)


def test_plain_makes_json_without_nan() -> None:
    value = {
        "a": math.nan,
        "b": [np.float64(1.5), np.int64(2), np.array([1.0, math.inf])],
        3: {"x"},
        "p": Path("a"),
    }
    assert plain(value) == {"a": None, "b": [1.5, 2, [1.0, None]], "3": ["x"], "p": "a"}
