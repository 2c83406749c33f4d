"""One share for each site as a bar, with a tick for what was set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsift.drawing.svg import (
    HALF,
    Markup,
    Scale,
    clipped,
    data_script,
    empty,
    every,
    join,
    label,
    line,
    picture,
    tag,
    text_width,
    ticks,
)
from fedsift.report.matrix import BOLD, NAME_LENGTH, row_height

TOP, FOOT = 8.0, 24.0


@dataclass(frozen=True)
class Bar:
    """A name, its share, what was set, and whether it stands out."""

    name: str
    share: float
    set_to: float
    loud: bool = False


def bar_figure(title: str, bars: Sequence[Bar], top: float = TOP) -> Markup:
    """A bar for each; the axis ends at the next round share above all of them. top: where the first row begins."""
    height = row_height(len(bars))
    left = max((text_width(clipped(bar.name, NAME_LENGTH), BOLD) for bar in bars), default=0.0) + 14
    most = max((max(bar.share, bar.set_to) for bar in bars), default=0.0)
    marks = [mark for mark in ticks(0.0, max(most, 0.1)) if mark <= 1.0]
    across = Scale(0.0, marks[-1], left, HALF - 24)
    bottom = top + height * len(bars)
    parts = [line(across(mark), top, across(mark), bottom, "grid") for mark in marks]
    parts += [label(across(mark), bottom + 15, f"{mark:.0%}", "middle") for mark in marks]
    nth = every(len(bars), height, 11.0)
    thick = max(1.0, 0.62 * height)
    for k, bar in enumerate(bars):
        y = top + height * (k + 0.5)
        if k % nth == 0:
            kind = "loud" if bar.loud else ""
            parts.append(label(left - 6, y + 4, clipped(bar.name, NAME_LENGTH), "end", kind))
        kind = "bar loud" if bar.loud else "bar"
        width = across(bar.share) - left
        if width > 0:
            parts.append(empty("rect", x=left, y=y - thick / 2, width=width, height=thick, class_=kind))
        if bar.set_to > 0:
            x = across(bar.set_to)
            parts.append(line(x, y - 0.45 * height, x, y + 0.45 * height, "set"))
    body = picture(HALF, bottom + FOOT, title, join(parts), line(left, top, left, bottom, "axis"))
    hover = {
        "kind": "bars",
        "top": top,
        "height": height,
        "rows": [[bar.name, round(bar.share, 5), round(bar.set_to, 5)] for bar in bars],
    }
    return tag("div", body, data_script(hover), class_="plot")
