"""What a site releases of its audit (`SiteRow`, small counts withheld), and the consortium's table and page of that."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.files import write_private
from fedsift.core.numbers import plain
from fedsift.core.process import file_lock
from fedsift.core.text import csv_text, visible
from fedsift.core.version import __version__
from fedsift.drawing import page_style
from fedsift.drawing.svg import (
    HALF,
    Markup,
    Scale,
    clipped,
    document,
    empty,
    figure,
    join,
    label,
    line,
    picture,
    tag,
    text_width,
    ticks,
)
from fedsift.label_audit.label_table import number
from fedsift.label_audit.page import percent
from fedsift.label_audit.site_audit import AuditFinding, SiteAudit, WrongShare

COLUMNS = (
    "site",
    "samples",
    "flagged",
    "rate",
    "rate_low",
    "rate_high",
    "wrong_labels",
    "false_alarm_rate",
    "review",
    "min_count",
)
ROW = 24.0
NAME = 26
MOST_PAIRS = 20


@dataclass(frozen=True)
class Confusion:
    """The sites' shown cells added up. shown: `[K, K]`; withheld: `[K]`, what sites lumped of that class."""

    classes: tuple[str, ...]
    shown: NDArray[np.int64]
    withheld: NDArray[np.int64]
    lumped: int
    """What sites lumped over whole rows."""


def federation_confusion(rows: Sequence[SiteRow]) -> Confusion | None:
    """None for multi-label data, whose rows are no pairs of classes; all sites must name the same classes."""
    if not rows:
        return None
    classes = rows[0].classes
    other = next((row for row in rows if row.classes != classes), None)
    if other is not None:
        raise DataError(f"site '{other.site}' has other classes than site '{rows[0].site}', so they cannot be added up")
    k = len(classes)
    if any(len(cells) != k for row in rows for cells in row.agreement.cells):
        return None
    shown = np.array([[[cell or 0 for cell in cells] for cells in row.agreement.cells] for row in rows], np.int64)
    withheld = np.array([[part or 0 for part in row.agreement.remainders] for row in rows], np.int64)
    lumped = sum(row.agreement.remainder or 0 for row in rows)
    return Confusion(classes, shown.sum(axis=0).reshape(k, k), withheld.sum(axis=0), lumped)


def consortium_csv(rows: Sequence[SiteRow]) -> str:
    """A row a site; an empty cell is one that the site's minimum count withholds."""
    lines = []
    for row in rows:
        rate, found = row.rate, row.finding
        shares = ["", "", ""] if rate is None else [number(x) for x in (rate.estimate, rate.low, rate.high)]
        answer = ["", "", ""]
        if found is not None:
            answer = [str(found.wrong_labels), f"{found.false_alarm_rate:g}", found.review]
        counts = ["" if count is None else count for count in (row.samples, row.flagged)]
        lines.append([row.site, *counts, *shares, *answer, row.min_count])
    return csv_text(COLUMNS, lines)


def consortium_page(rows: Sequence[SiteRow]) -> str:
    """One file without script or network."""
    noisy = [row for row in rows if row.finding is not None and row.finding.wrong_labels]
    title = f"Evidence of wrong labels at {len(noisy)} of {len(rows)} site{'' if len(rows) == 1 else 's'}"
    style = page_style() + _STYLE
    found = federation_confusion(rows)
    body = join(
        [
            tag(
                "header",
                tag("p", "Label audit · for the consortium", class_="eyebrow"),
                tag("h1", title),
                tag(
                    "p",
                    "Every figure was released by its site; counts below a site's minimum count are not shown.",
                    class_="lead",
                ),
            ),
            tag("section", tag("h2", "Share of wrong labels by site"), _rates(rows), _table(rows)),
            tag("section", tag("h2", "Who is mistaken for whom"), _pairs(found)) if found is not None else None,
            tag(
                "footer",
                f"fedsift {__version__} · if all sites are wrong in the same way, no audit can see it",
            ),
        ]
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return document(title, body, style, policy=policy)


_STYLE = (
    ".whisker{stroke:var(--soft);stroke-width:2}.point.calm{fill:var(--s0)}.point.loud{fill:var(--loud)}"
    "svg text.name{fill:var(--ink)}"
    "@media screen and (max-width:860px){.plot svg{min-width:520px}td.answer{min-width:15em}}"
)


def _rates(rows: Sequence[SiteRow]) -> Markup:
    """A point and its interval for every site; squares in another colour where there are wrong labels."""
    shown = [row for row in rows if row.rate is not None]
    if not shown:
        return tag("p", "Every site is below its minimum count: no share is shown.", class_="note")
    left = max(text_width(clipped(visible(row.site), NAME), 12) for row in shown) + 14
    most = max(row.rate.high for row in shown if row.rate is not None)
    marks = ticks(0.0, max(0.02, most))
    scale = Scale(0.0, marks[-1], left, HALF - 60.0)
    bottom = 22 + ROW * len(shown)
    parts = [
        join([line(scale(x), 16, scale(x), bottom, "grid"), label(scale(x), 12, percent(x), "middle")]) for x in marks
    ]
    for k, row in enumerate(shown):
        assert row.rate is not None
        y = 22 + ROW * (k + 0.5)
        loud = row.finding is not None and row.finding.wrong_labels
        parts += [
            label(left - 8, y + 4, clipped(visible(row.site), NAME), "end", "name"),
            line(scale(row.rate.low), y, scale(row.rate.high), y, "whisker"),
        ]
        if math.isnan(row.rate.estimate):
            continue
        x = scale(row.rate.estimate)
        parts.append(
            empty("rect", x=x - 5, y=y - 5, width=10, height=10, class_="point loud")
            if loud
            else empty("circle", cx=x, cy=y, r=5, class_="point calm")
        )
    drawing = tag("div", picture(HALF, bottom + 6, "Share of wrong labels by site", *parts), class_="plot")
    return figure(
        drawing,
        "Estimate and interval",
        "a square where there is evidence of wrong labels, a circle where there is none; neither where the number is "
        "below the site's minimum count",
    )


def _answer(row: SiteRow) -> str:
    if row.finding is None:
        return "below its minimum count"
    return row.finding.words(WrongShare(math.nan, 0.0, 1.0) if row.rate is None else row.rate)


def _table(rows: Sequence[SiteRow]) -> Markup:
    names = ("site", "labels", "on its list", "probably wrong", "interval", "answer")
    head = tag(
        "thead",
        tag("tr", *(tag("th", name, class_="n" if 0 < k < 5 else None) for k, name in enumerate(names))),
    )
    lines = []
    for row in rows:
        rate = row.rate
        untold = rate is None or math.isnan(rate.estimate)
        lines.append(
            tag(
                "tr",
                tag("td", tag("bdi", row.site)),
                *(
                    tag("td", "withheld" if count is None else f"{count:,}", class_="n")
                    for count in (row.samples, row.flagged)
                ),
                tag("td", "withheld" if rate is None or untold else percent(rate.estimate), class_="n"),
                tag("td", "" if rate is None else f"{percent(rate.low)} to {percent(rate.high)}", class_="n"),
                tag("td", _answer(row), class_="answer"),
            )
        )
    return tag("div", tag("table", head, tag("tbody", *lines)), class_="scroll tall")


def _pairs(found: Confusion) -> Markup:
    off = found.shown.copy()
    np.fill_diagonal(off, 0)
    lines = []
    for place in np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]:
        r, c = divmod(int(place), off.shape[1])
        if off[r, c]:
            names = (tag("td", tag("bdi", found.classes[k])) for k in (r, c))
            lines.append(tag("tr", *names, tag("td", f"{off[r, c]:,}", class_="n")))
    hidden = int(found.withheld.sum()) + found.lumped
    note = tag(
        "p",
        f"{hidden:,} labels lie in cells that sites lumped together, so pairs can be more frequent than shown.",
        class_="note",
    )
    if not lines:
        return join([tag("p", "No site reported a pair of classes that reaches its minimum count."), note])
    head = tag(
        "thead",
        tag("tr", tag("th", "given"), tag("th", "probably"), tag("th", "labels, at least", class_="n")),
    )
    return join([tag("div", tag("table", head, tag("tbody", *lines)), class_="scroll"), note])


PAGE, TABLE, ROWS = "consortium.html", "consortium.csv", "consortium.json"


def write_consortium(out: Path, rows: Sequence[SiteRow]) -> list[Path]:
    """`consortium.csv`, `consortium.json` and `consortium.html` in the audit's folder."""
    out.mkdir(parents=True, exist_ok=True)
    return [
        write_private(out / TABLE, consortium_csv(rows)),
        write_private(out / ROWS, json.dumps([plain(row) for row in rows], indent=2) + "\n"),
        write_private(out / PAGE, consortium_page(rows)),
    ]


def with_review(row: SiteRow, review: str) -> SiteRow:
    """The row of a site whose review decided: the answer, and that the interval begins at zero or does not."""
    if not review or row.finding is None or row.finding.review == review:
        return row
    finding = row.finding.settled(review)
    rate = row.rate
    if rate is not None and finding.stated:
        rate = rate.at_stated_rate(finding.wrong_labels, row.samples or 1)
    return replace(row, finding=finding, rate=rate)


def release_review(out: Path, site: str, review: str) -> list[Path]:
    """What a review decided, in the consortium's files where they lie beside the site's (an audit on one machine)."""
    if not (out / ROWS).is_file():
        return []
    with file_lock(out / f".{ROWS}.lock"):
        rows = [_row(line) for line in json.loads((out / ROWS).read_text("utf-8"))]
        return write_consortium(out, [with_review(row, review) if row.site == site else row for row in rows])


def _row(line: dict[str, Any]) -> SiteRow:
    """A row as `consortium.json` has it; an estimate that is withheld is None there."""
    rate, finding, counts = line["rate"], line["finding"], line["agreement"]
    if rate is not None and rate["estimate"] is None:
        rate = {**rate, "estimate": math.nan}
    cells = tuple(tuple(row) for row in counts["cells"])
    agreement = CensoredCounts(cells, tuple(counts["remainders"]), counts["remainder"], counts["lumped_by"])
    made = {
        "rate": None if rate is None else WrongShare(**rate),
        "finding": None if finding is None else AuditFinding(**finding),
        "classes": tuple(line["classes"]),
        "agreement": agreement,
    }
    return SiteRow(**{**line, **made})


def remove_consortium(out: Path) -> None:
    """For an audit that releases nothing, where an earlier one did."""
    for name in (PAGE, TABLE, ROWS):
        (out / name).unlink(missing_ok=True)


# What the consortium gets of a site
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CensoredCounts:
    """Counts after small cells were taken out. A cell is None where it went into its row's remainder."""

    cells: tuple[tuple[int | None, ...], ...]
    """`[R][C]`."""
    remainders: tuple[int | None, ...]
    """`[R]`: what the row's withheld cells add up to; None where the whole row went into `remainder`."""
    remainder: int | None
    """What the rows that are withheld as a whole add up to; None where even that is below the minimum count."""
    lumped_by: str = "given"
    """Which class of a pair the remainders are of: the rows' ("given"), or the columns' ("probable")."""


def withhold(counts: NDArray[np.int64], min_count: int) -> CensoredCounts:
    """Cells below the minimum count leave in lumps only, and every lump reaches the minimum count.

    A row's small cells (zeros too: "nobody" is a count) become its remainder. A remainder that is itself below the
    minimum count takes the row's smallest shown cells with it until it is not, because a reader who knows the row's sum
    could take the shown cells away from it. A row that is too small as a whole goes into the site's remainder, which
    takes further rows with it in the same way.
    """
    shown = [[int(value) >= min_count for value in row] for row in counts]
    for row, keep in zip(counts, shown):
        while not all(keep) and _hidden(row, keep) < min_count and any(keep):
            keep[min((c for c in range(len(keep)) if keep[c]), key=lambda c: int(row[c]))] = False
    whole = [int(row.sum()) < min_count for row in counts]
    while any(whole) and sum(int(counts[r].sum()) for r in np.flatnonzero(whole)) < min_count and not all(whole):
        whole[min((r for r in range(len(whole)) if not whole[r]), key=lambda r: int(counts[r].sum()))] = True
    lump = sum(int(counts[r].sum()) for r in np.flatnonzero(whole))
    cells = tuple(
        tuple(int(v) if k and not hidden else None for v, k in zip(row, keep))
        for row, keep, hidden in zip(counts, shown, whole)
    )
    remainders = tuple(None if hidden else _hidden(row, keep) for row, keep, hidden in zip(counts, shown, whole))
    return CensoredCounts(cells, remainders, (lump if lump >= min_count else None) if any(whole) else 0)


def _hidden(row: NDArray[np.int64], keep: list[bool]) -> int:
    return int(sum(int(value) for value, shown in zip(row, keep) if not shown))


@dataclass(frozen=True)
class SiteRow:
    """A site's row in the consortium's table: all that leaves it."""

    site: str
    samples: int | None
    """Training samples; None below the minimum count."""
    flagged: int | None
    """Of them on the list of suspects; None where it, or the number of the others, is below the minimum count."""
    rate: WrongShare | None
    """Estimated share of wrong labels; None for a site below the minimum count, and NaN as its estimate where only the
    interval is reported, since so few labels are wrong, or right, though not none, that the number is below the minimum
    count."""
    finding: AuditFinding | None
    classes: tuple[str, ...]
    agreement: CensoredCounts
    """Row: given class, column: probably true class; multi-label as in `SiteAudit.agreement`."""
    min_count: int
    method: str


def release(audit: SiteAudit, min_count: int | None = None) -> SiteRow:
    """The row that a site hands out, with its own minimum count: what the models alone said, and of people's verdicts
    what they decided and nothing else, as the difference of two releases would tell what a few verdicts changed."""
    review, audit = audit.finding.review, audit.as_made
    if review:
        audit = replace(audit, finding=audit.finding.settled(review))
    least = audit.min_count if min_count is None else min_count
    train = ~audit.is_test
    samples, flagged = int(train.sum()), int(audit.flagged[train].sum())
    enough = samples >= least
    both = flagged >= least and samples - flagged >= least
    return SiteRow(
        site=audit.site,
        samples=samples if enough else None,
        flagged=flagged if both else None,
        rate=_released_share(audit, samples, least) if enough else None,
        finding=audit.finding if enough else None,
        classes=audit.classes,
        agreement=withhold(audit.agreement, least),
        min_count=least,
        method=audit.evidence.method,
    )


def _released_share(audit: SiteAudit, samples: int, min_count: int) -> WrongShare:
    """The rate as the last reply reports it: a share of few labels would disclose the count that the minimum count
    withholds."""
    from fedsift.detection.label_rates import SiteRate
    from fedsift.formulas.small_counts import WITHHELD
    from fedsift.label_audit.messages import released_rate

    labels = max(samples * audit.asked, 1)
    wrong, low, high = (round(share * labels) for share in (audit.rate.estimate, audit.rate.low, audit.rate.high))
    released = released_rate(SiteRate(labels, wrong, low, high, audit.finding.wrong_labels), min_count)
    estimate = math.nan if released.wrong == WITHHELD else released.wrong / labels
    rate = replace(audit.rate, estimate=estimate, low=released.low / labels, high=released.high / labels)
    return rate.at_stated_rate(audit.finding.wrong_labels, labels) if audit.finding.stated else rate
