"""Run folders: nothing half written, nothing lost, nothing extra after a crash."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsift.core.errors import ConfigError, RunError
from fedsift.core.files import line_with_check, safe_name
from fedsift.core.numbers import plain
from fedsift.runs.folder import Checkpoint, RunFolder


def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    made.write_text("study.toml", "seed = 1\n")
    return made


def point(done: int, **notebooks: bytes) -> Checkpoint:
    return Checkpoint(done, b"state\n of round %d" % done, [{"site": "a", "level": 0.5}], notebooks)


def checkpoint_line(**changes: object) -> bytes:
    values = {"format": 2, "rounds_done": 1, "notebooks": {}, "checksums": {}, "sites": [], "bytes": 0, "state": ""}
    return line_with_check({**values, **changes}).encode() + b"\n"


def test_names_are_numbered_on(tmp_path: Path) -> None:
    assert [RunFolder.create(tmp_path, "run").id for _ in range(3)] == ["run", "run-2", "run-3"]


def test_restore_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1, a=b"labels"))
    made.append_round({"round": 2})  # killed before the second checkpoint
    with made.rounds_file.open("a") as file:
        file.write('{"round": 3, "cut sho')
    (made.path / "x.tmp").write_text("left over")
    again = RunFolder.open(made.path)
    assert again.restore() == point(1, a=b"labels")
    assert [row["round"] for row in again.rounds()] == [1]
    assert not (made.path / "x.tmp").exists()


def test_notebooks_of_a_killed_round_are_ignored(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1, a=b"one"))
    made.write_bytes("notebooks/a/2.safetensors", b"two")  # written, then killed before the checkpoint
    restored = RunFolder.open(made.path).restore()
    assert restored is not None
    assert restored.notebooks == {"a": b"one"}


def test_only_the_current_notebook_stays_on_disk(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for done in (1, 2, 3):
        made.append_round({"round": done})
        changed = {"a": b"%d" % done} | ({"b": b"0"} if done == 1 else {})
        made.checkpoint(point(done, **changed))
    files = sorted(str(file.relative_to(made.path)) for file in made.path.glob("notebooks/*/*"))
    assert files == ["notebooks/a/3.safetensors", "notebooks/b/1.safetensors"]
    restored = RunFolder.open(made.path).restore()
    assert restored is not None
    assert restored.notebooks == {"a": b"3", "b": b"0"}


def test_a_notebook_that_is_gone_is_named(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1, a=b"one"))
    (made.path / "notebooks/a/1.safetensors").unlink()
    with pytest.raises(RunError, match="notebooks/a/1.safetensors is missing"):
        made.restore()


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a checkpoint", "no checkpoint of this version"),
        (b"[1]\n", "no checkpoint of this version"),
        (b'{"format": 2}\n', "without its checksum"),
        (checkpoint_line(format=1), "format 1, not 2"),
        (checkpoint_line(bytes=5) + b"four", "4 of 5 bytes"),
    ],
)
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    made = folder(tmp_path)
    made.checkpoint_file.write_bytes(content)
    with pytest.raises(RunError, match=f"checkpoint.bin cannot be read: .*{words}"):
        made.restore()


def test_anybody_can_read_how_far_a_run_is(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.checkpointed() is None
    made.checkpoint(point(3))
    header = made.checkpointed()
    assert header is not None
    assert (header.rounds_done, header.sites) == (3, [{"site": "a", "level": 0.5}])
    made.checkpoint_file.write_bytes(b"damaged")
    assert made.checkpointed() is None


def flip(file: Path, where: float) -> None:
    """One bit of one byte; `where` from 0, the first, to 1, the last."""
    data = bytearray(file.read_bytes())
    data[round(where * (len(data) - 1))] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize(
    "name",
    ["study.toml", "plan.json", "model.safetensors", "sites.csv", "checkpoint.bin", "notebooks/a/1.safetensors"],
)
def test_one_changed_bit_of_any_file_is_an_error_that_names_it(tmp_path: Path, name: str, where: float) -> None:
    made = folder(tmp_path)
    made.write_json("plan.json", {"rounds": 2})
    made.write_bytes("model.safetensors", bytes(1000))
    made.write_table("sites.csv", [{"site": "a", "level": 0.5}])
    made.append_round({"round": 1})
    made.checkpoint(point(1, a=b"labels of a"))
    RunFolder.open(made.path).verify()
    flip(made.path / name, where)
    with pytest.raises(RunError, match=name) as error:
        RunFolder.open(made.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", [0.05, 0.3, 0.6, 0.75, 0.95])
def test_one_changed_bit_of_the_rounds_is_an_error_that_names_the_line(tmp_path: Path, where: float) -> None:
    made = folder(tmp_path)
    for number in (1, 2):
        made.append_round({"round": number, "accuracy": 0.5})
    made.checkpoint(point(2))
    flip(made.rounds_file, where)
    with pytest.raises(RunError, match=rf"rounds.jsonl, line {1 if where < 0.5 else 2}, is damaged"):
        RunFolder.open(made.path)


def test_what_is_read_alone_is_checked_too(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.write_json("summary.json", {"accuracy": 0.75})
    flip(made.path / "summary.json", 0.7)
    with pytest.raises(RunError, match=r"summary.json is damaged: .* restore it"):
        made.read_json("summary.json")


def test_a_kill_between_checksum_and_file_and_within_a_checksum_harms_nothing(tmp_path: Path) -> None:
    made = folder(tmp_path)
    with (made.path / "checksums.txt").open("a") as file:
        file.write("0" * 32 + "  study.toml\n" + "1" * 17)
    made.write_json("plan.json", {"rounds": 2})
    assert RunFolder.open(made.path).read_json("plan.json") == {"rounds": 2}
    flip(made.path / "plan.json", 0.5)
    with pytest.raises(RunError, match=r"plan.json is damaged"):
        RunFolder.open(made.path)


def test_lost_lines_are_an_error_not_a_silence(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append_round({"round": 1})
    made.checkpoint(point(1))
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


def test_a_folder_without_a_round_can_be_discarded_and_one_with_other_things_stays(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.write_failure(ConfigError("no such key"))
    assert made.read_json("failure.json") == {"error": "no such key", "exit_code": 2}
    (made.path / "notes.txt").write_text("mine")
    made.discard()
    assert made.study_file.is_file()
    (made.path / "notes.txt").unlink()
    made.discard()
    assert not made.path.exists()


def test_reading_and_writing_runs_needs_no_torch() -> None:
    code = (
        "import sys, fedsift.runs, fedsift.runs.folder, fedsift.runs.reading, fedsift.protocol; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
