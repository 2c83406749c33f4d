"""A site's audit page `report.html`: headline, confusion, gallery of suspects and the review in the browser."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.text import visible
from fedsift.core.version import __version__
from fedsift.data.dataset import Rows
from fedsift.data.sources.base import Source
from fedsift.data.sources.table import ShownFeature, TableSource
from fedsift.drawing import page_style
from fedsift.drawing.svg import (
    FULL,
    HALF,
    Markup,
    clipped,
    data_script,
    document,
    empty,
    figure,
    join,
    label,
    picture,
    tag,
    text_width,
)
from fedsift.formulas.intervals import MOST_READER_ERROR
from fedsift.label_audit.exports import data_uri
from fedsift.label_audit.label_table import of_split
from fedsift.label_audit.review import ReviewPlan
from fedsift.label_audit.site_audit import NOTHING, UNCLEAR, SiteAudit, Thumbnails
from fedsift.label_audit.verdicts import PAGE_FORMAT

PAGE_LIMIT = 2000
"""Suspects in the gallery; the table has them all."""
TEST_LIMIT = 500


def shown_rows(audit: SiteAudit, plan: ReviewPlan) -> tuple[list[int], list[int], list[int], list[int]]:
    """Row numbers of the gallery (without blind samples), of the flagged test samples, of the queue, and of what
    verdicts have taken off the list: a reader may have judged it in the browser and not yet saved it."""
    rows = audit.row_of
    blind = {rows[item.id] for item in plan.items if item.blind}
    train, test = _flagged(audit, test=False), _flagged(audit, test=True)
    suspects = [int(k) for k in train if int(k) not in blind][:PAGE_LIMIT]
    queue = [rows[item.id] for item in plan.items]
    off = [int(k) for k in _flagged(audit.as_made, test=False) if int(k) not in blind and not audit.flagged[k]]
    return suspects, [int(k) for k in test[:TEST_LIMIT]], queue, off[:PAGE_LIMIT]


def _flagged(audit: SiteAudit, *, test: bool) -> NDArray[np.int64]:
    order = of_split(audit, test=test)
    return order[audit.flagged[order]]


def page_data(audit: SiteAudit, plan: ReviewPlan, thumbnails: Thumbnails | None) -> dict[str, Any]:
    """What the script needs. Of a blind sample it holds neither proposal nor probability, reason or rank."""
    suspects, test, queue, off = shown_rows(audit, plan)
    blind = {item.id for item in plan.items if item.blind}
    place = {row: number for number, row in enumerate(queue)}
    # the gallery comes first, worst first; what only the queue holds follows in the queue's order
    order = list(dict.fromkeys((*suspects, *test, *queue, *off)))
    items = [_item(audit, k, audit.ids[k] in blind, place.get(k), thumbnails) for k in order]
    gone = set(off)
    for k, item in zip(order, items):
        if k in gone:
            item["off"] = True
    return {
        "format": PAGE_FORMAT,
        "site": audit.site,
        "audit": audit.fingerprint(),
        "classes": list(audit.classes),
        "multilabel": audit.multilabel,
        "suspects": len(suspects),
        "items": items,
    }


def _item(audit: SiteAudit, k: int, blind: bool, queue: int | None, thumbnails: Thumbnails | None) -> dict[str, Any]:
    item: dict[str, Any] = {"id": audit.ids[k], "given": _numbers(audit, audit.given, k)}
    if audit.paths[k]:
        item["path"] = audit.paths[k]
    picture = data_uri(thumbnails(k) if thumbnails is not None else None)
    if picture:
        item["picture"] = picture
    if queue is not None:
        item["queue"] = queue
    if audit.is_test[k]:
        item["test"] = True
    if blind:
        return {**item, "blind": True}
    item["proposed"] = _numbers(audit, audit.proposed, k)
    item["wrong"] = round(float(audit.probability_wrong[k]), 4)
    item["flagged"] = bool(audit.flagged[k])
    if audit.reason[k]:
        item["reason"] = audit.reason[k]
    return item


def _numbers(audit: SiteAudit, labels: NDArray[np.int64], k: int) -> list[int]:
    return [int(c) for c in np.flatnonzero(labels[k])] if audit.multilabel else [int(labels[k])]


def render(audit: SiteAudit, plan: ReviewPlan, thumbnails: Thumbnails | None = None) -> str:
    """The page as text."""
    data = page_data(audit, plan, thumbnails)
    listed, test = _flagged(audit, test=False), len(_flagged(audit, test=True))
    unseen = {item.id for item in plan.items if item.blind}
    flagged, blind = len(listed), sum(audit.ids[k] in unseen for k in listed)
    script, style = _asset("kept.js") + _asset("review.js"), f"{page_style()}{_asset('review.css')}"
    found = confusion(audit)
    body = join(
        [
            tag(
                "header",
                tag("p", "Private · stays at site ", tag("bdi", audit.site), class_="eyebrow"),
                tag("h1", headline(audit)),
                tag("p", lead(audit), class_="lead"),
                *(tag("p", note, class_="alert") for note in audit.notes),
                tiles(audit),
            ),
            tag(
                "main",
                tag(
                    "section",
                    tag("h2", "Which entries are wrong" if audit.multilabel else "Who is mistaken for whom"),
                    found,
                    id="confusion",
                )
                if found
                else None,
                tag(
                    "section",
                    tag("h2", "The labels to look at"),
                    _gallery(audit, flagged, blind, test),
                    id="gallery",
                ),
                tag("section", tag("h2", "What this page cannot know"), limits(audit), id="limits"),
            ),
            _review(audit),
            tag("footer", _footer(audit)),
            Markup(data_script(data).replace("<script ", '<script id="data" ', 1)),
            Markup(f"<script>{script}</script>"),
        ]
    )
    private = Markup('<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">')
    title = f"Labels of {audit.site}"
    return document(title, body, style, policy=_policy(script, style), more=private)


def _policy(script: str, style: str) -> str:
    """Nothing may be fetched or sent, and no code runs but the page's own."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return files("fedsift.label_audit").joinpath(name).read_text("utf-8")


def _gallery(audit: SiteAudit, flagged: int, blind: int, test: int) -> Markup:
    more = f" The worst {PAGE_LIMIT:,} of {flagged:,} are here; labels.csv has all." if flagged > PAGE_LIMIT else ""
    if blind:
        more += f" {blind:,} {'suspect is' if blind == 1 else 'suspects are'} in the queue only, without the proposal."
    given, proposed = ("Given", "Proposed") if not audit.multilabel else ("Taken away", "Added")
    return join(
        [
            tag(
                "p",
                "Worst first. Open a picture to review it with the keyboard. The review queue is a random draw "
                f"that shows how good the list is: please read it to its end.{more} Given labels are ",
                tag("span", "solid", class_="chip given"),
                ", proposals ",
                tag("span", "dashed", class_="chip proposed"),
                "; the bar is the probability that the given label is wrong.",
            ),
            tag(
                "div",
                tag("div", id="views", role="group", aria_label="What is shown", class_="views"),
                _select("given", given, "every class"),
                _select("proposed", proposed, "every class"),
                _select("state", "Verdict", "all"),
                class_="bar",
            ),
            test_warning(test),
            tag(
                "div",
                tag("button", "Review these", id="start", type="button", class_="main"),
                tag("span", id="count", role="status"),
                tag("span", class_="gap"),
                tag(
                    "label",
                    "Reader ",
                    tag("input", id="reader", type="text", maxlength=80, autocomplete="off"),
                ),
                tag("button", "Save verdicts", id="save", type="button"),
                tag("button", "Load", id="load", type="button"),
                Markup('<input id="file" type="file" accept=".json,application/json" hidden>'),
                class_="bar tools",
            ),
            tag("p", id="notice", role="status", class_="notice", hidden=""),
            tag("div", id="cards", class_="cards"),
            tag("div", id="more"),
            tag(
                "noscript",
                tag("p", "The gallery needs JavaScript; labels.csv holds the same list.", class_="alert"),
            ),
        ]
    )


def _select(name: str, words: str, first: str) -> Markup:
    choose = tag("select", tag("option", first, value=""), id=f"filter-{name}")
    return tag("label", tag("span", words), choose, class_="filter")


def _review(audit: SiteAudit) -> Markup:
    """The panel in which one sample at a time is judged; the script fills it."""
    keys = [
        ("given", "1", "Given is right"),
        ("proposal", "2", "Proposal is right"),
        ("other", "3", "Another class…"),
    ]
    keys += [] if audit.multilabel else [("both", "4", "Both are right")]
    keys += [("cannot tell", "5", "Cannot tell")]
    buttons = [
        tag("button", tag("kbd", key), tag("span", words), type="button", data_decision=decision)
        for decision, key, words in keys
    ]
    return tag(
        "dialog",
        tag(
            "div",
            tag("strong", id="place"),
            tag("span", tag("i", id="progress"), class_="meter"),
            tag("button", "Close", id="close", type="button"),
            class_="panel-head",
        ),
        tag(
            "div",
            tag("div", id="picture", class_="picture"),
            tag("div", id="facts", class_="about"),
            class_="panel-body",
        ),
        tag("div", *buttons, id="decisions", class_="decisions"),
        tag("div", id="others", class_="others", hidden=""),
        tag(
            "div",
            tag("button", "← Back", id="back", type="button"),
            tag("button", "Next →", id="next", type="button"),
            tag("button", "Undo", id="undo", type="button"),
            tag("span", "keys: 1-5, ← →, U undo, Esc close", class_="note"),
            class_="panel-foot",
        ),
        id="review",
        aria_label="Review",
    )


def _footer(audit: SiteAudit) -> str:
    source = audit.evidence
    parts = [
        f"fedsift {__version__}",
        source.method,
        f"round {source.round}" if source.round is not None else "",
    ]
    parts += [f"model {source.model[:12]}" if source.model else "", f"audit {audit.fingerprint()}"]
    return joined_words([*parts, "this file needs no network; it shows private data, so do not pass it on"])


def joined_words(parts: list[str]) -> str:
    return " · ".join(part for part in parts if part)


__all__ = ["PAGE_LIMIT", "page_data", "render", "shown_rows"]


# Parts that need no script
# ------------------------------------------------------------------------------


LEVELS = 16
"""Shades of the style sheet, q0 to q15."""
NAME = 18
MOST_CLASSES = 40
"""Larger matrices are unreadable; the table of pairs remains."""
MOST_PAIRS = 12


def headline(audit: SiteAudit) -> str:
    n = int((~audit.is_test).sum()) * audit.asked
    if n == 0:
        return "No training labels were audited"
    if audit.finding.review:
        return f"{audit.finding.review.capitalize()}: {audit.finding.bound} of {count(n, 'label')} are wrong"
    if not audit.finding.stated:
        samples, listed = int((~audit.is_test).sum()), int(audit.flagged[~audit.is_test].sum())
        return f"{listed:,} of {count(samples, 'sample')} {'is' if listed == 1 else 'are'} on the list"
    answer = audit.finding.answer(audit.rate)
    if answer == UNCLEAR:
        return f"Whether wrong labels are among {count(n, 'label')} cannot be told"
    if answer == NOTHING:
        return f"No evidence of wrong labels among {count(n, 'label')}"
    low, middle, high = (round(n * share) for share in (audit.rate.low, audit.rate.estimate, audit.rate.high))
    verb = "is" if middle == 1 else "are"
    return f"About {middle:,} of {count(n, 'label')} {verb} probably wrong (between {low:,} and {high:,})"


def count(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def percent(share: float) -> str:
    if math.isnan(share):
        return "–"
    if 0 < share < 0.0005:
        return "<0.1\u00a0%"  # only zero is shown as 0
    return f"{100 * share:.1f}\u00a0%" if share < 0.1 else f"{100 * share:.0f}\u00a0%"


def tiles(audit: SiteAudit) -> Markup:
    train = ~audit.is_test
    n, flagged = int(train.sum()), int(audit.flagged[train].sum())
    changed = audit.proposed != audit.given
    proposals = int(((changed.any(axis=1) if audit.multilabel else changed) & train & audit.flagged).sum())
    rate = audit.rate
    found = [
        (
            "Probably wrong",
            percent(rate.estimate),
            f"{percent(rate.low)} to {percent(rate.high)} at {percent(rate.level)} confidence"
            if audit.finding.stated
            else "no interval is claimed",
        ),
        (
            "On the list",
            f"{flagged:,}",
            f"of {count(n, 'training sample' if audit.multilabel else 'training label')}",
        ),
        (
            "With a proposal",
            f"{proposals:,}",
            _of_the_list(proposals, flagged),
        ),
    ]
    test = int((audit.is_test & audit.flagged).sum())
    if audit.is_test.any():
        found.append(("Test samples on a list", f"{test:,}", f"of {int(audit.is_test.sum()):,}, listed apart"))
    found.append(("Reviewed", "0", "in this browser"))
    parts = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", value, class_="value", id="tile-reviewed" if name == "Reviewed" else None),
            tag("dd", under, class_="under"),
        )
        for name, value, under in found
    ]
    return tag("dl", *parts, class_="tiles")


def _of_the_list(proposals: int, flagged: int) -> str:
    if not flagged:
        return "nothing is on the list"
    return "all of them" if proposals == flagged else "the others need another look, too"


def lead(audit: SiteAudit) -> str:
    rate = audit.finding.rate_words
    if audit.finding.review:
        return (
            "People read a random sample of the site's labels, and that decided, whatever the model says. It is wrong "
            "in at most 5\u00a0% of sites, however often one looks, if readers err on their own and in at most "
            f"{100 * MOST_READER_ERROR:g}\u00a0%. The figures below are the model's."
        )
    if not audit.finding.stated:
        return "By a method's own evidence, at no stated rate of false alarms. Reviewing the queue shows more."
    if audit.finding.wrong_labels:
        return f"Evidence of wrong labels. False alarms: {rate}."
    if audit.finding.answer(audit.rate) == UNCLEAR:
        return (
            "The model disagrees with many labels, and the labels may be right all the same: the pictures may be hard "
            "for it, or it saw too few to be trusted. Review a random sample: `fedsift review plan --until-decided`."
        )
    return f"False alarms: {rate}. Reviewing the queue shows more."


def confusion(audit: SiteAudit) -> Markup | None:
    """The matrix and the commonest pairs; for multi-label data the entries of every class."""
    if audit.agreement.sum() == 0:
        return None
    if audit.multilabel:
        return figure(
            _entries(audit), "Entries by class", "missing: given 0, probably 1; too many: given 1, probably 0"
        )
    pairs = _pairs(audit)
    if len(audit.classes) > MOST_CLASSES:
        return pairs
    return tag("div", _matrix(audit), pairs, class_="columns" if len(audit.classes) <= 12 else "wide")


def _matrix(audit: SiteAudit) -> Markup:
    """Row: given, column: probably true. Shades are for the mistakes; the diagonal is the rest."""
    names, counts = audit.classes, audit.agreement
    k = len(names)
    width = HALF if k <= 12 else FULL
    longest = max(text_width(clipped(visible(name), NAME), 12) for name in names)
    left, top = longest + 24, longest * 0.87 + 34
    cell = min(46.0, (width - left - 0.5 * longest - 6) / k)
    off = counts * (1 - np.eye(k, dtype=np.int64))
    most = max(1, int(off.max())) if k > 1 else 1
    parts = [label(left + cell * k / 2, 12, "probably", "middle"), label(2, top - 6, "given")]
    for r, name in enumerate(names):
        y = top + r * cell
        parts.append(label(left - 6, y + cell / 2 + 4, clipped(visible(name), NAME), "end", "name"))
        x = left + r * cell
        parts.append(label(x + cell / 2 + 3, top - 5, clipped(visible(name), NAME), "start", "name", -60.0))
        for c, other in enumerate(names):
            parts.append(_cell(left + c * cell, y, cell, int(counts[r, c]), most, r, c, visible(f"{name} → {other}")))
    drawing = picture(width, top + k * cell + 6, "Given class by probable class", *parts)
    return figure(
        tag("div", drawing, class_="plot matrix"),
        "Given against probable class",
        "choose a cell to see its samples",
    )


def _cell(x: float, y: float, size: float, n: int, most: int, r: int, c: int, words: str) -> Markup:
    mistakes = r != c
    level = min(LEVELS - 1, math.ceil(n / most * (LEVELS - 1))) if mistakes else 0
    shade = f"q{level}" if mistakes and n else "calm" if mistakes else "right"
    kind = ("low", "middle", "high")[max(0, level // 4 - 1)] if level else "low"
    gap = 1.0 if size >= 9 else 0.0
    number = label(x + size / 2, y + size / 2 + 4, f"{n:,}", "middle", kind) if size >= 20 and n else None
    return tag(
        "g",
        tag("title", f"{words}: {n:,}"),
        empty("rect", x=x, y=y, width=size - gap, height=size - gap, class_=shade),
        number,
        class_="cell numbers",
        role="button" if mistakes and n else None,
        tabindex=0 if mistakes and n else None,
        data_given=r,
        data_proposed=c,
    )


def _pairs(audit: SiteAudit) -> Markup:
    off = audit.agreement.copy()
    np.fill_diagonal(off, 0)
    given = audit.agreement.sum(axis=1)
    order = np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]
    rows = []
    for place in order:
        r, c = divmod(int(place), off.shape[1])
        if off[r, c] == 0:
            break
        button = tag("button", "show", type="button", data_given=r, data_proposed=c, class_="pair")
        rows.append(
            tag(
                "tr",
                tag("td", tag("bdi", audit.classes[r]), class_="was"),
                tag("td", tag("bdi", audit.classes[c]), class_="is"),
                tag("td", f"{off[r, c]:,}", class_="n"),
                tag("td", percent(off[r, c] / given[r]), class_="n"),
                tag("td", button, class_="screen"),
            )
        )
    if not rows:
        return tag("p", "No class is mistaken for another.", class_="note")
    head = tag(
        "thead",
        tag(
            "tr",
            tag("th", "given"),
            tag("th", "probably"),
            tag("th", "labels", class_="n"),
            tag("th", "of the given", class_="n"),
            tag("th", class_="screen"),
        ),
    )
    table = tag("div", tag("table", head, tag("tbody", *rows)), class_="scroll")
    return figure(table, "The commonest mistakes")


def _entries(audit: SiteAudit) -> Markup:
    """Multi-label: for every class the entries that are probably missing and those that are too many."""
    left = max(text_width(clipped(visible(name), 28), 12) for name in audit.classes) + 14
    row, width = 22.0, float(FULL)
    missing, surplus = audit.agreement[:, 1], audit.agreement[:, 2]
    most = max(1, int(missing.max()), int(surplus.max()))
    room = (width - left - 70) / 2
    middle = left + room + 30
    parts = [label(middle - 8, 12, "missing", "end"), label(middle + 8, 12, "too many")]
    for c, name in enumerate(audit.classes):
        y = 22 + c * row
        lacks, extra = room * missing[c] / most, room * surplus[c] / most
        parts += [
            label(left - 8, y + 14, clipped(visible(name), 28), "end", "name"),
            empty(
                "rect",
                x=float(middle - 2 - lacks),
                y=y + 2,
                width=float(lacks),
                height=row - 6,
                class_="bar-missing",
            ),
            empty("rect", x=float(middle + 2), y=y + 2, width=float(extra), height=row - 6, class_="bar-surplus"),
            label(middle - 7 - lacks, y + 14, f"{missing[c]:,}", "end"),
            label(middle + 7 + extra, y + 14, f"{surplus[c]:,}"),
        ]
    return tag(
        "div",
        picture(width, 26 + row * len(audit.classes), "Wrong entries by class", *parts),
        class_="plot wide-plot",
    )


def test_warning(test: int) -> Markup | None:
    if not test:
        return None
    words = (
        f"{count(test, 'test sample')} may be labelled wrongly, too. They are listed apart: correcting a test set "
        "changes what is measured, so results before and after cannot be compared, and a model that helped to clean "
        "its own test set looks better than it is."
    )
    return tag("p", words, id="test-warning", class_="alert", hidden="")


def limits(audit: SiteAudit) -> Markup:
    rate = 100 * audit.finding.false_alarm_rate
    points = [
        "The probabilities come from a model that learned from other labels. If everybody is wrong in the same way, no "
        "method can see it; only review by people can.",
        "A picture between two classes with either label is not an error. Say “both are right” or “cannot tell”.",
        f"Of sites without any wrong label at most {rate:g} % were reported to have some under nearly all measured "
        "conditions. Where pictures differ much from other sites' (natural places of HAM10000) it was more.",
        "Labels that are not on the list can be wrong as well: the random part of the review queue shows how many.",
    ]
    return join([tag("ul", *(tag("li", text) for text in points), class_="absent")])


# Cards of samples that are no pictures
# ------------------------------------------------------------------------------


SIDE, MOST = 240, 6
"""Width and height of a card, and how many features it has room for."""
FARTHEST = 4.0
"""Deviations at which a bar ends."""
NAMED, WRITTEN = 22, 11
"""Characters of a feature's name and of its value."""
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
