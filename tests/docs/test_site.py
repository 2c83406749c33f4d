"""The pages as a site: built strictly, readable offline, and every formula drawn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.formulas import FORMULA, mathml

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
RAW = re.compile(r"\$[^$\s][^$]*\$|\\[(\[]|\\[a-z]{2,}")
"""What a reader sees of a formula that nobody drew."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, from a copy, so that nothing is written into the checkout."""
    home = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", home / "docs")
    shutil.copyfile(ROOT / "mkdocs.yml", home / "mkdocs.yml")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=home, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "build" / "docs"


class Seen(HTMLParser):
    """The text of a page that is no code, and the formulas on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hidden = 0
        self.words: list[str] = []
        self.formulas = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("code", "pre", "script", "style")
        self.formulas += tag == "math"

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)


def formulas(page: Path) -> Iterator[str]:
    """The formulas that a page's Markdown has outside code."""
    yield from (match[2] for match in re.finditer(FORMULA, CODE.sub("", page.read_text("utf-8"))))


def test_every_page_is_built_and_no_formula_is_left_raw(site: Path) -> None:
    drawn = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        place = site / page.relative_to(ROOT / "docs")
        html = place.with_name("index.html" if page.stem == "README" else f"{page.stem}.html")
        seen = Seen(html.read_text("utf-8"))
        raw = RAW.search("".join(seen.words))
        assert raw is None, f"{html.name} shows {raw[0]!r}"
        assert seen.formulas == len(list(formulas(page))), f"{html.name} lost a formula"
        drawn += seen.formulas
    assert drawn > 300


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"<(?:script|img|iframe|link rel=\"?stylesheet)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*")
    for page in site.rglob("*.html"):
        assert fetched.findall(page.read_text("utf-8")) == [], page.name


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("x_i^2", ["msubsup", "<mi>x</mi>", "<mn>2</mn>"]),
        (r"\tfrac12", ["<mfrac>"]),
        (r"\arg\max_c p", ["arg", "max", "<mi>c</mi>"]),
        (r"\hat p", ['<mover accent="true">']),
    ],
)
def test_a_formula_is_drawn(source: str, parts: list[str]) -> None:
    drawn = mathml(source)
    assert drawn.startswith("<math") and 'display="inline"' in drawn
    assert [part for part in parts if part not in drawn] == []


@pytest.mark.parametrize("source", [r"\unheardof x", r"\left( x", "x_"])
def test_what_is_not_known_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        mathml(source)
