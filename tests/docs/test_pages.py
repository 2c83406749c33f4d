"""The documentation's own promises: links lead somewhere, lines have one width, the list of pages is whole."""

from __future__ import annotations

import re
import subprocess
import sys
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


def test_every_page_that_results_make_says_what_they_give() -> None:
    """So does the advice that `fedsift doctor` gives."""
    pytest.importorskip("flwr", reason="the benchmarks of a deployment need Flower")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_test_needs_the_benchmarks() -> None:
    """Benchmarks may change without the tests of the program; their own tests are beside them."""
    imports = re.compile(r"^\s*(?:from|import) benchmarks\b", re.M)
    assert [str(file) for file in ROOT.glob("tests/**/*.py") if imports.search(file.read_text("utf-8"))] == []


@pytest.mark.parametrize("file", sorted(TABLES.glob("*.csv")), ids=attrgetter("stem"))
def test_kept_results_are_of_the_settings_that_their_table_has_today(file: Path) -> None:
    """A setting that changes in a table's file, or a default that changes in a method, needs new runs."""
    placed = list(placed_in(file))
    seed = min(seed for _, _, seed, _ in placed)
    today = {(cell.row, cell.column): cell.study_key for cell in cells_of(find_table(file.stem).changed(seeds=[seed]))}
    kept = [item for item in placed if item[2] == seed]
    assert kept
    for row, column, _, record in kept:
        assert record.study_key == today[row, column], f"{row} in {column}"


def test_seeds_that_a_table_asks_for_and_nobody_computed_are_called_open() -> None:
    """Three of five seeds are no complete table, whatever the kept file counts."""
    text = (ROOT / "docs" / "results" / "papers.md").read_text("utf-8")
    for file in sorted(TABLES.glob("*.csv")):
        table, kept = find_table(file.stem), {seed for _, _, seed, _ in placed_in(file)}
        if not table.paper:
            continue
        part = " ".join(text[text.index(f": {file.stem}\n") :].partition("\n## ")[0].split())
        missing = [str(seed) for seed in table.seeds if seed not in kept]
        stated = f"Seeds that it asks for and that are open: {', '.join(missing)}."
        assert (stated in part) == bool(missing), file.stem


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
