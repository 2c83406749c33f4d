"""A part of a page in docs that a benchmark writes, between two marks and from its results alone."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 118
"""Of prose, as tests/docs asks of every page."""


def _filled(paragraph: str) -> str:
    if paragraph.startswith("|"):
        return paragraph
    entries = paragraph.split("\n") if paragraph.startswith("- ") else [paragraph]
    indent = "  " if paragraph.startswith("- ") else ""
    form = textwrap.TextWrapper(WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(form.fill, entries))


@dataclass(frozen=True)
class Section:
    """Where the part stands, and which command makes it."""

    page: str
    """A file in docs."""
    name: str
    command: str
    """What is run to write it again."""

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: made by {self.command} -->"

    @property
    def end(self) -> str:
        return f"<!-- /{self.name} -->"

    def marked(self, body: str) -> str:
        """The part with its marks. Tables stay as they are, prose and the entries of a list are filled."""
        return "\n\n".join([self.begin, *map(_filled, body.strip().split("\n\n")), self.end])

    def filled(self, body: str) -> str:
        """The whole page with this body in its place."""
        text = (DOCS / self.page).read_text("utf-8")
        before, there, rest = text.partition(self.begin)
        if not there or self.end not in rest:
            raise SystemExit(f"docs/{self.page} has no marks '{self.begin}' and '{self.end}'")
        return before + self.marked(body) + rest.partition(self.end)[2]

    def write(self, body: str) -> None:
        (DOCS / self.page).write_text(self.filled(body), "utf-8")

    def check(self, body: str) -> None:
        """Fail if the page says something else: what the tests of the pages call."""
        assert (DOCS / self.page).read_text("utf-8") == self.filled(body), f"run `{self.command}`"
