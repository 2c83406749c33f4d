"""Pure functions that make SVG and HTML text and escape their arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedsift.core.text import html_text

CHARACTER = 0.57
"""Mean width of a character in ems, for fonts that the reader's system chooses."""
FULL, HALF = 1060, 520
"""Widths of a figure in CSS pixels: across the page, or one of two columns."""
MANY_CLASSES = 12
"""More classes than this need the whole width of the page."""


SERIES = 12
"""Lines that can be distinguished: no two share more than one of colour and dash (in the style sheet) and marker."""
MARKERS = ("circle", "square", "triangle", "diamond", "wedge", "cross")


class Markup(str):
    """Text that is markup already; any other string is escaped when it becomes part of an element."""

    __slots__ = ()


def escape(value: Any) -> str:
    return str(value) if isinstance(value, Markup) else html_text(value)


def join(parts: Iterable[Any], between: str = "") -> Markup:
    return Markup(escape(between).join(escape(part) for part in parts if part is not None))


def tag(name: str, *content: Any, **attributes: Any) -> Markup:
    """An element; `class_` and `data_x` become class and data-x, an attribute that is None is left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{words}>{join(content)}</{name}>")


def empty(name: str, **attributes: Any) -> Markup:
    """An SVG element without content."""
    return Markup(tag(name, **attributes).replace(f"></{name}>", "/>"))


def _attribute(value: Any) -> str:
    return short(value) if isinstance(value, float) else html_text(value)


def short(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value + 0.0:.1f}".removesuffix(".0")


def data_script(value: Any) -> Markup:
    """Data for the page's script; nothing in it can close the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json">{safe}</script>')


def picture(width: float, height: float, label: str, *content: Any) -> Markup:
    """An `<svg>` that shrinks with the page and describes itself to screen readers."""
    return tag(
        "svg",
        tag("title", label),
        *content,
        viewBox=f"0 0 {short(width)} {short(height)}",
        width=width,
        height=height,
        role="img",
    )


def label(x: float, y: float, text: Any, anchor: str = "start", kind: str = "", turn: float = 0.0) -> Markup:
    rotate = f"rotate({short(turn)} {short(x)} {short(y)})" if turn else None
    where = None if anchor == "start" else anchor
    return tag("text", text, x=float(x), y=float(y), text_anchor=where, class_=kind or None, transform=rotate)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return empty("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=kind)


def marker(number: int, x: float, y: float, radius: float = 2.2) -> Markup:
    """The point of the `number`-th line: a shape of its own, so that lines can be distinguished without colour."""
    shape, r = MARKERS[number % len(MARKERS)], radius * 1.15
    kind = f"point s{number % SERIES}"
    if shape == "circle":
        return empty("circle", cx=x, cy=y, r=radius, class_=kind)
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "triangle": ((0, -1.3 * r), (1.2 * r, r), (-1.2 * r, r)),
        "diamond": ((0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)),
        "wedge": ((0, 1.3 * r), (1.2 * r, -r), (-1.2 * r, -r)),
        "cross": tuple(
            (r * a, r * b)
            for a, b in ((0, -0.5), (0.9, -1.4), (1.4, -0.9), (0.5, 0), (1.4, 0.9), (0.9, 1.4),
                         (0, 0.5), (-0.9, 1.4), (-1.4, 0.9), (-0.5, 0), (-1.4, -0.9), (-0.9, -1.4))
        ),
    }[shape]  # fmt: skip
    return empty("polygon", points=points([x + dx for dx, _ in corners], [y + dy for _, dy in corners]), class_=kind)


def text_width(text: str, font: float = 11.0) -> float:
    return len(text) * font * CHARACTER


def clipped(text: str, most: int) -> str:
    """Long names lose their middle, so that both their family and their number stay readable."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def every(count: int, step: float, least: float) -> int:
    """Label every n-th of `count` marks that stand `step` apart, so that labels keep `least` apart."""
    return max(1, math.ceil(least / step)) if count and step > 0 else 1


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that cover low..high, at most `most` + 3; never closer than floats there can be distinguished."""
    if not high > low:
        return [low]
    raw = max((high - low) / most, 1e3 * math.ulp(max(abs(low), abs(high))))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= raw * 0.999), power * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [round(step * i, 12) for i in range(first, last + 1)]


def whole_ticks(low: int, high: int, most: int = 8) -> list[int]:
    """Round whole numbers within low..high."""
    if high - low <= most:
        return list(range(low, high + 1))
    raw = (high - low) / most
    power = 10 ** math.floor(math.log10(raw))
    step = int(next((power * f for f in (1, 2, 5) if power * f >= raw), power * 10))
    return [value for value in range(low - low % step, high + 1, step) if value >= low]


@dataclass(frozen=True)
class Scale:
    """A straight map from data to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def points(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{short(x)},{short(y)}" for x, y in zip(xs, ys))


def figure(drawing: Markup, title: str, note: str = "") -> Markup:
    return tag("figure", tag("figcaption", tag("b", title), " " if note else "", tag("span", note)), drawing)


# The frame of every page
# ------------------------------------------------------------------------------


def document(
    title: str, body: Markup, style: str, *, policy: str = "", more: Markup | None = None, nonce: str = ""
) -> str:
    """`policy`: a Content-Security-Policy. `more`: other lines of the head. `nonce`: by which a server's own policy
    knows the style."""
    guard = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    head = join(
        [
            Markup(f'<meta charset="utf-8">{guard}'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            more,
            tag("title", f"{title} · fedsift"),
            Markup(f'<style nonce="{nonce}">{style}</style>' if nonce else f"<style>{style}</style>"),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
