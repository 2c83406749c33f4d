"""The documentation's own promises: links lead somewhere, lines have one width, the list of pages is whole."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path

import click
import pytest

from fedsift.benchmark.cells import cells_of
from fedsift.benchmark.store import placed_in
from fedsift.benchmark.table import find_table
from tests.docs.blocks import blocks
from tests.docs.test_readme import command_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")],
    key=lambda page: page.as_posix(),
)
TABLES = ROOT / "benchmarks" / "tables"
WIDTH = 118
FIXED = re.compile(r"\s*(\||#|\$\$)|    ")
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> list[tuple[int, str]]:
    """Numbered lines outside of code blocks."""
    lines, fence = [], ""
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        mark = FENCE.match(line)
        if mark is not None and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
        elif not fence:
            lines.append((number, line))
    return lines


def anchors(page: Path) -> set[str]:
    """Where a heading can be linked to, as GitHub and the documentation's site both name it."""
    heads = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for number, line in prose(page):
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{name(page)}:{number} links to {target}, which does not exist"
            if anchor and file.suffix == ".md":
                assert anchor in anchors(file), f"{name(page)}:{number} links to {target}: no such heading"


def commands(page: Path) -> list[str]:
    """What a page says to type, in its blocks and within its sentences."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    typed = [line.partition("#")[0].strip() for line in lines if line.startswith("fedsift ")]
    return typed + [match for _, line in prose(page) for match in re.findall(r"`(fedsift [^`]+)`", line)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    for line in commands(page):
        words = line.replace("[", " ").replace("]", " ").replace("'", "").split()[1:]
        if words[:1] == ["headline"] and page.name == "CONTRIBUTING.md":
            continue  # the command that this page adds
        command, rest = command_of(words)
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert not (rest and isinstance(command, click.Group)) or rest[0].startswith("-"), line
        asked = {word.partition("=")[0].rstrip(".,") for word in rest if word.startswith("--")}
        assert asked <= known | {"--help"}, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_prose_is_wrapped_at_one_width(page: Path) -> None:
    """Tables, indented code, displayed equations and lines of a single word, such as an address, cannot be broken."""
    for number, line in prose(page):
        breakable = " " in line.strip().lstrip("-*0123456789. ") and not FIXED.match(line)
        assert len(line) <= WIDTH or not breakable, f"{name(page)}:{number} has {len(line)} characters"


def test_the_audit_s_figures_are_those_of_its_result_files() -> None:
    from benchmarks.audit.page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.audit.page`"


def test_the_tables_figures_are_those_of_their_result_files() -> None:
    from benchmarks.tables.page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.tables`"


@pytest.mark.parametrize("folder", sorted(path.parent for path in TABLES.glob("*/table.json")), ids=attrgetter("name"))
def test_kept_results_are_of_the_settings_that_their_table_has_today(folder: Path) -> None:
    """A setting that changes in a table's file, or a default that changes in a method, needs new runs."""
    seed = json.loads((folder / "table.json").read_text("utf-8"))["seeds"][0]
    today = {
        (cell.row, cell.column): cell.study_key for cell in cells_of(find_table(folder.name).changed(seeds=[seed]))
    }
    kept = [item for item in placed_in(folder / "table.json") if item[2] == seed]
    assert kept
    for row, column, _, record in kept:
        assert record.study_key == today[row, column], f"{row} in {column}"


@pytest.mark.parametrize("folder", sorted(path.parent for path in TABLES.glob("*/table.json")), ids=attrgetter("name"))
def test_a_kept_result_states_and_notes_what_its_table_does(folder: Path) -> None:
    """Notes, claims and printed figures have one home, the table's file: a kept file repeats it word by word."""
    from benchmarks.tables.page import kept_result

    from fedsift.benchmark.outputs import table_text

    results = kept_result(folder.name)
    assert results is not None
    kept = (folder / "table.json").read_text("utf-8")
    assert kept == table_text(results), "run `python -m benchmarks.tables`"


def test_a_required_table_is_on_the_page_before_a_run_of_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks.tables import page as pages

    monkeypatch.setattr(pages, "HERE", tmp_path)
    text = pages.page()
    for required in pages.REQUIRED:
        table = find_table(required)
        part = text[text.index(f": {required}\n") :].partition("\n## ")[0]
        assert f"\n0 of {table.runs} runs: open." in part
        assert part.count("**open**") == len(table.claims) > 0
    assert set(re.findall(r"^## .*: ([a-z0-9-]+)$", text, re.M)) == set(pages.REQUIRED)


def test_seeds_that_a_table_asks_for_and_nobody_computed_are_called_open() -> None:
    """Three of five seeds are no complete table, whatever the kept file counts."""
    text = (ROOT / "docs" / "results" / "papers.md").read_text("utf-8")
    for folder in sorted(path.parent for path in TABLES.glob("*/table.json")):
        table, kept = find_table(folder.name), json.loads((folder / "table.json").read_text("utf-8"))["seeds"]
        if not table.paper:
            continue
        part = " ".join(text[text.index(f": {folder.name}\n") :].partition("\n## ")[0].split())
        missing = [str(seed) for seed in table.seeds if seed not in kept]
        stated = f"Seeds that it asks for and that are open: {', '.join(missing)}."
        assert (stated in part) == bool(missing), folder.name


def test_a_method_s_page_says_of_results_what_the_kept_tables_do() -> None:
    from benchmarks.tables.excerpts import bodies, section_of

    for name, body in bodies().items():
        section_of(name).check(body)


def test_the_leaderboard_tells_every_setting_of_its_file() -> None:
    from benchmarks.tables.standings import settings

    table = find_table("leaderboard")
    told = " ".join(settings(table).split())
    for key, value in table.everywhere["train"].items():
        assert f"{key} {value}" in told or key == "augment"
    for part in ("RoFL: pseudo_from 13", "FedNoRo: rounds 10, warm_up 4", "FedELC: warm_up 13", "crop 0"):
        assert part in told
    assert "FedAvg:" not in told, "it has what all rows have"


def test_the_leaderboard_and_the_doctor_s_advice_are_those_of_its_results() -> None:
    from benchmarks.tables.page import kept_result
    from benchmarks.tables.standings import ADVICE, PAGE, advice_text, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.tables`"
    assert ADVICE.read_text("utf-8") == advice_text(kept_result("leaderboard")), "run `python -m benchmarks.tables`"


def test_the_figures_of_learning_are_those_of_their_result_files() -> None:
    from benchmarks.learns.page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.learns.page`"


def test_the_cost_of_every_method_is_that_of_its_result_file() -> None:
    from benchmarks.speed.methods import SECTION, body, read

    SECTION.check(body(read()))


def test_the_rates_of_the_tested_way_are_the_measured_ones() -> None:
    from benchmarks.verdicts.rates import SECTION, page, read

    SECTION.check(page(read()))


def test_how_often_no_clean_reference_is_said_is_that_of_its_result_file() -> None:
    from benchmarks.verdicts.reference import SECTION, read, table

    SECTION.check(table(read()))


def test_how_often_a_verdict_turns_is_that_of_its_result_file() -> None:
    from benchmarks.verdicts.__main__ import RESULTS, SECTION, body

    SECTION.check(body(json.loads(RESULTS.read_text("utf-8"))))


def test_the_live_pages_figures_are_those_of_their_result_file() -> None:
    from benchmarks.live.page import SECTION, body

    SECTION.check(body())


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in (ROOT / "docs").glob("**/*.md"):
        if page.name != "README.md":
            name = page.relative_to(ROOT / "docs").as_posix()
            assert f"({name})" in index, f"docs/README.md does not link to {name}"


def test_every_method_has_a_page() -> None:
    """A page of its own, or one that names it as a study does."""
    from fedsift.methods._base import methods

    pages = {page.stem: page.read_text("utf-8") for page in (ROOT / "docs" / "methods").glob("*.md")}
    without = [
        name
        for name in methods
        if name not in pages and not any(re.search(rf'[`"]{re.escape(name)}[`"]', text) for text in pages.values())
    ]
    assert not without, f"no page in docs/methods tells of {', '.join(without)}"
