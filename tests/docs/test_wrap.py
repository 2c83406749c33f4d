"""The page filler changes where lines end and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.test_pages import PAGES, name
from tests.docs.wrap import WIDTH, wrapped

MARKDOWN = MarkdownIt("commonmark").enable("table")


def rendered(text: str) -> list[str]:
    """HTML by words: a line's end counts as a space."""
    return str(MARKDOWN.render(text)).split()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_means_the_same_and_is_filled_once(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    after = list(wrapped(lines))
    assert " ".join(after).split() == " ".join(lines).split()
    assert rendered("\n".join(after)) == rendered("\n".join(lines))
    assert list(wrapped(after)) == after


def test_links_code_and_formulas_stay_whole() -> None:
    for whole in ("[the first hour](docs/first-hour.md#arrays instead)", "`a b c d e`", r"$a \, b + c_k$"):
        for before in range(WIDTH - 30, WIDTH + 2):
            line = f"{'x' * before} {whole} and so on"
            assert any(whole in part for part in wrapped([line])), line


def test_items_hang_and_no_line_opens_a_block() -> None:
    words = "word " * 21
    assert list(wrapped([f"- {words}and more words"])) == [f"- {words}and more", "  words"]
    for opener in ("-", "1.", "#", "+"):
        line = f"{'word ' * 23}abc {opener} more"
        assert list(wrapped([line])) == [("word " * 23).strip(), f"abc {opener} more"]


def test_what_is_not_prose_stays() -> None:
    long = "word " * 40
    for line in (f"| {long}|", f"# {long}", f"    {long}", f"$$ {long}$$"):
        assert list(wrapped([line])) == [line]
    block = ["```", long, "```"]
    assert list(wrapped(block)) == block
    forced = ["first  ", "second"]
    assert list(wrapped(forced)) == forced
