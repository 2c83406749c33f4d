"""The terminal says what the report says."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedsift.report import print_comparison, print_summary
from tests.report.made_runs import fednoro_rows, make_run


def console() -> Console:
    return Console(record=True, width=160, file=io.StringIO())


def words(out: Console) -> str:
    return " ".join(out.export_text().split())


def test_summary_of_a_run(tmp_path: Path) -> None:
    out = console()
    run = make_run(tmp_path, found=("a", "b"), truth=("b", "d"), notes=("2 files left out",))
    print_summary(run, run / "report.html", out)
    text = words(out)
    assert "2 of 4 sites look noisy: a, b; against the truth: 1 missed (d), 1 false alarm (a)." in text
    assert "│ a │ false alarm │" in text
    assert "│ d │ missed │" in text
    assert "BACC: 89.4% at the end" in text
    assert "0 replies refused" in text
    assert "note: 2 files left out" in text
    assert text.endswith("report.html")


def test_names_are_no_markup(tmp_path: Path) -> None:
    out = console()
    print_summary(
        make_run(tmp_path, names=("[bold]x[/]", "[/red]"), found=("[/red]",), truth=None), None, out
    )
    text = words(out)
    assert "looks noisy: [/red]." in text
    assert "[bold]x[/]" in text


def test_long_lists_of_sites_are_cut_after_the_noisy_ones(tmp_path: Path) -> None:
    out = console()
    names = [f"s{i:02d}" for i in range(40)]
    print_summary(make_run(tmp_path, names=names, found=names[-3:], truth=names[-3:]), None, out)
    text = words(out)
    assert "│ s39 │ found │" in text
    assert "and 15 more sites in sites.csv" in text
    assert "│ s30 │" not in text


def test_comparison_ends_with_the_subject(tmp_path: Path) -> None:
    out = console()
    plain = make_run(tmp_path, method="fedavg", found=None, folder_name="plain")
    sifted = make_run(tmp_path, folder_name="sifted")
    print_comparison([plain, sifted], sifted / "report.html", out)
    text = words(out)
    assert text.startswith("1 of 4 sites looks noisy: b; this matches the truth exactly.")
    assert "│ Accuracy, at the end │ 90.0% │ 91.4% │" in text
    assert "│ noisy sites found │ not sought │ b │" in text


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    out = console()
    print_summary(make_run(tmp_path, rows=fednoro_rows(3, ["b"])[:2], finished=False, found=None), None, out)
    assert "Not finished, 2 of 7 rounds done" in words(out)
