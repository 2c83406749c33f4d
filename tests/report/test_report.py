"""The report holds what the run says, needs no network, and copes with whatever a run folder holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.errors import RunError
from fedsift.report.page import write_report
from fedsift.report.sections import noisy_sites
from fedsift.report.words import headline
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import read_run
from tests.report.made_runs import fednoro_rows, make_run, round_row, study_table

VOID = {"meta", "br", "hr", "img", "link", "input"}
LOADS = {"src", "srcset", "href", "xlink:href", "data", "action", "poster"}
SCRIPT = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Parses strictly: every element is closed in its turn, ids are unique; keeps the text and the loads."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.styles: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.data: list[dict] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice: {names}"
        self.tags.append(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if values.get("id") else []
        self.loads += [values[name] or "" for name in LOADS & set(values)]
        assert not any(name.startswith("on") for name in names)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "style":
            self.styles.append(data)
        elif inside == "script":
            if data.startswith("{"):
                self.data.append(json.loads(data))
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(run: Path, *compare: Path, out: Path | None = None) -> Page:
    return Page(write_report(run, out, compare).read_text("utf-8"))


def test_says_what_was_found_and_the_figures_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, names=("a", "b", "c", "d"), found=("b",), truth=("b",), notes=("2 files left out",))
    page = read(run)
    assert "1 of 4 sites looks noisy: b; this matches the truth exactly." in page.text
    # accuracy of round n is 1 - 0.6 / n, of the last round 1 - 0.6 / 7; BACC is 0.02 below
    assert "Accuracy 91.4% best 91.4% in round 7" in page.text
    assert "BACC 89.4%" in page.text
    assert "Detection precision 100% recall 100% of 1 noisy site" in page.text
    # seven rounds of 900 bytes up and 1000 down
    assert "6.3 kB received by them 7.0 kB" in page.text
    assert "2 files left out" in page.text
    assert "1–3" in page.text
    assert "robust training" in page.text
    assert 'name = "fednoro"' in page.text


def test_misses_and_false_alarms_are_named(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, found=("a", "b"), truth=("b", "d")))
    assert "against the truth: 1 missed (d), 1 false alarm (a)." in page.text
    assert "Missed d False alarms a Precision and recall 50.0% and 50.0%" in page.text
    assert "a false alarm" in page.text
    assert "d missed" in page.text


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page = read(run, make_run(tmp_path, method="fedavg", found=None))
    assert page.loads
    assert all(where.startswith("#") for where in page.loads)
    assert not re.search(r"@import|url\((?!#)", " ".join(page.styles))
    text = (run / "report.html").read_text("utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)


def test_the_file_is_small(tmp_path: Path) -> None:
    names = [f"site-{i:02d}" for i in range(20)]
    run = make_run(tmp_path, names=names, classes=[str(k) for k in range(10)], found=names[:5], truth=names[:5])
    assert write_report(run).stat().st_size < 100_000


def test_names_from_the_data_are_only_text(tmp_path: Path) -> None:
    names = (SCRIPT, 'b" onload="x', "c&amp;d", "</script><b>")
    rows = fednoro_rows(2, [SCRIPT])
    rows[0].update(refused={SCRIPT: "<i>bad</i>"}, warnings=["<u>careful</u>"])
    run = make_run(
        tmp_path,
        names=names,
        classes=("<b>cat</b>", "</svg>"),
        rows=rows,
        found=(SCRIPT,),
        truth=names[1:2],
        notes=("<em>note</em>",),
    )
    page = read(run)
    assert SCRIPT in page.text
    assert "<i>bad</i>" in page.text
    assert "c&amp;d" in page.text
    assert page.tags.count("script") == len(page.data) + 1
    assert not {"i", "u", "em"} & set(page.tags)
    maps = [data for data in page.data if data["kind"] == "matrix"]
    assert all(set(data["rows"]) == set(names) for data in maps)
    assert maps[0]["columns"] == ["<b>cat</b>", "</svg>"]


def test_the_loss_map_holds_the_recorded_indicator(tmp_path: Path) -> None:
    run = make_run(tmp_path, found=("b",))
    [indicator, counts] = [data for data in read(run).data if data["kind"] == "matrix"]
    assert indicator["rows"][0] == "b"  # largest mean first
    assert indicator["columns"] == ["cat", "dog", "owl"]
    assert counts["rows"] == indicator["rows"]
    held = [[value is not None for value in row] for row in indicator["values"]]
    assert held == [[count > 0 for count in row] for row in counts["values"]]
    assert any(not all(row) for row in held)


def test_curves_hold_every_evaluated_round(tmp_path: Path) -> None:
    [accuracy, bacc, loss] = [data for data in read(make_run(tmp_path)).data if data["kind"] == "curve"]
    assert accuracy["stages"] == [["warm up", 1, 3], ["find noisy sites", 4, 4], ["robust training", 5, 7]]
    [[name, points]] = accuracy["series"]
    assert name == "FedNoRo"
    assert [number for number, _ in points] == [1, 2, 3, 5, 6, 7]  # round 4 measures, it does not train
    assert [value for _, value in points] == pytest.approx([1 - 0.6 / n for n in (1, 2, 3, 5, 6, 7)], abs=1e-5)
    assert bacc["series"][0][1][0][1] == pytest.approx(0.38)
    assert not loss["share"]


def test_refusals_are_listed_with_round_and_reason(tmp_path: Path) -> None:
    rows = fednoro_rows(3, ["b"])
    rows[1]["refused"] = {"c": "samples = -4 is outside 1 to 10"}
    page = read(make_run(tmp_path, rows=rows))
    assert "2 warm up c samples = -4 is outside 1 to 10" in page.text
    assert "Every reply passed the gate" in read(make_run(tmp_path)).text


def test_disclosure_lists_what_the_stages_declare(tmp_path: Path) -> None:
    page = read(make_run(tmp_path))
    disclosed = page.text[page.text.index("What left the sites A site answers") :]
    assert "the site's model after local training" in disclosed
    assert "warm up, robust training" in disclosed
    assert "which of these classes the site has samples of" in disclosed
    assert "SiteFacts" in disclosed
    assert "Evaluated" not in disclosed  # never asked in this run


def test_disclosure_names_what_was_declared_but_never_sent(tmp_path: Path) -> None:
    """FedCorr's corrections are listed though no site of this run was asked for any."""
    rows = [round_row(n, "pre-processing", 3) for n in range(1, 4)]
    study = {**study_table("fedavg", 4), "method": {"name": "fedcorr"}}
    text = read(make_run(tmp_path, rows=rows, study=study, found=None)).text
    assert "how many labels are another one now" in text
    assert "pre-processing, relabel the rest · never sent" in text


def test_disclosure_of_a_method_that_is_not_installed(tmp_path: Path) -> None:
    """What was sent, or everything known where even that was not recorded."""
    sent, unrecorded = fednoro_rows(3, ["b"]), fednoro_rows(3, ["b"])
    del unrecorded[2]["replies"]
    for number, (rows, words) in enumerate(
        ((sent, "listed is what this run has sent"), (unrecorded, "every kind known here is listed"))
    ):
        folder = make_run(tmp_path, rows=rows, folder_name=f"run-{number}")
        file = folder / "study.toml"
        RunFolder(folder).write_text(file.name, file.read_text().replace('"fednoro"', '"elsewhere"'))
        text = read(folder).text
        assert words in text
        assert ("samples of each class that the model gets right" in text) is (rows is unrecorded)


def test_runs_beside_each_other(tmp_path: Path) -> None:
    sifted = make_run(tmp_path, folder_name="sifted")
    plain = make_run(tmp_path, method="fedavg", found=None, folder_name="plain")
    page = read(sifted, plain)
    accuracy = next(data for data in page.data if data["kind"] == "curve")
    assert [name for name, _ in accuracy["series"]] == ["FedNoRo", "FedAvg"]
    assert "Accuracy, at the end 91.4% 90.0%" in page.text  # 1 - 0.6 / 7 and 1 - 0.6 / 6
    assert "noisy sites found b not sought" in page.text
    assert "not on the same federation" not in page.text


def test_runs_on_other_federations_are_not_passed_off_as_comparable(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    other = make_run(tmp_path, method="fedavg", found=None, study=study_table("fedavg", seed=2))
    page = read(run, other)
    assert "not on the same federation" in page.text


def test_no_round_yet(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, rows=[], finished=False))
    assert "No round of FedNoRo is finished yet." in page.text
    assert "0 of 7 rounds done" in page.text
    assert not page.data
    assert "The study" in page.text


def test_an_unfinished_run_shows_what_its_checkpoint_holds(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, rows=fednoro_rows(3, ["b"])[:5], finished=False, found=("b",)))
    assert "Not finished, 5 of 7 rounds done: 1 of 4 sites looks noisy: b." in page.text
    assert "sites.csv is written when the run ends" in page.text
    indicator = next(data for data in page.data if data["kind"] == "matrix")
    assert set(indicator["rows"]) == {"a", "b", "c", "d"}
    assert "compared when the run ends" in page.text


def test_a_killed_run_with_a_cut_line_and_no_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=fednoro_rows(3, ["b"])[:2], finished=False)
    (run / "checkpoint.bin").unlink()
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "sta')
    page = read(run)
    assert "Not finished, 2 of 7 rounds done: FedNoRo reaches 70.0% accuracy and 68.0% BACC" in page.text


def suppressed_rows(rounds: int = 4) -> list[dict[str, Any]]:
    """As sites with a minimum count leave them: owl is lumped everywhere, cat is known, nobody has a dog."""
    rows = []
    for number in range(1, rounds + 1):
        row = round_row(number, "train", 3)
        del row["accuracy"], row["bacc"]
        row.update(accuracy_low=0.702, accuracy_high=0.8334, bacc_low=0.41, bacc_high=0.985)
        row.update(recall=[0.75, None, None], recall_low=[0.75, None, 0.0], recall_high=[0.75, None, 1.0])
        rows.append(row)
    return rows


def test_scores_from_suppressed_counts_are_intervals_and_never_a_headline(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=suppressed_rows(), found=None, truth=None, method="fedavg")
    data = read_run(run)
    assert data.curves == []
    assert data.intervals == ["accuracy", "bacc"]
    assert data.summary["intervals"] == {"accuracy": [0.702, 0.8334], "bacc": [0.41, 0.985]}
    assert not {"accuracy", "bacc"} & set(data.summary)
    said = headline(data)
    assert "are intervals, since the sites withhold small counts" in said
    assert "%" not in said
    page = read(run)
    assert "%" not in page.text.partition("Accuracy")[0]
    assert "70.2 to 83.4%" in page.text
    assert "41.0 to 98.5%" in page.text
    recalls = next(table for table in page.data if table["kind"] == "classes")
    assert recalls["series"][0][1] == [0.75, None, None]
    assert recalls["ranges"] == [[None, None, [0.0, 1.0]]]
    assert "0.0 to 100.0%" in page.text
    [curve] = [one for one in page.data if one["kind"] == "curve" and one["share"]][:1]
    assert curve["series"][0][1] == []
    assert curve["bands"][0][0] == [1, 0.702, 0.8334]


def test_a_damaged_summary_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "summary.json").write_text('{"rounds": 7,')
    with pytest.raises(RunError, match=r"summary.json is damaged"):
        read(run)


def test_a_method_that_is_not_installed_here(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    study = (run / "study.toml").read_text().replace('name = "fednoro"', 'name = "elsewhere"')
    RunFolder(run).write_text("study.toml", study)
    (run / "plan.json").unlink()
    page = read(run)
    assert "elsewhere on made-up" in page.text


def test_one_site(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, names=("only",), classes=("cat",), found=("only",), truth=None))
    assert "1 of 1 site looks noisy: only." in page.text
    assert "Noisy in truth not known" in page.text


def test_no_truth_no_verdict(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, found=("b",), truth=None))
    assert "looks noisy: b." in page.text
    assert "Detection precision" not in page.text
    assert "false alarm" not in page.text


def test_nobody_noisy(tmp_path: Path) -> None:
    assert "No site looks noisy; and none is." in read(make_run(tmp_path, found=(), truth=())).text
    assert "No site looks noisy; against the truth: 1 missed (b)." in read(make_run(tmp_path, found=())).text


def test_a_method_that_does_not_look_for_noisy_sites(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, method="fedavg", found=None, truth=("b",)))
    assert "FedAvg reaches 90.0% accuracy and 88.0% BACC after 6 rounds at 4 sites." in page.text
    assert "FedAvg does not look for noisy sites. In truth 1 is: b." in page.text


def test_multi_label_runs_show_auc_by_class(tmp_path: Path) -> None:
    rows = [round_row(n, "train", 3, auc=0.5 + 0.1 * n, map=0.4, recall=None) for n in (1, 2)]
    rows[-1]["auc_per_class"] = [0.9, None, 0.75]
    page = read(make_run(tmp_path, method="fedavg", found=None, rows=rows))
    assert "AUC by class" in page.text
    [bars] = [data for data in page.data if data["kind"] == "classes"]
    assert bars["series"] == [["FedAvg", [0.9, None, 0.75]]]
    assert "AUC 70.0%" in page.text


def test_a_hundred_sites_and_classes(tmp_path: Path) -> None:
    names = [f"a hospital with a very long name, ward {i:03d}" for i in range(100)]
    classes = [f"diagnosis number {k}" for k in range(100)]
    run = make_run(tmp_path, names=names, classes=classes, found=names[:30], truth=names[:30])
    page = read(run)
    assert "30 of 100 sites look noisy" in page.text
    assert "and 25 more" in page.text
    text = (run / "report.html").read_text("utf-8")
    assert len(text) < 1_500_000
    # nothing is drawn outside its picture to the right
    for width, body in re.findall(r'<svg viewBox="0 0 (\d+) [^"]*"[^>]*>(.*?)</svg>', text, re.S):
        assert all(float(x) <= float(width) for x in re.findall(r'<text x="([\d.]+)"', body))


def test_columns_that_a_method_recorded_itself_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path, names=("7", "True"), found=("7",), truth=None)
    table = (run / "sites.csv").read_text().splitlines()
    lines = [table[0] + ",label_quality", table[1] + ",0.125", table[2] + ","]
    RunFolder(run).write_text("sites.csv", "\n".join(lines) + "\n")
    page = read(run)
    assert "label quality" in page.text
    assert "0.125" in page.text
    assert "1 of 2 sites looks noisy: 7" in page.text
    assert set(page.data[-2]["rows"]) == {"7", "True"}  # names stay text


def test_where_it_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert write_report(run) == run / "report.html"
    assert write_report(run, tmp_path / "out" / "x.html") == tmp_path / "out" / "x.html"
    assert write_report(run, tmp_path) == tmp_path / "report.html"
    assert not list(run.glob("*.tmp"))


def test_no_run_folder_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a run folder"):
        write_report(tmp_path)


def test_a_borderline_verdict_says_so(tmp_path: Path) -> None:
    facts = {"p_value": 0.04, "threshold": 0.05, "steadiness": 0.75, "borderline": True}
    rows = fednoro_rows(3, ("b",))
    rows[3]["findings"] |= facts
    run = read_run(make_run(tmp_path, rows=rows, truth=None))
    assert run.findings is not None
    assert run.findings.line() == {"noisy": ["b"], **facts}
    assert headline(run) == (
        "1 of 4 sites looks noisy: b (borderline: p = 0.04, threshold 0.05, the same in 75% of slightly shaken data)"
    )
    sure = {**facts, "p_value": 0.001, "steadiness": 1.0, "borderline": False}
    rows[3]["findings"] |= sure
    run = read_run(make_run(tmp_path, rows=rows, truth=None, folder_name="sure"))
    assert headline(run) == "1 of 4 sites looks noisy: b"
    assert "p = 0.001, threshold 0.05" in str(noisy_sites(run))
