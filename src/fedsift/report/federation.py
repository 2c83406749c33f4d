"""The page of a federation before training: given labels, wrong labels, and which classes are confused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsift.core.numbers import number, percent, plural
from fedsift.core.version import __version__
from fedsift.data.overview import FederationOverview
from fedsift.drawing import page_style, saving_script
from fedsift.drawing.svg import (
    HALF,
    MANY_CLASSES,
    Markup,
    Scale,
    clipped,
    data_script,
    document,
    empty,
    every,
    figure,
    join,
    label,
    line,
    picture,
    tag,
    text_width,
    ticks,
)
from fedsift.report.matrix import BOLD, NAME_LENGTH, MatrixRow, dot_plot, first_row, heat_map, row_height
from fedsift.report.page import HATCH, script, tile
from fedsift.report.tables import html_table

# One share for each site as a bar, with a tick for what was set
# ------------------------------------------------------------------------------

TOP, FOOT = 8.0, 24.0


@dataclass(frozen=True)
class SiteBar:
    """A name, its share, what was set, and whether it stands out."""

    name: str
    share: float
    set_to: float
    loud: bool = False


def bar_figure(title: str, bars: Sequence[SiteBar], top: float = TOP) -> Markup:
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


DOTS_UP_TO = 60
"""With more sites the dots would be specks; then the distribution is a heat map."""


def federation_page(portrait: FederationOverview, title: str, study_text: str, notes: Sequence[str] = ()) -> str:
    """The whole document, in the look of the reports; it needs no network."""
    sections: list[tuple[str, str, Markup]] = [("labels", "Labels at each site", _labels(portrait))]
    if portrait.confusion is not None:
        sections.append(("mistaken", "What is mistaken for what", _mistaken(portrait)))
    sections.append(("sites", "Sites", _table(portrait)))
    if notes:
        sections.append(("notes", "Notes", tag("ul", *(tag("li", note) for note in notes))))
    details = tag("details", tag("summary", "as a file"), tag("pre", tag("code", study_text.rstrip())))
    sections.append(("study", "The study", details))
    body = join(
        [
            HATCH,
            tag("p", f"scenario · {title}", class_="eyebrow"),
            tag("h1", f"{headline(portrait)}."),
            _tiles(portrait),
            tag(
                "nav",
                *(tag("a", words, href=f"#{name}") for name, words, _ in sections),
                aria_label="Sections",
            ),
            tag("main", *(tag("section", tag("h2", words), part, id=name) for name, words, part in sections)),
            tag("footer", f"fedsift {__version__} · this file needs no network"),
            tag("div", id="tip", role="status", hidden=""),
            Markup(f"<script>{script()}{saving_script()}</script>"),
        ]
    )
    return document(title, body, page_style())


def headline(portrait: FederationOverview) -> str:
    """One sentence: how many samples lie where, and how much of it is wrong."""
    size = f"{plural(int(portrait.sizes.sum()), 'sample')} at {plural(len(portrait.sites), 'site')}"
    if portrait.overall_rate is None:
        return f"{size}; which labels are wrong nobody knows"
    count = len(portrait.noisy)
    if not count:
        return f"{size}, and every label is right" if portrait.overall_rate == 0 else size
    rate = percent(portrait.overall_rate)
    return f"{size}; {count} {'is' if count == 1 else 'are'} noisy, and {rate} of all labels are wrong"


def _tiles(portrait: FederationOverview) -> Markup:
    sizes = sorted(int(size) for size in portrait.sizes)
    held = (portrait.counts > 0).sum(axis=1)
    found = [
        tile("Sites", number(len(portrait.sites)), f"{_range(sizes[0], sizes[-1])} samples each"),
        tile("Classes", number(len(portrait.classes)), f"{_range(held.min(), held.max())} of them at each site"),
    ]
    if portrait.overall_rate is not None and portrait.effective is not None:
        worst = percent(float(portrait.effective.max()))
        found.append(tile("Noisy sites", number(len(portrait.noisy)), f"up to {worst} of a site's labels wrong"))
        found.append(tile("Labels wrong", percent(portrait.overall_rate), "in the whole federation"))
    return tag("dl", *found, class_="tiles")


def _range(low: int, high: int) -> str:
    return number(int(low)) if low == high else f"{number(int(low))} to {number(int(high))}"


def _labels(portrait: FederationOverview) -> Markup:
    """What the sites hold and how much of it is wrong, on the same rows."""
    rows = _rows(portrait)
    if len(portrait.classes) > MANY_CLASSES:
        return tag("div", _distribution(portrait, rows), _rates(portrait), class_="wide")
    top = first_row(rows, portrait.classes)
    return tag("div", _distribution(portrait, rows), _rates(portrait, top), class_="columns")


def _rows(portrait: FederationOverview) -> list[MatrixRow]:
    """The sites with their counts; None for a class that a site does not annotate."""
    truth, known = set(portrait.noisy), portrait.confusion is not None
    return [
        MatrixRow(
            site,
            [
                None if portrait.annotated is not None and not portrait.annotated[k, c] else float(count)
                for c, count in enumerate(portrait.counts[k])
            ],
            true=site in truth if known else None,
        )
        for k, site in enumerate(portrait.sites)
    ]


def _distribution(portrait: FederationOverview, rows: Sequence[MatrixRow]) -> Markup:
    marks = "; ◆ a site that is noisy" if portrait.confusion is not None else ""
    if len(rows) <= DOTS_UP_TO and portrait.annotated is None:
        words = f"of each site by class; the area of a dot is the number of samples{marks}"
        drawn = dot_plot("Given labels", rows, portrait.classes)
    else:
        words = f"of each site by class{marks}"
        words += "; hatched: a class that the site does not annotate" if portrait.annotated is not None else ""
        drawn = heat_map("Given labels", rows, portrait.classes)
    return figure(drawn, "Given labels", words)


def _rates(portrait: FederationOverview, top: float = TOP) -> Markup | None:
    if portrait.effective is None or portrait.nominal is None:
        return None
    bars = [
        SiteBar(site, float(portrait.effective[k]), float(portrait.nominal[k]), site in portrait.noisy)
        for k, site in enumerate(portrait.sites)
    ]
    words = "share of each site's labels; tick: the level that was set"
    return figure(bar_figure("Wrong labels", bars, top), "Wrong labels", words)


def _mistaken(portrait: FederationOverview) -> Markup:
    assert portrait.confusion is not None
    totals = portrait.confusion.sum(axis=1)
    columns = ("kept", "lost", "added") if portrait.multilabel else portrait.classes
    rows = [
        MatrixRow(
            name,
            [float(v) / total if total else None for v in portrait.confusion[k]],
            shown=[float(v) for v in portrait.confusion[k]],
        )
        for k, (name, total) in enumerate(zip(portrait.classes, totals))
    ]
    if portrait.multilabel:
        title, words = "Positives of each class", "share kept, lost and added"
    else:
        title, words = "True and given labels", "rows: the true class; columns: the share given each label"
    drawn = figure(heat_map(title, rows, columns, corner="true class"), title, words)
    return tag("div", drawn, class_="wide" if len(portrait.classes) > MANY_CLASSES else "columns")


def _table(portrait: FederationOverview) -> Markup:
    known = portrait.effective is not None and portrait.nominal is not None
    heads = ["site", "samples", "classes", *(["noise level set", "labels wrong"] if known else [])]
    rows: list[list[Any]] = []
    for k, site in enumerate(portrait.sites):
        row: list[Any] = [
            tag("b", site, class_="name", title=site),
            number(int(portrait.sizes[k])),
            number(int((portrait.counts[k] > 0).sum())),
        ]
        if portrait.effective is not None and portrait.nominal is not None:
            row += [percent(float(portrait.nominal[k])), percent(float(portrait.effective[k]))]
        rows.append(row)
    return html_table(heads, rows, kind="sortable", numeric=" nnnn")
