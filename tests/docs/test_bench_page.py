"""What docs/bench.md shows works: its table is read, its commands have these options, its shards are run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsift.benchmark.cells import cells_of
from fedsift.benchmark.table import read_table, table_names
from fedsift.cli.main import app
from tests.benchmark.small import STUDY_FILE, same_files

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def written(folder: Path) -> Path:
    """The page's table beside a study of three small sites."""
    (folder / "study.toml").write_text(STUDY_FILE)
    (folder / "mine.toml").write_text(next(block for block in blocks("toml") if block.startswith("# mine.toml")))
    return folder / "mine.toml"


def test_the_page_s_table_can_be_built(tmp_path: Path) -> None:
    table = read_table(written(tmp_path))
    assert len(list(cells_of(table))) == table.runs == 12


def test_the_page_s_options_and_tables_exist() -> None:
    """In all of its blocks, those for Slurm and Kubernetes included."""
    text = "\n".join(block for kind in ("sh", "bash", "yaml") for block in blocks(kind))
    help_texts = "".join(
        CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout for name in ("bench", "sweep")
    )
    for option in set(re.findall(r"(?<=\s)--[a-z-]+", text)) - {"--array", "--cpus-per-task"}:
        assert option in help_texts, option
    for name in re.findall(r"fedsift bench ([a-z]+-[\w-]+)", text):
        assert name in table_names(), name


@pytest.mark.slow
def test_the_page_s_shards_are_run_and_merged(tmp_path: Path) -> None:
    """The shell block as it stands, with fewer rounds; then the whole table in one place."""
    written(tmp_path)
    table = tmp_path / "mine.toml"
    table.write_text(table.read_text().replace("rounds = 20", "rounds = 2"))
    program = tmp_path / "bin" / "fedsift"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedsift "$@"\n')
    program.chmod(0o755)
    block = next(block for block in blocks("sh") if "--shard" in block)
    bash = shutil.which("bash") or "sh"
    whole = f"export PATH={program.parent}:$PATH\nset -e\n{block}\nfedsift bench mine.toml --out alone"
    done = subprocess.run([bash, "-c", whole], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert same_files(tmp_path / "whole" / "mine") == same_files(tmp_path / "alone" / "mine")
