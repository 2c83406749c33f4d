"""Every table that comes with the package: complete, with a twin, and every one of its studies can be built."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedsift.benchmark.cells import study_of
from fedsift.benchmark.claims import pairs_of
from fedsift.benchmark.figures import check_figure
from fedsift.benchmark.table import Table, catalogue, find_table, table_names
from fedsift.core.errors import DataError
from fedsift.runs.folder import RunFolder
from fedsift.study.running import run

PAPERS = (
    [f"fednoro-{n}" for n in (1, 2, 3, 4)] + ["fednoro-warm-up"]
    + [f"rhfl-{n}" for n in (1, 2, 3, 4, 5, 6)]
    + [f"fedcorr-{n}" for n in (2, 3, 4, 5, 6, 9, 10, 11, 12, 13)]
    + [f"fedcorr-figure-{n}" for n in (3, 4, 5, 6, 7, 8, 9, 10)]
    + [f"fedmlp-{n}" for n in (1, 2, 3)]
    + [f"feddpcont-{n}" for n in (2, 3, 4, 6, 7, 8, 9, 10, 11, 12)]
)  # fmt: skip


def test_every_table_and_figure_of_the_papers_is_there_with_its_twin() -> None:
    names = table_names()
    assert [name for name in PAPERS if name not in names or f"{name}-small" not in names] == []
    for entry in catalogue():
        assert entry["what"] and entry["runs"] > 0
        assert (entry["size"] == "small") == entry["name"].endswith("-small")


def corner_studies(table: Table) -> Any:
    """Every row in its first column, every column with its last row, and wherever a row has settings of its own."""
    for row in table.rows:
        yield row, table.columns_of(row)[0]
        yield from ((row, column) for column in table.columns if column.label in row.at)
    for column in table.columns:
        yield [row for row in table.rows if column in table.columns_of(row)][-1], column


@pytest.mark.parametrize("name", table_names())
def test_every_study_of_a_table_can_be_built(name: str) -> None:
    table = find_table(name)
    for figure in table.figures:
        check_figure(figure)
    for row, column in corner_studies(table):
        assert study_of(table, row, column, table.seeds[0]).method.total_rounds > 0


@pytest.mark.parametrize("name", PAPERS)
def test_a_twin_asks_what_its_table_asks(name: str) -> None:
    full, twin = find_table(name), find_table(f"{name}-small")
    assert twin.twin == name
    assert {c.label for c in twin.columns} <= {c.label for c in full.columns}
    assert {row.label for row in twin.rows} & {row.label for row in full.rows}
    if any(row.printed for row in full.rows) and set(full.figures) & set(twin.figures):
        assert any(row.printed for row in twin.rows), "no figure of the paper is found by the twin's labels"


@pytest.mark.parametrize("name", PAPERS)
def test_a_twin_states_what_its_table_states(name: str) -> None:
    """Each claim of the full table, over all of its rows and columns that the twin has, by the same figure."""
    full, twin = find_table(name), find_table(f"{name}-small")
    stated = {claim.text: claim for claim in twin.claims}
    rows, columns = {row.label for row in twin.rows}, {column.label for column in twin.columns}
    for claim in full.claims:
        chain = [label for label in claim.order if label in rows]
        wanted = {*pairwise(chain), *(p for p in pairs_of(replace(claim, order=()), full) if {*p} <= rows)}
        if not wanted or (claim.columns and not columns & set(claim.columns)):
            continue
        here = stated.get(claim.text)
        assert here is not None, f"'{claim.text}' is missing"
        assert wanted <= set(pairs_of(here, twin)), f"'{claim.text}' leaves out rows"
        asked = set(claim.columns) & columns or columns
        assert asked <= (set(here.columns) or columns), f"'{claim.text}' leaves out columns"
        if claim.figure in twin.figures:
            assert here.figure == claim.figure, f"'{claim.text}' is read off another figure"


def test_labels_that_people_gave_have_every_method_of_the_leaderboard() -> None:
    board, people, network = (find_table(name) for name in ("leaderboard", "cifar10n", "leaderboard-lenet5"))
    assert [(row.label, row.settings) for row in people.rows] == [(row.label, row.settings) for row in board.rows]
    human = [column for column in board.columns if column.settings["noise"]["name"] == "cifar-n"]
    assert all(board.columns_of(row) == board.columns for row in board.rows)
    assert len(human) == 2
    assert {row.label for row in network.rows} < {row.label for row in board.rows}
    assert {column.label for column in network.columns} < {column.label for column in board.columns}


class Enough(Exception):
    """Two rounds are done."""


@pytest.mark.slow
@pytest.mark.parametrize("name", table_names())
def test_every_table_starts(name: str, tmp_path: Path) -> None:
    """Each row for two rounds in its first column, where the data are at hand."""
    table = find_table(name)

    def listen(row: dict[str, Any]) -> None:
        if row["round"] >= 2:
            raise Enough

    for number, row in enumerate(table.rows):
        study = study_of(table, row, table.columns_of(row)[0], table.seeds[0])
        try:
            federated = study.load_data()
        except DataError as error:
            pytest.skip(str(error))
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        folder.write_text("study.toml", study.to_toml())
        with contextlib.suppress(Enough):
            run(study, folder, listen, federated=federated)
