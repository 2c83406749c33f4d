"""What is kept of results: sorted CSV, small enough to read, and whole where a page depends on it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedsift.benchmark.rows import read_rows
from fedsift.benchmark.store import PLACE, placed_in
from fedsift.methods._base import methods

pytest.importorskip("flwr", reason="the benchmarks of a deployment need Flower")

from benchmarks.attacks import presets, rates, sizes, turned
from benchmarks.attacks.__main__ import ACCURACY, ACCURACY_KEY, HONEST, HONEST_KEY
from benchmarks.attacks.light import conduct
from benchmarks.faults import fuzz
from benchmarks.files import read_list, read_tree, write_tree
from benchmarks.floor.__main__ import FLOORS, METHODS, RESULTS, SEEDS
from benchmarks.leakage.secure import verdict
from benchmarks.tables.page import HERE
from fedsift.benchmark.table import table_names
from fedsift.core.errors import QuorumError
from fedsift.runtime.gate.protection import turning_is_attack

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("benchmarks/**/*.csv"))
MOST_LINES = 20_000


def test_results_are_csv_and_few_lines() -> None:
    everything = [*FILES, *ROOT.glob("benchmarks/**/*.json"), *ROOT.glob("src/fedsift/benchmark/*.csv")]
    assert sum(len(file.read_text("utf-8").splitlines()) for file in everything) < MOST_LINES
    assert not list(ROOT.glob("benchmarks/**/results/**/*.json")), "results are CSV"


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_file_is_written_as_the_program_writes_it(file: Path) -> None:
    """Rows of lists of equal length, LF at the end of each, a value in each cell that is read."""
    data = file.read_bytes()
    assert data.endswith(b"\n") and b"\r" not in data
    assert len(read_rows(file)) == len(list(csv.reader(data.decode().splitlines()))) - 1 > 0


@pytest.mark.parametrize("file", sorted(HERE.glob("*.csv")), ids=lambda file: file.stem)
def test_a_table_is_sorted_and_of_a_table_that_there_is(file: Path) -> None:
    assert file.stem in table_names()
    places = [tuple(row[name] for name in PLACE) for row in read_rows(file)]
    assert places == sorted(places)
    assert len(list(placed_in(file))) == len(places)


def test_a_tree_comes_back(tmp_path: Path) -> None:
    tree = {"a": {1: {"x": 0.5, "y": {"z": None}}, 2: {"x": 1}}, "b": {1: 7.5}}
    write_tree(tmp_path / "tree.csv", tree, ("name", "number"))
    assert read_tree(tmp_path / "tree.csv", ("name", "number")) == tree


def test_the_floor_was_measured_with_every_method_and_seed() -> None:
    assert {(row["method"], row["floor"], row["seed"]) for row in read_list(RESULTS)} == {
        (method, floor, seed) for method in METHODS for floor in FLOORS for seed in SEEDS
    }


def test_every_method_was_looked_at_for_secure_aggregation() -> None:
    assert [name for name in methods.names() if "not been looked at" in verdict(name)[1]] == []


def test_nothing_honest_was_refused() -> None:
    found = read_tree(HONEST, HONEST_KEY)
    assert found
    assert {name: row["refused"] for name, row in found.items() if row["refused"]} == {}


def test_no_honest_site_is_refused_in_a_simulation() -> None:
    """At least 2,000 federations; and among real sites not more than one federation in a hundred."""
    rows = read_list(rates.FILE)
    assert len(rows) == len(list(rates.configurations()))
    assert sum(row["federations"] for row in rows) >= 2000
    assert sum(row[rates.DEFAULT]["federations"] for row in rows) == 0
    assert sum(row[rates.ALWAYS]["federations"] for row in rows) <= 0.01 * sum(row["federations"] for row in rows)


def test_a_declared_size_changes_nothing_among_real_sites() -> None:
    """An attacker gets no further with 12,000 samples than with those that it has."""
    found = read_tree(sizes.FILE, sizes.KEY)
    assert set(found) == {sizes.BEFORE, *sizes.GATES}
    for rows in found["always"].values():
        assert len({row["digest"] for declared, row in rows.items() if declared}) == 1
        assert all(row["refused"] for declared, row in rows.items() if declared)


def test_the_rates_bench_counts_what_is_refused() -> None:
    """With a limit that honest sites do not keep, each is counted."""
    strict = {"heuristics": "always", "norm_factor": 0.01}
    place = (rates.USUAL, "linear", "iid", "clean")
    data = rates.study(*place, 1, {}).load_data()
    counted = rates.Counted()
    with pytest.raises(QuorumError, match="0 of 5 replies accepted"):
        conduct(rates.study(*place, 1, strict), data, rates.attending(rates.THERE, 1, 2, counted))
    assert len(counted.refused) == 5 and all(rates.REASONS["length"] in why for why in counted.refused)


def test_every_accuracy_beside_an_attacker_has_one_without() -> None:
    for rows in read_tree(ACCURACY, ACCURACY_KEY).values():
        assert all("none" in attacks for attacks in rows.values())


def test_no_honest_site_turns_round_as_an_attacker_does() -> None:
    """But, maybe, of two classes, where nobody is judged."""
    found = read_tree(turned.FILE, turned.KEY)
    refused = {key for key, row in found.items() if row["refused"]}
    assert len(found) > 30
    assert all(key.startswith("2 classes, linear") for key in refused)
    assert not turning_is_attack(2, multilabel=False) and turning_is_attack(4, multilabel=True)


def test_protection_changes_no_preset() -> None:
    found = read_tree(presets.FILE, presets.KEY)
    assert found
    assert {name for name, row in found.items() if not row["equal"] or row["refused on"]} == set()


def test_fuzzed_messages_found_no_fault() -> None:
    each = read_tree(fuzz.FILE, fuzz.KEY)
    found = fuzz.summed(each)
    assert found["faults"] == [] and found["executed"] == 0
    assert found["messages"] >= 100_000 and set(each) == set(methods.names())


@pytest.mark.slow
def test_leakage_does_not_grow() -> None:
    """One seed again: no figure is more than a tenth above the page's, and noise takes away what it took."""
    from benchmarks.leakage.__main__ import FILE, KEY
    from benchmarks.leakage.measure import measured

    kept = read_tree(FILE, KEY)
    found = measured(1)
    assert found.keys() == kept.keys()
    for key, value in found.items():
        assert value <= kept[key]["value"] + 0.1, key
    assert found["model, clipped, noise 1, member"] < 0.6
