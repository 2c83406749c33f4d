"""A federation on a page before anything is trained: given labels, wrong labels, what was mistaken for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.contract.version import __version__
from fedsift.data.pictures import Portrait
from fedsift.drawing import house_style, saving_script
from fedsift.drawing.document import document
from fedsift.drawing.svg import MANY_CLASSES, Markup, figure, join, tag
from fedsift.report.bars import TOP, Bar, bar_figure
from fedsift.report.matrix import Row, dot_plot, first_row, heat_map
from fedsift.report.page import HATCH, script, tile
from fedsift.report.tables import html_table
from fedsift.runs import number, percent, plural

DOTS_UP_TO = 60
"""With more sites the dots would be specks; then the distribution is a heat map."""


def federation_page(portrait: Portrait, title: str, study_text: str, notes: Sequence[str] = ()) -> str:
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
    return document(title, body, house_style())


def headline(portrait: Portrait) -> str:
    """One sentence: how many samples lie where, and how much of it is wrong."""
    size = f"{plural(int(portrait.sizes.sum()), 'sample')} at {plural(len(portrait.sites), 'site')}"
    if portrait.overall_rate is None:
        return f"{size}; which labels are wrong nobody knows"
    count = len(portrait.noisy)
    if not count:
        return f"{size}, and every label is right" if portrait.overall_rate == 0 else size
    rate = percent(portrait.overall_rate)
    return f"{size}; {count} {'is' if count == 1 else 'are'} noisy, and {rate} of all labels are wrong"


def _tiles(portrait: Portrait) -> Markup:
    sizes = sorted(int(size) for size in portrait.sizes)
    held = (portrait.counts > 0).sum(axis=1)
    found = [
        tile("Sites", number(len(portrait.sites)), f"{_range(sizes[0], sizes[-1])} samples each"),
        tile(
            "Classes", number(len(portrait.classes)), f"{_range(held.min(), held.max())} of them at each site"
        ),
    ]
    if portrait.overall_rate is not None and portrait.effective is not None:
        worst = percent(float(portrait.effective.max()))
        found.append(
            tile("Noisy sites", number(len(portrait.noisy)), f"up to {worst} of a site's labels wrong")
        )
        found.append(tile("Labels wrong", percent(portrait.overall_rate), "in the whole federation"))
    return tag("dl", *found, class_="tiles")


def _range(low: int, high: int) -> str:
    return number(int(low)) if low == high else f"{number(int(low))} to {number(int(high))}"


def _labels(portrait: Portrait) -> Markup:
    """What the sites hold and how much of it is wrong, on the same rows."""
    rows = _rows(portrait)
    if len(portrait.classes) > MANY_CLASSES:
        return tag("div", _distribution(portrait, rows), _rates(portrait), class_="wide")
    top = first_row(rows, portrait.classes)
    return tag("div", _distribution(portrait, rows), _rates(portrait, top), class_="columns")


def _rows(portrait: Portrait) -> list[Row]:
    """The sites with their counts; None for a class that a site does not annotate."""
    truth, known = set(portrait.noisy), portrait.confusion is not None
    return [
        Row(
            site,
            [
                None if portrait.annotated is not None and not portrait.annotated[k, c] else float(count)
                for c, count in enumerate(portrait.counts[k])
            ],
            true=site in truth if known else None,
        )
        for k, site in enumerate(portrait.sites)
    ]


def _distribution(portrait: Portrait, rows: Sequence[Row]) -> Markup:
    marks = "; ◆ a site that is noisy" if portrait.confusion is not None else ""
    if len(rows) <= DOTS_UP_TO and portrait.annotated is None:
        words = f"of each site by class; the area of a dot is the number of samples{marks}"
        drawn = dot_plot("Given labels", rows, portrait.classes)
    else:
        words = f"of each site by class{marks}"
        words += (
            "; hatched: a class that the site does not annotate" if portrait.annotated is not None else ""
        )
        drawn = heat_map("Given labels", rows, portrait.classes)
    return figure(drawn, "Given labels", words)


def _rates(portrait: Portrait, top: float = TOP) -> Markup | None:
    if portrait.effective is None or portrait.nominal is None:
        return None
    bars = [
        Bar(site, float(portrait.effective[k]), float(portrait.nominal[k]), site in portrait.noisy)
        for k, site in enumerate(portrait.sites)
    ]
    words = "share of each site's labels; tick: the level that was set"
    return figure(bar_figure("Wrong labels", bars, top), "Wrong labels", words)


def _mistaken(portrait: Portrait) -> Markup:
    assert portrait.confusion is not None
    totals = portrait.confusion.sum(axis=1)
    columns = ("kept", "lost", "added") if portrait.multilabel else portrait.classes
    rows = [
        Row(
            name,
            [float(v) / total if total else None for v in portrait.confusion[k]],
            told=[float(v) for v in portrait.confusion[k]],
        )
        for k, (name, total) in enumerate(zip(portrait.classes, totals))
    ]
    if portrait.multilabel:
        title, words = "Positives of each class", "share kept, lost and added"
    else:
        title, words = "True and given labels", "rows: the true class; columns: the share given each label"
    drawn = figure(heat_map(title, rows, columns, corner="true class"), title, words)
    return tag("div", drawn, class_="wide" if len(portrait.classes) > MANY_CLASSES else "columns")


def _table(portrait: Portrait) -> Markup:
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
