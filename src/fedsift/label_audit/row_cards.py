"""What a reviewer sees of a sample that is no picture: the features of its row that are farthest from usual."""

from __future__ import annotations

from collections.abc import Sequence

from fedsift.core.text import visible
from fedsift.data.dataset import Rows
from fedsift.data.sources.base import Source
from fedsift.data.sources.table import ShownFeature, TableSource
from fedsift.drawing.svg import Markup, clipped, tag
from fedsift.label_audit.site_audit import Thumbnails

SIDE, MOST = 240, 6
"""Width and height of a card, and how many features it has room for."""
FARTHEST = 4.0
"""Deviations at which a bar ends."""
NAMED, WRITTEN = 22, 11
"""Letters of a feature's name and of its value."""
FONT = "system-ui, sans-serif"
INK, GREY, BAR, PAPER = "#1a1a1e", "#5b5b61", "#0b5a94", "#ececea"


def row_cards(source: Source, rows: Rows) -> Thumbnails | None:
    """A card for each of these rows of a table's dataset; None for sources of another kind."""
    if not isinstance(source, TableSource):
        return None
    shown = source.shown()
    return lambda k: card(shown(int(rows[k]))).encode("utf-8")


def card(features: Sequence[ShownFeature]) -> Markup:
    """An SVG: names, values as the table writes them, and how far each is from the mean, the farthest first."""
    farthest = sorted(features, key=lambda each: -abs(each.deviations or 0.0))[:MOST]
    paper = tag("rect", width=SIDE, height=SIDE, fill=PAPER)
    lines = [part for n, each in enumerate(farthest) for part in _line(each, 6.0 + n * (SIDE - 6.0) / MOST)]
    return tag(
        "svg",
        paper,
        *lines,
        xmlns="http://www.w3.org/2000/svg",
        width=SIDE,
        height=SIDE,
        viewBox=f"0 0 {SIDE} {SIDE}",
    )


def _line(feature: ShownFeature, top: float) -> list[Markup]:
    font = {"font_family": FONT, "font_size": 13}
    name = tag("text", clipped(visible(feature.name), NAMED), x=8, y=top + 12, fill=GREY, **font)
    text = clipped(visible(feature.text), WRITTEN) or "–"
    value = tag("text", text, x=SIDE - 8, y=top + 12, fill=INK, text_anchor="end", **font)
    if feature.deviations is None:
        return [name, value]
    middle, bar = SIDE / 2, (SIDE / 2 - 8) * min(abs(feature.deviations), FARTHEST) / FARTHEST
    left = middle if feature.deviations > 0 else middle - bar
    return [
        name,
        value,
        tag("rect", x=8, y=top + 19, width=SIDE - 16, height=7, rx=3, fill="#ffffff"),
        tag("rect", x=round(left, 1), y=top + 19, width=round(bar, 1), height=7, fill=BAR),
        tag("rect", x=middle - 0.5, y=top + 16, width=1, height=13, fill=GREY),
    ]
