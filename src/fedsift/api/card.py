"""A run in a notebook: headline, figures, noisy sites and one small curve, as HTML that needs no network."""

from __future__ import annotations

from fedsift.api.folder import RunData
from fedsift.drawing.svg import Markup, Scale, empty, join, picture, points, tag
from fedsift.report.words import METRICS, headline
from fedsift.runs import duration, percent, plural, size

WIDTH, HEIGHT, MARGIN = 320.0, 72.0, 5.0
STYLE = "border:1px solid #8886;border-radius:6px;padding:10px 14px;max-width:46em;font-family:sans-serif"
QUIET = "opacity:.7;font-size:90%"
COLOUR = "#2a6fdb"


def card(run: RunData) -> str:
    """One `<div>`; every name in it is escaped."""
    return tag(
        "div",
        tag("div", f"{headline(run)}.", style="font-weight:600;margin-bottom:6px"),
        _curve(run),
        tag("table", *_lines(run), style="border-collapse:collapse;margin:6px 0"),
        tag("div", str(run.path), style=QUIET),
        style=STYLE,
    )


def _lines(run: RunData) -> list[Markup]:
    lines = [
        (METRICS[name], f"{percent(scores.get('final'))} at the end, best {percent(scores.get('best'))}")
        for name in run.curves
        if (scores := run.summary.get(name))
    ]
    if run.found is not None:
        lines.append(("noisy sites", ", ".join(run.found) or "none"))
    lines.append(("method", f"{run.method}, seed {run.study.get('seed', 1)}"))
    lines.append(("rounds", f"{len(run.rounds)} in {duration(run.summary.get('seconds'))}"))
    if run.site_count:
        sent = f"{size(run.summary.get('bytes_up'))} sent by them"
        lines.append(("sites", f"{plural(run.site_count, 'site')}, {sent}"))
    lines += [("note", text) for text in [*(run.summary.get("warnings") or ()), *run.missing]]
    cell = "padding:1px 12px 1px 0;text-align:left;vertical-align:top"
    return [
        tag("tr", tag("td", key, style=f"{cell};opacity:.7"), tag("td", text, style=cell))
        for key, text in lines
    ]


def _curve(run: RunData) -> Markup:
    """The first metric by round, from 0 at the bottom to its highest value at the top."""
    name = next((name for name in run.curves if len(run.curve(name)) > 1), None)
    if name is None:
        return Markup("")
    curve = run.curve(name)
    across = Scale(curve[0][0], curve[-1][0], MARGIN, WIDTH - MARGIN)
    up = Scale(0.0, max(max(value for _, value in curve), 1e-9), HEIGHT - MARGIN, MARGIN)
    xs, ys = [across(number) for number, _ in curve], [up(value) for _, value in curve]
    words = f"{METRICS[name]} by round, {percent(curve[0][1])} to {percent(curve[-1][1])}"
    line = empty("polyline", points=points(xs, ys), fill="none", stroke=COLOUR, stroke_width="2")
    dot = empty("circle", cx=xs[-1], cy=ys[-1], r="3", fill=COLOUR)
    return tag("div", picture(WIDTH, HEIGHT, words, join([line, dot])), tag("div", words, style=QUIET))
