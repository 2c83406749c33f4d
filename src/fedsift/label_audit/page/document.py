"""The whole document, and the data that its script draws the gallery and the review from."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.version import __version__
from fedsift.drawing import page_style
from fedsift.drawing.document import document
from fedsift.drawing.svg import Markup, data_script, join, tag
from fedsift.label_audit.exports import data_uri
from fedsift.label_audit.label_table import of_split
from fedsift.label_audit.page.sections import confusion, headline, lead, limits, test_warning, tiles
from fedsift.label_audit.review import ReviewPlan
from fedsift.label_audit.site_audit import SiteAudit, Thumbnails
from fedsift.label_audit.verdicts import PAGE_FORMAT

PAGE_LIMIT = 2000
"""Suspects in the gallery; the table has them all."""
TEST_LIMIT = 500


def shown_rows(audit: SiteAudit, plan: ReviewPlan) -> tuple[list[int], list[int], list[int], list[int]]:
    """Row numbers of the gallery (without blind samples), of the flagged test samples, of the queue, and of what
    verdicts have taken off the list: somebody may have judged it in the browser and not yet saved it."""
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
    return files("fedsift.label_audit.page").joinpath(name).read_text("utf-8")


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
                f"that tells how good the list is: please read it to its end.{more} Given labels are ",
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
