"""Figures of curves by round, with the stages shaded, and of one value for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsift.drawing.svg import (
    FULL,
    HALF,
    MANY_CLASSES,
    SERIES,
    Markup,
    Scale,
    clipped,
    data_script,
    empty,
    every,
    join,
    label,
    line,
    marker,
    picture,
    points,
    tag,
    text_width,
    ticks,
    whole_ticks,
)
from fedsift.runs.reading import StageSpan

HEIGHT = 270.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 24.0, 36.0
DOTS_UP_TO = 40
"""Mark the points of curves with no more rounds than this."""
MARKED = 7
"""Points marked on a longer curve, so that its marker identifies it."""


@dataclass(frozen=True)
class CurveSeries:
    """A named curve: (round, value); `band` is drawn behind it: (round, low, high)."""

    name: str
    values: Sequence[tuple[int, float]]
    band: Sequence[tuple[int, float, float]] = ()


def curve_figure(
    title: str, series: Sequence[CurveSeries], spans: Sequence[StageSpan], *, share: bool = True
) -> Markup:
    """A line for each series. `share`: the values are shares of one and read as per cent."""
    drawn = [one for one in series if one.values or one.band]
    rounds = [r for one in drawn for r, *_ in (*one.values, *one.band)] + [
        r for span in spans for r in (span.first, span.last)
    ]
    values = [v for one in drawn for _, v in one.values]
    values += [v for one in drawn for _, low, high in one.band for v in (low, high)]
    marks = _value_ticks(min(values), max(values), share)
    across = Scale(min(rounds) - 0.5, max(rounds) + 0.5, LEFT, HALF - RIGHT)
    up = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    body = picture(
        HALF,
        HEIGHT,
        f"{title} by round",
        _shading(spans, across),
        _axes(marks, up, across, share),
        join(_band(one, number, across, up) for number, one in enumerate(series) if one.band),
        join(_curve(one, number, across, up) for number, one in enumerate(series) if one.values),
        line(0, TOP, 0, HEIGHT - BOTTOM, "cross"),
    )
    hover = {
        "kind": "curve",
        "low": across.low,
        "high": across.high,
        "left": LEFT,
        "right": HALF - RIGHT,
        "share": share,
        "stages": [[span.stage, span.first, span.last] for span in spans],
        "series": [[one.name, [[r, float(f"{v:.6g}")] for r, v in one.values]] for one in drawn],
        "bands": [[[r, float(f"{a:.6g}"), float(f"{b:.6g}")] for r, a, b in one.band] for one in drawn],
    }
    return tag("div", body, data_script(hover), class_="plot")


def _value_ticks(low: float, high: float, share: bool) -> list[float]:
    if high - low < 1e-9:
        low, high = low - 0.02 * max(abs(low), 1.0), high + 0.02 * max(abs(high), 1.0)
    marks = ticks(low, high)
    return [mark for mark in marks if -1e-9 <= mark <= 1 + 1e-9] if share and len(marks) > 2 else marks


def _shading(spans: Sequence[StageSpan], across: Scale) -> Markup:
    """Every stage's rounds as a band, its name on top where it fits and else its number in the list below."""
    parts = []
    for number, span in enumerate(spans):
        left, right = across(span.first - 0.5), across(span.last + 0.5)
        parts.append(
            empty(
                "rect",
                x=left,
                y=TOP,
                width=right - left,
                height=HEIGHT - BOTTOM - TOP,
                class_=f"band b{number % 2}",
            )
        )
        fits = text_width(span.stage, 10.5) < right - left - 4
        if fits or right - left >= 9:
            parts.append(label((left + right) / 2, TOP - 8, span.stage if fits else number + 1, "middle", "stage"))
    return join(parts)


def _axes(marks: Sequence[float], up: Scale, across: Scale, share: bool) -> Markup:
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    parts = []
    for mark in marks:
        words = f"{100 * mark:.{0 if step >= 0.0099 else 1}f}%" if share else f"{mark:.4g}"
        parts += [
            line(LEFT, up(mark), HALF - RIGHT, up(mark), "grid"),
            label(LEFT - 6, up(mark) + 4, words, "end"),
        ]
    first, last = round(across.low + 0.5), round(across.high - 0.5)
    bottom = HEIGHT - BOTTOM
    parts += [label(across(mark), bottom + 15, mark, "middle") for mark in whole_ticks(first, last)]
    parts += [line(LEFT, bottom, HALF - RIGHT, bottom, "axis")]
    parts += [label((LEFT + HALF - RIGHT) / 2, HEIGHT - 4, "round", "middle")]
    return join(parts)


def _curve(one: CurveSeries, number: int, across: Scale, up: Scale) -> Markup:
    xs, ys = [across(r) for r, _ in one.values], [up(v) for _, v in one.values]
    parts = [empty("polyline", points=points(xs, ys), class_=f"curve s{number % SERIES}")]
    nth = 1 if len(xs) <= DOTS_UP_TO else -(-len(xs) // MARKED)
    first = 0 if nth == 1 else (number * nth // SERIES) % nth  # markers of different lines beside each other
    radius = 2.2 if nth == 1 else 3.0
    parts += [marker(number, x, y, radius) for x, y in list(zip(xs, ys))[first::nth]]
    return join(parts)


def _band(one: CurveSeries, number: int, across: Scale, up: Scale) -> Markup:
    """The interval behind a curve; beyond the axis it is cut."""
    inside = [(r, max(low, up.low), min(high, up.high)) for r, low, high in one.band]
    xs = [across(r) for r, _, _ in inside]
    edge = points(
        [*xs, *reversed(xs)],
        [*(up(high) for _, _, high in inside), *(up(low) for _, low, _ in reversed(inside))],
    )
    return empty("polygon", points=edge, class_=f"spread s{number % SERIES}")


@dataclass(frozen=True)
class ClassSeries:
    """A named value for each class; `ranges` has from where to where one lies that is not known."""

    name: str
    values: Sequence[float | None]
    ranges: Sequence[tuple[float, float] | None] = ()

    def range(self, k: int) -> tuple[float, float] | None:
        return self.ranges[k] if k < len(self.ranges) else None


def class_figure(title: str, classes: Sequence[str], series: Sequence[ClassSeries]) -> Markup:
    """One value in 0..1 for each class and run, on a common scale; a bar where only a range is known, hatched where
    there is neither."""
    width = HALF if len(classes) <= MANY_CLASSES else FULL
    left, right, top, plot = 48.0, 8.0, 10.0, 190.0
    step = (width - left - right) / len(classes)
    upright, foot = _class_labels(classes, left, step, top + plot)
    up = Scale(0.0, 1.0, top + plot, top)
    parts: list[Markup] = []
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            line(left, up(mark), width - right, up(mark), "grid"),
            label(left - 6, up(mark) + 4, f"{mark:.0%}", "end"),
        ]
    gap = min(9.0, step / (len(series) + 1))
    radius = min(4.5, max(1.6, 0.36 * gap if len(series) > 1 else step / 3))
    for number, one in enumerate(series):
        for k, value in enumerate(one.values[: len(classes)]):
            x = left + (k + 0.5) * step + (number - (len(series) - 1) / 2) * gap
            known = one.range(k)
            if value is None and known is not None:
                parts.append(_bar(x, known, up, number, radius))
            else:
                parts.append(_lollipop(x, value, up, number, radius))
    body = picture(width, top + plot + foot, title, join(parts), upright)
    hover = {
        "kind": "classes",
        "left": left,
        "step": step,
        "names": list(classes),
        "series": [[one.name, [None if v is None else round(v, 4) for v in one.values]] for one in series],
        "ranges": [
            [None if (known := one.range(k)) is None else [round(end, 4) for end in known] for k in range(len(classes))]
            for one in series
        ],
    }
    return tag("div", body, data_script(hover), class_="plot")


def _bar(x: float, known: tuple[float, float], up: Scale, number: int, radius: float) -> Markup:
    low, high = known
    height = max(1.0, up(low) - up(high))
    return empty("rect", x=x - radius, y=up(high), width=2 * radius, height=height, class_=f"spread s{number % SERIES}")


def _lollipop(x: float, value: float | None, up: Scale, number: int, radius: float) -> Markup:
    if value is None:
        return empty("rect", x=x - radius, y=up(1.0), width=2 * radius, height=up(0.0) - up(1.0), class_="missing")
    stem = line(x, up(0.0), x, up(value), f"stem s{number % SERIES}")
    return join([stem, marker(number, x, up(value), radius)])


def _class_labels(classes: Sequence[str], left: float, step: float, base: float) -> tuple[Markup, float]:
    """Class names under their columns, turned when they do not fit; and the room that they take."""
    names = [clipped(name, 22) for name in classes]
    longest = max(text_width(name) for name in names)
    if longest <= step - 4:
        return join(label(left + (k + 0.5) * step, base + 16, name, "middle") for k, name in enumerate(names)), 26.0
    nth = every(len(names), step, 12.0)
    turned = [
        label(left + (k + 0.5) * step + 4, base + 10, name, "end", turn=-60.0)
        for k, name in enumerate(names)
        if k % nth == 0
    ]
    return join(turned), 16.0 + longest * 0.87 + 6.0
