"""What the files of a table say, on numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsift.benchmark.cells import cells_of
from fedsift.benchmark.claims import ClaimOutcome, Difference
from fedsift.benchmark.outputs import csv_of, drawn_rows, page
from fedsift.benchmark.rows import read_rows, rows_of
from fedsift.benchmark.running import TableOutcome
from fedsift.benchmark.store import RunRecord
from fedsift.benchmark.summary import Results, TableFigure, results_of
from fedsift.benchmark.table import PaperClaim
from fedsift.benchmark.text import difference_words, escaped, latex, markdown, ours
from fedsift.core.errors import ConfigError
from fedsift.formulas.intervals import mean_and_sd, paired
from tests.benchmark.small import CLAIM, small_table

VALUES = {  # row, column, seed
    ("FedAvg", "clean"): (0.80, 0.82),
    ("FedLA", "clean"): (0.83, 0.87),
    ("FedAvg", "noisy"): (0.50, 0.54),
    ("FedLA", "noisy"): (0.49, 0.51),
}


def made_up(values: dict[tuple[str, str], tuple[float, ...]] = VALUES, **changes: Any) -> Results:
    table = small_table(**changes)
    cells = list(cells_of(table))
    placed = []
    for cell in cells:
        kept = values.get((cell.row, cell.column), ())
        if len(kept) >= cell.seed:
            outcome = {
                "scores": {"accuracy": {"best": kept[cell.seed - 1]}},
                "curve": {"round": [1, 2], "visits": [3, 6], "accuracy": [0.1, kept[cell.seed - 1]]},
                "participations": 6, "bytes_down": 500, "bytes_up": 500, "rounds": 2,
            }  # fmt: skip
            record = RunRecord(cell.key, cell.study_key, cell.version, "2.0", outcome, seconds=4.0)
            placed.append((cell.row, cell.column, cell.seed, record))
    return results_of(table, placed, len(cells))


def test_markdown_has_means_deviations_the_paper_s_figures_and_the_best_in_bold() -> None:
    text = markdown(made_up())
    assert "| FedAvg | 81.00 ± 1.41 (80.00) | **52.00 ± 2.83** (70.00) |" in text
    assert "| FedLA | **85.00 ± 2.83** | 50.00 ± 1.41 |" in text
    assert "| FedAvg | -4.00 [-16.71, +8.71], p 0.156 | +2.00 [-10.71, +14.71], p 0.295 |" in text
    assert "| FedAvg | 2 | 6 | 1.0 kB |" in text


@pytest.mark.parametrize(
    ("values", "columns", "verdict"),
    [
        (VALUES, [], "does not hold"),
        (VALUES, ["clean"], "not decided"),
        ({**VALUES, ("FedLA", "clean"): (0.84, 0.87)}, ["clean"], "holds in the mean"),
        ({**VALUES, ("FedLA", "clean"): (0.90, 0.921)}, ["clean"], "holds"),
        ({**VALUES, ("FedLA", "clean"): ()}, ["clean"], "open"),
    ],
)
def test_a_claim_is_judged_by_the_interval_of_its_differences(
    values: dict[Any, Any], columns: list[str], verdict: str
) -> None:
    """3 and 5 points: 4 ± 12.7 reaches 8.7 below 0, farther than 4; 4 and 5 points: 4.5 ± 6.4 reaches 1.9 below."""
    claim = {**CLAIM, **({"columns": columns} if columns else {})}
    assert made_up(values, claims=[claim]).verdicts[0].verdict == verdict


def test_rows_that_are_said_to_be_alike_must_lie_within_the_bound() -> None:
    """Differences 3 and 5 points: 4 ± 12.7; at a bound of 10.35 the end is as far out as the mean is within."""
    alike = {"text": "flat", "alike": ["FedLA", "FedAvg"], "columns": ["clean"]}
    for within, verdict in (
        (3.0, "does not hold"),
        (5.0, "not decided"),
        (10.3, "not decided"),
        (10.4, "holds in the mean"),
        (17.0, "holds"),
    ):
        assert made_up(claims=[{**alike, "within": within}]).verdicts[0].verdict == verdict


@pytest.mark.parametrize(
    ("bounds", "columns", "verdict"),
    [
        ({"within": 1.0}, ["clean"], "holds"),
        ({"within": 0.9}, ["clean"], "does not hold"),
        ({"within": 18.0}, [], "holds"),
        ({"within": 17.9}, [], "does not hold"),
        ({"within": 18.0, "on_average": 9.5}, [], "holds"),
        ({"within": 18.0, "on_average": 9.4}, [], "does not hold"),
    ],
)
def test_figures_that_are_said_to_come_out_as_printed(
    bounds: dict[str, float], columns: list[str], verdict: str
) -> None:
    """FedAvg has 81 and 52 where the paper prints 80 and 70: 1 point above and 18 below, 9.5 in the mean."""
    claim = {"text": "as printed", "printed": ["FedAvg"], **bounds} | ({"columns": columns} if columns else {})
    results = made_up(claims=[claim])
    assert results.verdicts[0].verdict == verdict
    assert "FedAvg to the paper in clean +1.00" in markdown(results)


def test_a_printed_figure_without_its_run_leaves_the_claim_open() -> None:
    claim = {"text": "as printed", "printed": ["FedAvg"], "within": 20.0, "on_average": 20.0}
    results = made_up({**VALUES, ("FedAvg", "noisy"): ()}, claims=[claim])
    assert [found.verdict for found in results.verdicts[0].differences] == ["holds", "open", "open"]
    assert results.verdicts[0].verdict == "open"


def test_a_row_that_is_said_to_be_the_last_must_be_below_each_of_the_others() -> None:
    last = {"text": "matters most", "last": "FedAvg", "columns": ["clean"]}
    assert made_up(claims=[last]).verdicts[0].verdict == "not decided"
    assert made_up(claims=[{**last, "last": "FedLA", "over": ["FedAvg"]}]).verdicts[0].verdict == "does not hold"


def test_a_claim_is_open_while_a_seed_is_missing() -> None:
    """One of two seeds: the difference is told, and judged when the other is there."""
    claim = {**CLAIM, "columns": ["clean"]}
    found = made_up({**VALUES, ("FedLA", "clean"): (0.9,)}, claims=[claim]).verdicts[0]
    assert found.verdict == "open"
    assert found.differences[0].found is not None and found.differences[0].found.n == 1


def test_a_run_that_never_reached_its_target_counts_with_all_its_visits() -> None:
    """FedLA reaches 0.82 after 6 visits with both seeds; FedAvg makes 6 visits and reaches it with the second alone."""
    claim = {**CLAIM, "columns": ["clean"], "figure": "visits-to.0.82"}
    changes = {"figures": ["accuracy.best", "visits-to.0.82"], "claims": [claim]}
    found = made_up(**changes).verdicts[0].differences[0].found
    assert found is not None and (found.n, found.mean) == (2, 0.0)
    nobody = made_up({**VALUES, ("FedLA", "clean"): (0.1, 0.1), ("FedAvg", "clean"): (0.1, 0.1)}, **changes)
    assert nobody.verdicts[0].differences[0].found is None, "neither reaches it: nothing is known"


def test_nothing_is_the_best_of_what_is_all_the_same() -> None:
    same = made_up(dict.fromkeys(VALUES, (0.5, 0.5)))
    assert not any(entry.best for entry in same.entries)


def test_what_explains_a_claim_stands_below_it_on_the_page() -> None:
    why = {**CLAIM, "text": "because", "explains": CLAIM["text"]}
    text = page(made_up(claims=[CLAIM, why]))
    inside = text[text.index(CLAIM["text"]) : text.index("Why: because")]
    assert inside.count("<ul") - inside.count("</ul>") == 1


def test_standings_over_three_columns() -> None:
    """Ranks of FedAvg: 2, 1 and, with a tie, 1.5; its worst column has 50."""
    values = {**VALUES, ("FedAvg", "third"): (0.5, 0.5), ("FedLA", "third"): (0.4, 0.6)}
    rows = [{"label": name, "method": {"name": name.lower(), "rounds": 2}} for name in ("FedAvg", "FedLA")]
    columns = [{"label": "clean"}, {"label": "noisy"}, {"label": "third"}]
    found = {s.row: s for s in made_up(values, rows=rows, columns=columns).standings}
    assert (found["FedAvg"].mean_rank, found["FedAvg"].worst) == (1.5, pytest.approx(50.0))
    assert [s.first for s in found.values()] == [2, 2], "a shared first place counts for both"
    assert made_up().standings == ()


def test_one_seed_and_no_paper_are_said() -> None:
    rows = [{"label": name, "method": {"name": name.lower(), "rounds": 2}} for name in ("FedAvg", "FedLA")]
    text = markdown(made_up(rows=rows, seeds=[1]))
    assert "\nOne seed.\n" in text
    assert "| FedAvg | 80.00 | **50.00** |" in text
    assert "FedLA to FedAvg in clean +3.00, one seed" in text


def test_one_seed_decides_nothing_but_against_a_claim() -> None:
    found = made_up(seeds=[1]).verdicts[0]
    assert [d.verdict for d in found.differences] == ["not decided", "does not hold"]
    clean = made_up(seeds=[1], claims=[{**CLAIM, "columns": ["clean"]}])
    assert "FedLA is above FedAvg: **not decided**" in markdown(clean)
    assert 'class="verdict not-decided">not decided<' in page(clean)


def test_a_row_that_was_told_the_truth_is_named() -> None:
    results = made_up()
    told = replace(results.records[0], outcome={**results.records[0].outcome, "oracle": "noise rate 0.4 given"})
    again = results_of(results.table, [("FedLA", "clean", 1, told)], 8)
    assert "FedLA had outside knowledge: noise rate 0.4 given." in markdown(again)


def test_replies_that_were_set_aside_are_said() -> None:
    results = made_up()
    assert "set aside" not in markdown(results)
    refused = replace(results.records[0], outcome={**results.records[0].outcome, "refused": 1})
    again = results_of(results.table, [("FedLA", "clean", 1, refused)], 8)
    assert "1 reply of FedLA in clean set aside, though no site of a simulation is hostile." in markdown(again)


def test_what_is_missing_is_said() -> None:
    text = markdown(made_up({**VALUES, ("FedLA", "noisy"): ()}))
    assert "6 of 8 runs are there." in text
    assert "| FedLA | **85.00 ± 2.83** | – |" in text


def test_who_computed_a_table_is_said_and_runs_of_another_version_are_named() -> None:
    results = made_up()
    assert f"\nComputed by version {results.versions[0]}.\n" in markdown(results)
    assert "Computed by" not in markdown(made_up({}))
    older = [
        (row, column, seed, replace(record, version="0.1") if (row, seed) == ("FedLA", 2) else record)
        for record in results.records
        for row, column, seed in results.places[record.key]
    ]
    mixed = results_of(results.table, older, results.cells_wanted)
    line = f"Computed by version {results.versions[0]}; FedLA (2 runs) by 0.1."
    assert line in markdown(mixed) and line in page(mixed)


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ((40, 40), "mean of the last 10 rounds"),
        ((2, 2), "mean of the last 2 rounds"),
        ((2, 40), "mean of the last 2 to 10 rounds"),
        ((1, 1), "last round"),
    ],
)
def test_how_many_rounds_were_averaged_is_what_the_runs_had(rounds: tuple[int, int], words: str) -> None:
    """Rounds without a score do not count; a run of fewer than ten rounds is averaged over all of them."""
    first = made_up(figures=["accuracy.last"])
    placed = []
    for record in first.records:
        for row, column, seed in first.places[record.key]:
            curve = {"accuracy": [None] + [0.5] * rounds[row == "FedLA"]}
            outcome = {**record.outcome, "curve": {**curve, "visits": list(range(len(curve["accuracy"])))}}
            placed.append((row, column, seed, replace(record, outcome=outcome)))
    results = results_of(first.table, placed, 8)
    for text in (markdown(results), page(results), latex(results)):
        assert f"accuracy, {words}" in text


def test_latex() -> None:
    text = latex(made_up())
    assert r"FedLA & \textbf{85.00 $\pm$ 2.83} & 50.00 $\pm$ 1.41 \\" in text
    assert escaped("50 % of a_b") == r"50 \% of a\_b"


def test_the_csv_has_a_row_a_run_in_order() -> None:
    rows = rows_of(csv_of(made_up()), "here")
    assert [(row["row"], row["column"], row["seed"]) for row in rows] == [
        (row, column, seed) for row in ("FedAvg", "FedLA") for column in ("clean", "noisy") for seed in (1, 2)
    ]
    assert (rows[0]["accuracy.best"], rows[0]["accuracy.rounds"], rows[0]["seconds"]) == (0.8, 2, 4.0)
    assert "curve.accuracy" not in rows[0], "no figure of this table is read off a curve"


def test_points_of_a_curve_are_kept_where_a_figure_is_read_off_it() -> None:
    whole = made_up(figures=["visits-to.0.4"])
    rows = rows_of(csv_of(whole), "here")
    assert rows[0]["curve.accuracy"] == "3:0.1 6:0.8"


def test_the_page_escapes_labels_and_needs_no_network() -> None:
    results = made_up()
    hostile = replace(results, table=replace(results.table, what="<script>alert(1)</script>"))
    text = page(hostile)
    assert "<script>" not in text
    assert "http" not in text.replace("http://www.w3.org", "")
    for words in ("Curves", "Cost of a run", "4.0 s", "holds", "Compared with FedLA"):
        assert words in text


def test_no_file_that_is_compared_tells_a_time(made: tuple[TableOutcome, Path]) -> None:
    _, out = made
    assert "second" not in (out / "digits" / "table.md").read_text()
    assert "second" not in (out / "digits" / "table.tex").read_text()
    assert all(row["seconds"] > 0 for row in read_rows(out / "digits" / "table.csv"))


def test_paired_differences_by_hand() -> None:
    """d = 3, 5: mean 4, sd sqrt(2), error 1; t_{0.975, 1} = 12.706, and P(|T_1| > 4) = 1 - 2 atan(4) / pi."""
    found = paired([83, 87], [80, 82])
    assert (found.n, found.mean, found.above) == (2, 4.0, 2)
    assert (found.low, found.high) == pytest.approx((4 - 12.7062, 4 + 12.7062), abs=1e-4)
    assert found.p == pytest.approx(0.155958, abs=1e-6)
    assert paired([1.0], [0.5]).p is None
    assert paired([1.0, 2.0], [0.0, 1.0]).p is None, "no deviation, no test"
    assert mean_and_sd([1.0]) == (1.0, None)
    with pytest.raises(ValueError, match="no pairs"):
        paired([1.0], [1.0, 2.0])


def test_what_explains_a_claim_says_so_and_must_name_one() -> None:
    why = {**CLAIM, "text": "because", "explains": CLAIM["text"]}
    assert "- Why: because: **does not hold**" in markdown(made_up(claims=[CLAIM, why]))
    assert "Why: because: " in page(made_up(claims=[CLAIM, why]))
    with pytest.raises(ConfigError, match="no claim says 'nothing'"):
        made_up(claims=[CLAIM, {**why, "explains": "nothing"}])


def test_of_many_differences_those_against_the_claim_are_shown() -> None:
    """Differences 0 to 13 points upwards: four are shown, the smallest first, and ten are counted."""
    claim = PaperClaim("it is better", order=("a", "b"))
    found = tuple(
        Difference("a", "b", f"column {k}", paired([float(k), k + 1.0], [0.0, 1.0]), "holds") for k in range(14)
    )
    words = difference_words(ClaimOutcome(claim, "accuracy.last", "holds", found[::-1]))
    assert [text.split(" +")[0] for text in words[:4]] == [f"a to b in column {k}" for k in range(4)]
    assert words[4:] == ["10 more differences speak less against it"]
    alike = replace(claim, order=(), alike=("a", "b"), within=20.0)
    words = difference_words(ClaimOutcome(alike, "accuracy.last", "holds", found))
    assert words[0].startswith("a to b in column 13 ")


def test_more_rows_than_kinds_of_lines_are_not_all_drawn() -> None:
    rows = [{"label": f"row {k}", "method": {"name": "fedavg", "rounds": 2}} for k in range(15)]
    values = {(f"row {k}", "clean"): (0.50 + 0.01 * k,) for k in range(15)}
    made = made_up(values, rows=rows, claims=[], reference="row 0", seeds=[1])
    assert drawn_rows(made) == ["row 0", *(f"row {k}" for k in range(4, 15))]
    assert "in % of the 12 best rows, mean of the seeds" in page(made)


def test_only_a_target_is_never_reached() -> None:
    """A run without a noisy site has no recall of them; that is nothing to show, and no failure."""
    without = TableFigure("FedAvg", "clean", "detection.recall", {}, 2, None, None, None, None)
    assert ours(without) == "–"
    assert ours(replace(without, figure="visits-to.0.9", never={1: 40.0, 2: 40.0})) == "never"
