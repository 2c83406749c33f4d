"""The table's file: every key checked, twins find what the full table prints, sweeps make tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fedsift.benchmark.cells import cells_of, parts_of, sweep_table
from fedsift.benchmark.figures import check_figure, figures_of, value_of
from fedsift.benchmark.table import find_table, inherited, read_seeds, table_of
from fedsift.core.errors import ConfigError
from fedsift.runtime.gate.protection import GateLimits
from fedsift.study.study import Study
from tests.benchmark.small import COLUMNS, ROWS, small_table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "unknown key 'seed'. Did you mean 'seeds'"),
        ({"rows": []}, "has no \\[\\[rows\\]\\]"),
        ({"rows": [ROWS[0], ROWS[0]]}, "two rows are called 'FedAvg'"),
        ({"rows": [{**ROWS[0], "printed": [1.0]}]}, "2 numbers are needed"),
        ({"rows": [{**ROWS[0], "metod": {}}]}, "row 'FedAvg': unknown key 'metod'. Did you mean 'method'"),
        ({"rows": [{**ROWS[1], "columns": ["dirty"]}], "claims": []}, "no column is called 'dirty'"),
        ({"claims": [{"text": "x", "order": ["FedLA", "FedAvgg"]}]}, "no row is called 'FedAvgg'"),
        ({"claims": [{"text": "x"}]}, "order, first, last, alike or printed"),
        ({"scenario": ""}, "column 'clean' has no scenario"),
        ({"seeds": [1, 1]}, "at least one, and each once"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_table(**changes)


def test_a_wrong_setting_names_its_row_and_column() -> None:
    rows = [ROWS[0], {"label": "FedLA", "method": {"name": "fedla", "tua": 1.0}}]
    with pytest.raises(ConfigError, match="row 'FedLA', column 'clean': unknown key 'method.tua'"):
        list(cells_of(small_table(rows=rows)))


def test_a_run_is_known_by_what_differs_from_the_defaults() -> None:
    """A default that is written out is the same run; another value is another one."""
    first = next(cells_of(small_table()))
    gate = first.study.gate
    written = next(cells_of(small_table().changed(settings=[f"gate.turned={gate.turned}", "gate.flat=true"])))
    other = next(cells_of(small_table().changed(settings=["gate.turned=0"])))
    assert first.study_key == written.study_key != other.study_key


def test_a_key_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a thousand cells asks for all keys several times a second."""
    made: list[Study] = []
    monkeypatch.setattr("fedsift.benchmark.cells.canonical", lambda study: made.append(study) or "text")
    cell = next(cells_of(small_table()))
    assert cell.key == cell.key and cell.study_key == cell.study_key
    assert len(made) == 1


def test_a_switch_that_a_later_version_adds_leaves_the_runs_of_this_one_findable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = next(cells_of(small_table())).study_key

    @dataclass(frozen=True)
    class LaterGate(GateLimits):
        newcomer: bool = False

    monkeypatch.setattr("fedsift.study.study.GateLimits", LaterGate)
    later = next(cells_of(small_table()))
    assert "newcomer" in later.study.to_table()["gate"]
    assert later.study_key == before


def test_seeds_are_read_from_lists_and_text() -> None:
    assert read_seeds("1-3,7", "x") == (1, 2, 3, 7)
    assert read_seeds([4, 5], "x") == (4, 5)
    with pytest.raises(ConfigError, match="not of the form"):
        read_seeds("one", "x")


def test_settings_of_single_columns_come_last() -> None:
    rows = [{**ROWS[0], "at": {"noisy": {"method": {"rounds": 5}}}}, ROWS[1]]
    rounds = {(c.row, c.column): c.study.method.total_rounds for c in cells_of(small_table(rows=rows))}
    assert rounds == {
        ("FedAvg", "clean"): 2,
        ("FedAvg", "noisy"): 5,
        ("FedLA", "clean"): 2,
        ("FedLA", "noisy"): 2,
    }


def test_a_twin_has_the_figures_of_the_full_table() -> None:
    full = small_table()
    content = {"scenario": "x", "rows": [{"label": "FedAvg"}, {"label": "ours"}], "columns": COLUMNS[::-1]}
    twin = inherited(table_of("twin", {**content, "figures": ["accuracy.best", "accuracy.last"]}), full)
    column = {c.label: c for c in twin.columns}
    assert twin.printed(twin.rows[0], column["noisy"], "accuracy.best") == (70.0, None)
    assert twin.printed(twin.rows[0], column["clean"], "accuracy.best") == (80.0, None)
    assert twin.printed(twin.rows[1], column["clean"], "accuracy.best") == (None, None)
    assert twin.claims == (), "the claim speaks of a row that the twin lacks"


def test_a_twin_states_what_the_full_table_states_of_the_rows_that_it_has() -> None:
    """Rows of its own are no part of it; a claim may explain an inherited one; the same words are the twin's own."""
    rows = [{"label": label, "method": {"name": "fedavg", "rounds": 2}} for label in ("a", "b", "c")]
    stated = [
        {"text": "best", "first": "a"},
        {"text": "in order", "order": ["a", "b", "c"]},
        {"text": "alike", "alike": ["b", "c"], "within": 1.0, "columns": ["clean"]},
    ]
    full = small_table(rows=rows, claims=stated)
    content = {"scenario": "x", "twin": "digits", "columns": COLUMNS[1:]}
    own = {"text": "because", "order": ["ours", "a"], "explains": "best"}
    labels = [{"label": label} for label in ("a", "c", "ours")]
    twin = inherited(table_of("twin", {**content, "rows": labels, "claims": [own]}), full)
    assert [(c.text, c.order, c.first, c.over) for c in twin.claims] == [
        ("best", (), "a", ("c",)),
        ("in order", ("a", "c"), "", ()),
        ("because", ("ours", "a"), "", ()),
    ]
    again = {"text": "best", "first": "a", "over": ["c"], "figure": "accuracy.last"}
    twin = inherited(table_of("twin", {**content, "rows": labels, "claims": [again]}), full)
    assert [(c.text, c.figure) for c in twin.claims] == [("in order", ""), ("best", "accuracy.last")]
    with pytest.raises(ConfigError, match="table 'twin': no claim says 'worst'"):
        inherited(table_of("twin", {**content, "rows": labels, "claims": [{**own, "explains": "worst"}]}), full)


def test_figures_are_read_off_a_run_by_name() -> None:
    outcome = {
        "scores": {"accuracy": {"best": 0.5, "last": 0.4}},
        "curve": {"visits": [10, 20, 30], "accuracy": [0.2, None, 0.5]},
        "detection": {"recall": 1.0, "exact": True},
        "corrections": {"noise_after": 0.25, "harmed": 3},
        "site_accuracy": [["a", 0.1], ["b", 0.9]],
        "rounds": 3,
    }
    expected = {
        "accuracy.best": 50.0, "bacc.best": None, "visits-to.0.4": 30.0, "visits-to.0.6": None, "site.2": 90.0,
        "site.3": None, "detection.exact": 100.0, "corrections.noise_after": 25.0, "corrections.harmed": 3.0,
        "rounds": 3.0,
    }  # fmt: skip
    for name, value in expected.items():
        check_figure(name)
        assert value_of(figures_of(outcome), name) == value, name
    nobody = {**outcome, "detection": {"recall": 0.0, "precision": 0.0, "truth": []}}
    assert value_of(figures_of(nobody), "detection.recall") is None, "no site is noisy: there was none to find"
    assert value_of(figures_of(nobody), "detection.precision") == 0.0, "but whoever was named was named wrongly"
    somebody = {"detection": {"recall": 0.5, "truth": ["north"]}}
    assert value_of(figures_of(somebody), "detection.recall") == 50.0
    for name in ("accuracy.bset", "visits-to.80", "site.0"):
        with pytest.raises(ConfigError, match=f"unknown figure '{name}'"):
            check_figure(name)


def test_a_sweep_is_a_table() -> None:
    settings = ["method.mu=0.1,1", "train.lr=0.1,0.01", "method.rounds=3", "seeds=1-2"]
    table, text = sweep_table("fedcorr/cifar10-iid-0.6-0.5", ["method.name='fedprox'", *settings], ["accuracy.best"])
    assert [row.label for row in table.rows] == ["method.mu=0.1", "method.mu=1"]
    assert [column.label for column in table.columns] == ["train.lr=0.1", "train.lr=0.01"]
    cells = list(cells_of(table))
    assert len(cells) == 8
    assert {(c.study.method.mu, c.study.train.lr, c.study.seed) for c in cells} == {  # type: ignore[attr-defined]
        (mu, lr, seed) for mu in (0.1, 1.0) for lr in (0.1, 0.01) for seed in (1, 2)
    }
    assert 'label = "method.mu=0.1"' in text
    assert parts_of("[1,2],'a,b',3") == ["[1,2]", "'a,b'", "3"]
    with pytest.raises(ConfigError, match="several values"):
        sweep_table("study.toml", ["method.rounds=3"], ["accuracy.best"])


def test_an_unknown_table_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fedcorr-2'"):
        find_table("fedcor-2")


def test_what_a_paper_prints_is_read_by_figure_row_and_column() -> None:
    table = find_table("feddpcont-2")
    column = {c.label: c for c in table.columns}
    assert table.printed(table.row("FedAvg"), column["symmetric 0.2"], "accuracy.best") == (76.84, 0.91)
    assert table.printed(table.row("LC"), column["symmetric 0.2"], "accuracy.best") == (None, None)
    table = find_table("fednoro-2")
    assert table.printed(table.row("RoFL"), table.columns[1], "bacc.last") == (27.79, None)
    assert find_table("feddpcont-10").row("No DP").printed == {}


def test_a_twin_has_of_its_table_what_it_does_not_say_otherwise() -> None:
    full, twin = find_table("fedcorr-figure-3"), find_table("fedcorr-figure-3-small")
    assert (full.source, twin.twin, twin.what) == ("Figure 3", full.name, f"{full.what}, in small")
    assert (twin.rows, twin.figures, twin.scenario) == (full.rows, full.figures, f"{full.scenario}-small")
    assert all(row.settings["method"]["fine_tuning"] is False for row in twin.rows), "settings of each row"
    twin = find_table("fedcorr-2-small")
    assert [(c.label, c.scenario) for c in twin.columns] == [("(0.6, 0.5)", "fedcorr/cifar10-iid-0.6-0.5-small")]
    assert "train" not in twin.row("FedAvg").settings, "its rows are its own"
    assert [row.label for row in find_table("fedcorr-3-small").rows] == ["FedAvg", "FedProx", "ARFL", "FedCorr"]


def test_a_template_stands_for_each_of_its_rows_and_columns() -> None:
    table = find_table("feddpcont-4-small")
    epsilon = {row.label: row.settings["method"]["epsilon"] for row in table.rows if row.label.startswith("epsilon")}
    assert epsilon["epsilon 3"] == 3.0 and epsilon["epsilon 0.01, clip"] == 0.01
    assert len(find_table("feddpcont-8").columns) == 16
