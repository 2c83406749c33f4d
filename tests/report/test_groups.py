"""Runs grouped over seeds, lines that can be told apart, tables and headlines that lose nothing."""

from __future__ import annotations

import io
import itertools
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsift.core.numbers import isolated, listed
from fedsift.drawing import page_style
from fedsift.drawing.svg import MARKERS, SERIES
from fedsift.formulas.intervals import t_interval
from fedsift.report.groups import groups_of, spread_of
from fedsift.report.terminal import print_comparison
from fedsift.report.words import comparison_line, headline
from fedsift.runs.reading import read_run
from tests.report.made_runs import make_run, round_row, study_table
from tests.report.test_report import read


def seeded(parent: Path, method: str, seed: int, score: float, **study: Any) -> Path:
    rows = [{**round_row(n, "train", 3), "accuracy": score - 0.1 / n, "bacc": score} for n in range(1, 7)]
    return make_run(
        parent, method=method, found=None, rows=rows, folder_name=f"{method}-{seed}",
        study=study_table(method, seed=seed, **study),
    )  # fmt: skip


@pytest.fixture
def six(tmp_path: Path) -> list[Path]:
    scores = {"fedavg": (0.6, 0.7, 0.8), "fedprox": (0.65, 0.75, 0.82)}
    return [seeded(tmp_path, m, s, v) for m, values in scores.items() for s, v in enumerate(values, 1)]


def test_mean_sd_and_interval_over_seeds(six: list[Path]) -> None:
    runs = [read_run(path) for path in six]
    first, second = groups_of(runs)
    assert (first.label, second.label) == ("FedAvg", "FedProx")
    assert first.seeds == (1, 2, 3)
    score = spread_of([0.6, 0.7, 0.8])
    assert score is not None and score.sd == pytest.approx(0.1)
    # Student's t with 2 degrees of freedom at 97.5 %: 4.30265; 0.1 / sqrt(3) = 0.0577350
    assert (score.low, score.high) == pytest.approx((0.7 - 0.248414, 0.7 + 0.248414), abs=1e-6)
    page = read(six[0], *six[1:])
    assert "Mean ± standard deviation over 3 seeds" in page.text
    assert "70.0 ± 10.0% (45.2 to 94.8)" in page.text
    curve = next(data for data in page.data if data["kind"] == "curve" and data["share"])
    assert [name for name, _ in curve["series"]] == ["FedAvg", "FedProx"]
    means = [value for _, value in curve["series"][0][1]]
    assert means == pytest.approx([0.7 - 0.1 / n for n in range(1, 7)], abs=1e-5)
    assert [row[0] for row in curve["bands"][0]] == [1, 2, 3, 4, 5, 6]
    assert "not on the same federation" not in page.text


def test_settings_tell_groups_of_one_method_apart(tmp_path: Path) -> None:
    paths = [seeded(tmp_path, "fedavg", seed, 0.5, train={"lr": lr}) for lr in (0.1, 0.2) for seed in (1, 2)]
    labels = [group.label for group in groups_of([read_run(path) for path in paths])]
    assert labels == ["FedAvg (train.lr = 0.1)", "FedAvg (train.lr = 0.2)"]


def test_the_same_seed_twice_is_no_sample(tmp_path: Path) -> None:
    twice = [read_run(seeded(tmp_path, "fedavg", 1, score)) for score in (0.5, 0.6)]
    assert [len(group.runs) for group in groups_of(twice)] == [1, 1]


def test_unequal_seeds_are_said(six: list[Path]) -> None:
    page = read(six[0], *six[1:5])
    assert "Not every method ran with every seed (FedAvg: 1, 2, 3; FedProx: 1, 2)" in page.text


def test_many_methods_become_rows_and_the_sentence_names_the_best(tmp_path: Path) -> None:
    paths = [seeded(tmp_path, "fedavg", 1, 0.5 + n / 50, train={"lr": 0.01 * (n + 1)}) for n in range(12)]
    for path, n in zip(paths, range(12)):
        path.rename(path.with_name(f"run-{n:02d}"))
    paths = sorted(tmp_path.iterdir())
    page = read(paths[0], *paths[1:])
    for n in range(12):
        assert f"run-{n:02d}" in page.text
    line = comparison_line([read_run(path) for path in paths])
    assert "the highest 4 of 12: FedAvg (run-11) 72.0%" in line


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_column_is_cut_in_a_terminal(tmp_path: Path, width: int) -> None:
    paths = [seeded(tmp_path, "fedavg", n + 1, 0.5, train={"lr": 0.01 * (n + 1)}) for n in range(9)]
    out = Console(file=io.StringIO(), width=width)
    print_comparison(paths, None, out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for path in paths:
        assert f"FedAvg ({path.name})" in text
    assert "…" not in text
    assert text.count("Accuracy, at the end") >= 2
    assert all(len(line) <= width for line in text.splitlines() if "│" in line)


def test_twelve_lines_share_no_more_than_one_trait() -> None:
    style = page_style()
    traits = []
    for number in range(SERIES):
        [(colour, dash)] = re.findall(
            rf"^\.s{number}{{--line:var\((--s\d)\);stroke-dasharray:([^}}]+)}}", style, re.MULTILINE
        )
        traits.append((colour, dash, MARKERS[number % len(MARKERS)]))
    assert SERIES == 12
    for one, other in itertools.combinations(traits, 2):
        assert sum(a == b for a, b in zip(one, other)) <= 1, (one, other)
    light, dark = (re.findall(rf"--s{n}:(#\w+)", style) for n in (0, 1))
    assert len(light) == len(dark) == 2, "each colour for light and for dark"


def test_names_with_commas_and_from_right_to_left_are_unambiguous(tmp_path: Path) -> None:
    assert listed(["a", "b, c", "d and e", " f", "g\u202eh"]) == "a, “b, c”, “d and e”, “ f”, g\\u202eh"
    assert isolated("שלום") == "\u2068שלום\u2069" and isolated("north") == "north"
    names = ("Berlin, Mitte", "שלום", "مستشفى")
    run = make_run(tmp_path, names=names, found=names, truth=names[:1])
    assert headline(read_run(run)).startswith("3 of 3 sites look noisy: “Berlin, Mitte”, שלום, مستشفى;")
    page = read(run)
    assert "noisy: “Berlin, Mitte”, \u2068שלום\u2069, \u2068مستشفى\u2069; against" in page.text


def test_interval_of_a_mean() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    low, high = t_interval(values)
    assert (low + high) / 2 == pytest.approx(statistics.fmean(values))
    assert (high - low) / 2 == pytest.approx(3.182446 * statistics.stdev(values) / 2, rel=1e-6)
    with pytest.raises(ValueError, match="two values"):
        t_interval([1.0])
