"""Names that other people chose: harmless on a terminal, in a spreadsheet and in UTF-8."""

from __future__ import annotations

import csv
import io
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from fedsift.core.text import FORMULA, HIDDEN, argument, cell, readable, uncell, visible
from fedsift.report.console import PlainConsole


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("Zürich 医院 é", "Zürich 医院 é"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nerror: b", "a\\nerror: b"),
        ("tab\there", "tab\\there"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("byte\udcff", "byte\\udcff"),
        ("bell\x07\x9b", "bell\\x07\\x9b"),
    ],
)
def test_what_would_act_is_written_out(name: str, shown: str) -> None:
    assert visible(name) == shown


def test_line_breaks_of_the_writer_stay() -> None:
    assert visible("a\n\tb\x1b", breaks=True) == "a\n\tb\\x1b"


@pytest.mark.parametrize("name", ["=1+1", "+A1", "-cmd", "@SUM(A1)", "'=1", "＝1", " =1", "\u00a0=1", "''=1"])
def test_formulas_become_text_and_come_back(name: str) -> None:
    written = cell(name)
    assert written.startswith("'")
    assert uncell(written) == name


@pytest.mark.parametrize("name", ["\tx", "''", "a\nb", "x;=1+1", "\u202eabc", "\\u{0009}", "'", "a\x00b", "-1\t"])
def test_text_of_any_kind_comes_back_and_acts_nowhere(name: str) -> None:
    written = cell(name)
    assert uncell(written) == name
    assert not HIDDEN.search(written) and not set("\t\n") & set(written)
    assert not re.search(r";\s*[=+@-]", written)


@pytest.mark.parametrize("name", ["-1", "+0.5", "-1e-9", "nevus", "it's", "-inf", ""])
def test_numbers_and_words_stay(name: str) -> None:
    assert cell(name) == name == uncell(name)


@given(st.text())
def test_no_cell_computes_and_every_cell_comes_back(name: str) -> None:
    file = io.StringIO()
    csv.writer(file).writerow([cell(name), "end"])
    [[read, _]] = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert not read.startswith(FORMULA) or cell(read) == read  # what is left with a sign is a number
    if not HIDDEN.search(name):
        assert uncell(read) == name


@given(st.text(alphabet=st.characters(codec=None)))  # halves of characters too
def test_readable_names_can_be_written(name: str) -> None:
    assert readable(name).encode("utf-8").decode("utf-8") == readable(name)
    assert not HIDDEN.search(visible(name).encode("utf-8").decode("utf-8"))


def test_a_console_never_passes_an_escape_sequence_on() -> None:
    console = PlainConsole(file=io.StringIO(), force_terminal=False, width=80)
    table = Table()
    table.add_column("site")
    table.add_row("evil\x1b]0;title\x07")
    console.print(table)
    console.print("[bold]x[/] \x1b[2J", markup=True)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "\x1b" not in printed
    assert "\\x1b[2J" in printed


@pytest.mark.parametrize(
    "text", ["runs/first", "a b", "it's", "$(touch x)", "`x`", "a;b", "", "a\nb", "\x1b[2J'\\", "\u202eabc"]
)
def test_an_argument_is_one_word_for_a_shell_and_nothing_in_it_acts(text: str) -> None:
    word = argument(text)
    assert visible(word) == word
    done = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode("utf-8") == text
