r"""Formulas of the pages, `$...$` and `$$...$$` as on code hosts, as MathML: browsers draw it without a script.

A Markdown extension, named in mkdocs.yml. What latex2mathml does not know is refused, so that no page is built with a
formula that cannot be read.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

FORMULA = r"(?<![\\$\w])(\${1,2})(?![\s$])([^$]+?)(?<!\s)\1(?![\w$])"
BELOW_CODE = 185
"""Priority: after code spans (190), whose dollars are their own, and before escapes (180) and emphasis."""
ARG = re.compile(r"\\arg\b")


def mathml(source: str, display: bool = False) -> str:
    """A formula as MathML; ValueError for what cannot be drawn."""
    try:
        drawn = str(convert(ARG.sub(r"\\operatorname{arg}", source), display="block" if display else "inline"))
    except Exception as error:
        raise ValueError(f"the formula {source!r} cannot be read: {type(error).__name__}") from error
    if "\\" in drawn:  # the library writes a command that it does not know as it stands
        raise ValueError(f"the formula {source!r} has a command that is not known")
    return drawn


class Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        html = mathml(m[2], display=m[1] == "$$")
        return self.md.htmlStash.store(html), m.start(0), m.end(0)


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Inline(FORMULA, md), "formula", BELOW_CODE)


def makeExtension(**options: Any) -> Formulas:
    return Formulas(**options)
