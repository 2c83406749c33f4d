r"""Formulas of the pages, `$...$` and `$$...$$` as on code hosts, as MathML: browsers draw it without a script.

A Markdown extension, named in mkdocs.yml. It knows the part of LaTeX that the pages use and refuses anything else, so
that no page is built with a formula that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

FORMULA = r"(?<![\\$\w])(\${1,2})(?![\s$])([^$]+?)(?<!\s)\1(?![\w$])"
BELOW_CODE = 185
"""Priority: after code spans (190), whose dollars are their own, and before escapes (180) and emphasis."""


def pairs(text: str) -> dict[str, str]:
    """Names and their signs in turn."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


LETTERS = pairs("""
    alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ kappa κ lambda λ mu μ nu ν xi ξ pi π
    rho ρ sigma σ tau τ phi φ chi χ psi ψ omega ω Delta Δ Theta Θ Lambda Λ Sigma Σ Omega Ω ell ℓ infty ∞ nabla ∇
    partial ∂ top ⊤
""")
OPERATORS = pairs("""
    leftarrow ← rightarrow → to → ge ≥ geq ≥ le ≤ leq ≤ ne ≠ neq ≠ in ∈ cup ∪ cap ∩ setminus ∖ sim ∼ approx ≈ mid ∣
    pm ± cdot ⋅ times × ldots … dots …
""")
FENCES = pairs("""
    lVert ‖ rVert ‖ | ‖ lvert | rvert | lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ langle ⟨ rangle ⟩ { { } }
""")
LARGE = pairs("sum ∑ prod ∏")
UNDER = (*LARGE, "underbrace")
"""What has its scripts below and above it instead of beside it."""
NAMED = ("log", "max", "min", "arg", "exp", "Pr")
SPACES = {",": 0.17, ";": 0.28, " ": 0.33, "quad": 1, "qquad": 2}
ACCENTS = pairs("hat ^ bar ¯ tilde ~ overline ¯")
SIZES = ("bigl", "bigr", "Bigl", "Bigr", "big", "Big")
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|\s+|.", re.DOTALL)
THIN = '<mspace width="0.17em"/>'
"""Around log and the like."""
TEXT = ("text", "mathrm", "mathtt", "operatorname")


class Formula:
    """One formula, read from left to right."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = TOKEN.findall(source.strip())
        self.at = 0

    def refuse(self, why: str) -> ValueError:
        return ValueError(
            f"formula {self.source!r}: {why}; teach tests/docs/formulas.py or write it otherwise"
        )

    def peek(self) -> str:
        """The next token that is no space; empty at the end."""
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise self.refuse("it ends too early")
        self.at += 1
        return token

    def row(self, end: str = "") -> str:
        """All up to `end`, which is taken too."""
        return "".join(self._parts(end))

    def _parts(self, end: str) -> Iterator[str]:
        before = "<mo>"
        while self.peek() != end:
            if not self.peek() or self.peek() == "}":
                raise self.refuse(f"'{end}' is missing" if end else "there is a '}' too many")
            function = self.peek()[1:] in NAMED
            if function and not before.startswith(("<mo", "<mspace")):
                yield THIN
            before = self.scripted()
            yield before
            if function and self.peek() and self.peek() not in ("(", "[", "}", ")", ","):
                before = THIN
                yield THIN
        if end:
            self.take()

    def scripted(self) -> str:
        """One piece with what hangs on it below and above."""
        large = self.peek()[1:] in UNDER
        base = "<mrow></mrow>" if self.peek() in ("_", "^") else self.piece()
        below = above = ""
        while self.peek() in ("_", "^", "'"):
            mark = self.take()
            if mark == "_":
                below = self.argument()
            else:
                above += "<mo>′</mo>" if mark == "'" else self.argument()
        if above:
            above = f"<mrow>{above}</mrow>"
        kind = ("munder", "mover", "munderover") if large else ("msub", "msup", "msubsup")
        if below and above:
            return f"<{kind[2]}>{base}{below}{above}</{kind[2]}>"
        if below or above:
            tag = kind[0] if below else kind[1]
            return f"<{tag}>{base}{below or above}</{tag}>"
        return base

    def argument(self) -> str:
        """A group in braces, or one piece: `\\frac12` has 1 above 2."""
        if self.peek() == "{":
            self.take()
            return f"<mrow>{self.row('}')}</mrow>"
        return self.piece(alone=True)

    def words(self) -> str:
        """The text between braces, as it stands."""
        if self.take() != "{":
            raise self.refuse("text wants braces")
        end = self.tokens.index("}", self.at) if "}" in self.tokens[self.at :] else None
        if end is None:
            raise self.refuse("'}' is missing")
        text = "".join(self.tokens[self.at : end]).replace("\\_", "_")
        self.at = end + 1
        return escape(text)

    def piece(self, alone: bool = False) -> str:
        """One letter, number, sign, group or command; `alone`: one digit of a number only."""
        token = self.take()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token.isdigit():
            while not alone and self.at < len(self.tokens) and re.fullmatch(r"[\d.]", self.tokens[self.at]):
                if self.tokens[self.at] == "." and not "".join(self.tokens[self.at + 1 :])[:1].isdigit():
                    break
                token += self.tokens[self.at]
                self.at += 1
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "()[]|":
            return f'<mo stretchy="false" lspace="0" rspace="0">{token}</mo>'
        if token in "+-=<>/,;:.!*'":
            return f"<mo>{escape(token.replace('-', '−'))}</mo>"
        raise self.refuse(f"{token!r} is not known")

    def command(self, name: str) -> str:
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>"
        if name in FENCES:
            return f'<mo stretchy="false" lspace="0" rspace="0">{FENCES[name]}</mo>'
        if name in LARGE:
            return f"<mo>{LARGE[name]}</mo>"
        if name in NAMED:
            return f"<mi>{name}</mi>"
        if name in SPACES or name.isspace():
            return f'<mspace width="{SPACES.get(name, SPACES[" "])}em"/>'
        if name in ACCENTS:
            return f'<mover accent="true">{self.argument()}<mo>{ACCENTS[name]}</mo></mover>'
        if name in ("frac", "tfrac"):
            return f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
        if name in TEXT:
            return self.upright(name)
        if name == "underbrace":
            # A line: few fonts have a brace that grows.
            return f'<mrow style="border-bottom: 0.06em solid">{self.argument()}</mrow>'
        if name == "mathbb" and self.words() == "1":
            return "<mi>𝟙</mi>"
        if name == "textstyle":
            return ""
        if name in SIZES:
            size = 1.8 if name.startswith("B") else 1.3
            return f'<mo stretchy="true" minsize="{size}em" maxsize="{size}em">{self.fence()}</mo>'
        if name == "left":
            first = self.fence()
            inner = self.row("\\right")
            return f"<mrow><mo>{first}</mo>{inner}<mo>{self.fence()}</mo></mrow>"
        raise self.refuse(f"'\\{name}' is not known")

    def fence(self) -> str:
        token = self.take()
        return escape(FENCES.get(token.removeprefix("\\"), token))

    def upright(self, name: str) -> str:
        words = self.words()
        if name == "text":
            return f"<mtext>{words.replace(' ', '&#160;')}</mtext>"
        if name == "mathtt":
            return f'<mtext style="font-family: monospace">{words}</mtext>'
        return f'<mi mathvariant="normal">{words}</mi>'


def mathml(source: str, display: bool = False) -> str:
    """A formula as MathML; ValueError for what it does not know."""
    block = ' display="block"' if display else ""
    return f"<math{block}><mrow>{Formula(source).row()}</mrow></math>"


class Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        html = mathml(m[2], display=m[1] == "$$")
        return self.md.htmlStash.store(html), m.start(0), m.end(0)


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Inline(FORMULA, md), "formula", BELOW_CODE)


def makeExtension(**options: Any) -> Formulas:
    return Formulas(**options)
