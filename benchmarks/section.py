"""Pages in docs that benchmarks write from their results alone: a whole page, or a part between two marks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.docs.wrap import wrapped

DOCS = Path(__file__).parents[1] / "docs"


def paragraph(text: str) -> str:
    """A paragraph on one line: pages are filled at one width once they are whole."""
    return " ".join(text.split())


def filled(text: str) -> str:
    """Markdown at the width that all pages have."""
    return "\n".join(wrapped(text.splitlines()))


@dataclass(frozen=True)
class Page:
    """A page that a benchmark makes."""

    page: str
    """A file in docs."""
    command: str
    """What is run to write it again."""

    def text(self, body: str) -> str:
        """The whole page with this body."""
        return filled(body) + "\n"

    def write(self, body: str) -> None:
        (DOCS / self.page).write_text(self.text(body), "utf-8")

    def is_current(self, body: str) -> bool:
        """Whether the page says what it would say if it were written now."""
        return (DOCS / self.page).read_text("utf-8") == self.text(body)


@dataclass(frozen=True)
class Section(Page):
    """A part of a page, between two marks."""

    name: str

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: made by {self.command} -->"

    @property
    def end(self) -> str:
        return f"<!-- /{self.name} -->"

    def text(self, body: str) -> str:
        text = (DOCS / self.page).read_text("utf-8")
        before, there, rest = text.partition(self.begin)
        if not there or self.end not in rest:
            raise SystemExit(f"docs/{self.page} has no marks '{self.begin}' and '{self.end}'")
        return f"{before}{self.begin}\n\n{filled(body.strip())}\n\n{self.end}{rest.partition(self.end)[2]}"
