"""The terminal says what the report says."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path

from rich.console import Console

from fedsift.report.page import write_report
from fedsift.report.terminal import print_comparison, print_summary
from fedsift.report.words import headline
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import read_run
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
    print_summary(make_run(tmp_path, names=("[bold]x[/]", "[/red]"), found=("[/red]",), truth=None), None, out)
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


def test_no_clean_reference_is_said_everywhere(tmp_path: Path) -> None:
    """The terminal, the report, the comparison and the summary; no site is called found, missed or a false alarm."""
    rows = fednoro_rows(3, ())
    unsaid = {"noisy": [], "level": {"a": 0.45, "d": 0.8}, "no_clean_reference": True}
    rows[3]["findings"] = unsaid
    run = make_run(tmp_path, found=None, truth=("a", "b", "c", "d"), rows=rows)
    out = console()
    print_summary(run, None, out)
    said = "No clean reference: at every site many labels look drawn at random (45% to 80% of a site's)"
    text = words(out)
    assert said in text
    assert "in truth all are noisy" in text
    assert "missed" not in text
    assert said in html.unescape(write_report(run).read_text("utf-8"))
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["findings"]["no_clean_reference"] is True
    assert summary["noisy_sites_found"] is None
    beside = console()
    print_comparison([make_run(tmp_path, folder_name="other"), run], None, beside)
    assert "no clean reference" in words(beside)
    partly = make_run(tmp_path, found=None, truth=("a", "b"), rows=rows, folder_name="partly")
    assert "but in truth 2 of 4 are clean" in headline(read_run(partly))


def test_a_run_that_was_told_the_truth_is_marked(tmp_path: Path) -> None:
    """In its own summary and report, and in every table beside runs that were not."""
    plain, told = (make_run(tmp_path, found=None, method="fedavg", folder_name=name) for name in ("one", "two"))
    summary = json.loads((told / "summary.json").read_text("utf-8"))
    RunFolder(told).write_json("summary.json", {**summary, "oracle": "noise rate 0.4 given"})
    alone, beside = console(), console()
    print_summary(told, None, alone)
    assert "given of the truth: noise rate 0.4 given; a real federation cannot know it" in words(alone)
    print_comparison([plain, told], None, beside)
    text = words(beside)
    assert text.count("(oracle)") == 2  # in the sentence and over the column
    assert "given of the truth │ nothing │ noise rate 0.4 given" in text
    page = html.unescape(write_report(told, compare=[plain]).read_text("utf-8"))
    assert "given of the truth: noise rate 0.4 given" in page
    plainly = console()
    print_summary(plain, None, plainly)
    assert "told" not in words(plainly)
