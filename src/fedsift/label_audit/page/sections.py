"""The parts of the page that need no script: headline, figures, who is mistaken for whom, limits."""

from __future__ import annotations

import math

import numpy as np

from fedsift.core.text import visible
from fedsift.drawing.svg import (
    FULL,
    HALF,
    Markup,
    clipped,
    empty,
    figure,
    join,
    label,
    picture,
    tag,
    text_width,
)
from fedsift.label_audit.site_audit import SiteAudit

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
    if not audit.finding.stated:
        samples, listed = int((~audit.is_test).sum()), int(audit.flagged[~audit.is_test].sum())
        return f"{listed:,} of {count(samples, 'sample')} {'is' if listed == 1 else 'are'} on the list"
    if not audit.finding.wrong_labels:
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
        return "<0.1\u00a0%"  # nothing but none is told as 0
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
    rate = f"{100 * audit.finding.false_alarm_rate:g}\u00a0%"
    if not audit.finding.stated:
        return "By a method's own evidence, at no stated rate of false alarms. The review queue can tell more."
    if audit.finding.wrong_labels:
        return f"Evidence of wrong labels, at a false-alarm rate of {rate}."
    return f"Said at a false-alarm rate of {rate}. The review queue can tell more."


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
        f"Of sites without any wrong label about {rate:g} % would be told that they have some.",
        "Labels that are not on the list can be wrong as well: the random part of the review queue tells how many.",
    ]
    return join([tag("ul", *(tag("li", text) for text in points), class_="absent")])
