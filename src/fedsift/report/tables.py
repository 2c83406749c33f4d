"""HTML tables of a report: sites, stages, refusals, and what left the sites."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsift.core.errors import FedsiftError
from fedsift.core.numbers import duration, number, percent, size
from fedsift.drawing.svg import Markup, join, tag
from fedsift.protocol.disclosure import declared_replies
from fedsift.protocol.messages import Reply, SiteFacts
from fedsift.report.words import verdict
from fedsift.runs.reading import RunData
from fedsift.study.study import Study
from fedsift.training.requests import Evaluate

# The disclosure table: all that can leave a site, in words, derived from the reply classes themselves
# ------------------------------------------------------------------------------

JOINING = "on joining"


@dataclass(frozen=True)
class ReleasedField:
    """One field that leaves a site."""

    name: str
    kind: str
    what: str


@dataclass(frozen=True)
class DisclosureTable:
    """A kind of message from a site: when it is sent, and every field that it carries."""

    name: str
    summary: str
    when: tuple[str, ...]
    items: tuple[ReleasedField, ...]

    @property
    def joining(self) -> bool:
        return self.when == (JOINING,)


def disclosures(by_stage: Mapping[str, Sequence[str]] | None) -> list[DisclosureTable]:
    """What sites declare on joining, then each reply class with the stages that may send it.

    by_stage: as the method declares it; without, every reply class that this version knows is listed.
    """
    known = {cls.__name__: cls for cls in reply_classes()}
    if by_stage is None:
        return [_facts(), *(_described(cls, ()) for cls in known.values())]
    names = dict.fromkeys(name for sent in by_stage.values() for name in sent)
    when = {name: tuple(stage for stage, sent in by_stage.items() if name in sent) for name in names}
    return [
        _facts(),
        *(_described(known[name], when[name]) if name in known else _unknown(name, when[name]) for name in names),
    ]


def declared_by_stage(run: RunData) -> dict[str, list[str]] | None:
    """Reply classes that the run's study declares, by stage; None when its method is not known here."""
    try:
        study = Study.from_table(run.study)
    except FedsiftError:
        return None
    at_sites = any(row.get("evaluated_at") == "sites" for row in run.rounds)
    by_stage = declared_replies(study.method, (Evaluate,) if at_sites or not run.rounds else ())
    return {stage: [cls.__name__ for cls in replies] for stage, replies in by_stage.items()}


def reply_classes() -> list[type[Reply]]:
    """Every reply class of the program, by name."""
    found: dict[str, type[Reply]] = {}
    waiting: list[type[Reply]] = [Reply]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            found.setdefault(cls.__name__, cls)
            waiting.append(cls)
    return [found[name] for name in sorted(found)]


def _described(cls: type[Reply], when: tuple[str, ...]) -> DisclosureTable:
    items = [
        ReleasedField(field.name, _kind(field.type), str(field.metadata.get("what", "not described")))
        for field in dataclasses.fields(cls)
    ]
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return DisclosureTable(cls.__name__, summary, when, tuple(items))


def _unknown(name: str, when: tuple[str, ...]) -> DisclosureTable:
    return DisclosureTable(name, "A reply class that is not installed here: its fields are unknown.", when, ())


def _facts() -> DisclosureTable:
    """The words are those beside the fields in the source, so that the table never lags behind them."""
    words = field_words(SiteFacts)
    items = [
        ReleasedField(
            field.name, _kind(field.type), words.get(field.name, f"the site's {field.name.replace('_', ' ')}")
        )
        for field in dataclasses.fields(SiteFacts)
    ]
    return DisclosureTable("SiteFacts", "What a site declares of itself.", (JOINING,), tuple(items))


def field_words(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, by its name; none where the source is not at hand."""
    try:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    body = getattr(definition, "body", [])
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _kind(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


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


def html_table(heads: Sequence[Any], rows: Sequence[Sequence[Any]], *, kind: str = "", numeric: str = "") -> Markup:
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
    table = html_table(["round", "stage", "site", "why it was set aside"], refused[:REFUSALS_SHOWN], numeric="n")
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
        if declared and sent and not entry.joining and all(entry.name not in names for names in sent.values()):
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
    top = tag("thead", tag("tr", *(tag("th", word, scope="col") for word in ("field", "what it discloses", "type"))))
    table = tag("div", tag("table", top, *parts, class_="disclosure"), class_="scroll", tabindex="0")
    return join([tag("p", _disclosure_words(run, declared is not None, sent is not None)), table])


def _disclosure_words(run: RunData, declared: bool, sent: bool) -> str:
    base = "A site answers with these messages; a field that is not listed has no way to leave it. "
    if declared:
        return base + f"Listed is what {run.method} declares with these settings; no other request is sent."
    if not sent:
        return base + "This run has no record of which of them its stages sent, so every kind known here is listed."
    return base + f"{run.method} is not installed here; listed is what this run has sent."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
