"""HTML tables of a report: sites, stages, refusals, what left the sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.drawing.svg import Markup, join, tag
from fedsift.report.disclosure import declared_by_stage, disclosures
from fedsift.report.words import verdict
from fedsift.runs import RunData, duration, number, percent, size

REFUSALS_SHOWN = 300
TALL = 40
"""Longer tables scroll in a window of their own."""
ORDINARY = {
    "samples": ("samples", number),
    "held_out": ("held out", number),
    "noisy": ("looks noisy", None),
    "truth_noisy": ("noisy in truth", None),
    "truth_level": ("noise level set", percent),
    "truth_noise_rate": ("labels wrong", percent),
    "aggregation_weight": ("aggregation weight", percent),
    "replies_refused": ("refused replies", number),
    "model": ("model", None),
}
"""Columns of sites.csv that have words of their own, in the order in which they are shown."""
VERDICT_KINDS = {
    "found": "good",
    "missed": "bad",
    "false alarm": "bad",
    "looks noisy": "warn",
    "noisy in truth": "warn",
}


def html_table(
    heads: Sequence[Any], rows: Sequence[Sequence[Any]], *, kind: str = "", numeric: str = ""
) -> Markup:
    """A table; `numeric` has an "n" for every column of numbers, which are set flush right."""
    classes = ["n" if numeric[i : i + 1] == "n" else None for i in range(len(heads))]
    top = tag("tr", *(tag("th", head, scope="col", class_=c) for head, c in zip(heads, classes)))
    body = (tag("tr", *(tag("td", cell, class_=c) for cell, c in zip(row, classes))) for row in rows)
    table = tag("table", tag("thead", top), tag("tbody", *body), class_=kind or None)
    return tag("div", table, class_="scroll tall" if len(rows) > TALL else "scroll", tabindex="0")


def sites_table(run: RunData) -> Markup:
    """One line a site; scalar records of the method that have no words of their own keep their names."""
    columns = site_columns(run)
    one_model = len({line.get("model") for line in run.sites}) <= 1
    if one_model and "model" in columns:
        columns.remove("model")
    judged = any(verdict(line) for line in run.sites)
    heads = ["site", *(["result"] if judged else []), *(column_words(name) for name in columns)]
    numeric = (
        " "
        + (" " if judged else "")
        + "".join("n" if any(_is_number(line.get(name)) for line in run.sites) else " " for name in columns)
    )
    rows = [
        [
            tag("b", line["site"], class_="name", title=line["site"]),
            *([badge(line)] if judged else []),
            *(cell_words(name, line.get(name)) for name in columns),
        ]
        for line in run.sites
    ]
    return html_table(heads, rows, kind="sortable", numeric=numeric)


def site_columns(run: RunData) -> list[str]:
    """Columns with a plain value somewhere: the ordinary ones, then whatever else the method recorded."""
    present = [
        name
        for name in dict.fromkeys(key for line in run.sites for key in line)
        if name != "site" and any(_is_scalar(line.get(name)) for line in run.sites)
    ]
    ordinary = [name for name in ORDINARY if name in present]
    if "held_out" in ordinary and not any(line.get("held_out") for line in run.sites):
        ordinary.remove("held_out")
    return ordinary + [name for name in present if name not in ORDINARY]


def column_words(name: str) -> str:
    return ORDINARY[name][0] if name in ORDINARY else name.replace("_", " ")


def cell_words(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_number(value):
        return str(value)
    words = ORDINARY.get(name, ("", percent if name.endswith("_probability") else number))[1] or number
    return words(value)


def badge(line: dict[str, Any]) -> Markup:
    word = verdict(line)
    return tag("span", word, class_=f"badge {VERDICT_KINDS[word]}") if word else Markup()


def stages_table(run: RunData) -> Markup:
    """What travelled and how long it took, stage by stage."""
    rows: list[list[Any]] = []
    for span in run.spans():
        own = [row for row in run.rounds if span.first <= row["round"] <= span.last]
        rows.append([span.stage, span.words, *_totals(own)])
    if len(rows) > 1:
        rows.append([tag("b", "all"), f"{len(run.rounds)} rounds", *_totals(run.rounds)])
    heads = ["stage", "rounds", "site replies", "refused", "to the sites", "from the sites", "time"]
    return html_table(heads, rows, numeric="  nnnnn")


def _totals(rows: Sequence[dict[str, Any]]) -> list[str]:
    def total(key: str) -> float:
        return sum(row.get(key) or 0 for row in rows)

    refused = sum(len(row.get("refused") or {}) for row in rows)
    return [
        number(total("participants")),
        number(refused),
        size(total("bytes_down")),
        size(total("bytes_up")),
        duration(total("seconds")),
    ]


def refusals_table(run: RunData) -> Markup:
    refused = [
        [row["round"], row.get("stage", ""), site, reason]
        for row in run.rounds
        for site, reason in (row.get("refused") or {}).items()
    ]
    if not refused:
        return tag("p", "Every reply passed the gate.")
    table = html_table(
        ["round", "stage", "site", "why it was set aside"], refused[:REFUSALS_SHOWN], numeric="n"
    )
    if len(refused) <= REFUSALS_SHOWN:
        return table
    more = tag("p", f"{len(refused) - REFUSALS_SHOWN:,} more are in rounds.jsonl.", class_="note")
    return join([table, more])


def disclosure_table(run: RunData) -> Markup:
    """Every field that can leave a site, under the message that carries it: what the method declares.

    A run whose method is not known here shows what was sent.
    """
    declared, sent = declared_by_stage(run), run.replies_by_stage()
    by_stage = declared or sent
    parts = []
    for entry in disclosures(by_stage):
        when = f" · {', '.join(entry.when)}" if entry.when else ""
        if (
            declared
            and sent
            and not entry.joining
            and all(entry.name not in names for names in sent.values())
        ):
            when += " · never sent" if run.finished else " · not sent so far"
        head = tag(
            "tr",
            tag(
                "th",
                tag("code", entry.name),
                tag("span", f" {entry.summary}{when}"),
                colspan=3,
                scope="rowgroup",
            ),
        )
        rows = (
            tag("tr", tag("td", tag("code", i.name)), tag("td", i.what), tag("td", tag("code", i.kind)))
            for i in entry.items
        )
        parts.append(tag("tbody", head, *rows))
    top = tag(
        "thead", tag("tr", *(tag("th", word, scope="col") for word in ("field", "what it tells", "type")))
    )
    table = tag("div", tag("table", top, *parts, class_="disclosure"), class_="scroll", tabindex="0")
    return join([tag("p", _disclosure_words(run, declared is not None, sent is not None)), table])


def _disclosure_words(run: RunData, declared: bool, sent: bool) -> str:
    base = "A site answers with these messages; a field that is not listed has no way to leave it. "
    if declared:
        return base + f"Listed is what {run.method} declares with these settings; no other request is sent."
    if not sent:
        return (
            base
            + "This run has no record of which of them its stages sent, so every kind known here is listed."
        )
    return base + f"{run.method} is not installed here; listed is what this run has sent."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
