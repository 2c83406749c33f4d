"""The section on noisy sites: who was found, against the truth, and the maps that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.core.units import isolated, listed, percent
from fedsift.drawing.svg import MANY_CLASSES, Markup, figure, join, tag
from fedsift.report.matrix import MatrixRow, dot_plot, heat_map
from fedsift.report.words import headline, words_of_test
from fedsift.runs.reading import RunData, numbers_of

INDICATORS = {"loss": "mean loss", "lid": "local intrinsic dimension", "confidence": "confidence, negated"}

WITHOUT_REFERENCE = (
    "Methods that learn from clean sites have none to learn from here: `fedsift audit` looks at single labels, and "
    "methods that doubt samples instead of sites (co-teaching, dividemix, joint-opt, fedlsr) need no clean site."
)


def noisy_sites(run: RunData) -> Markup | None:
    """Who was found, against the truth; the indicators that it rests on."""
    parts: list[Markup | None] = [_detection(run)]
    maps = [name for name in ("indicator", *_listed_records(run)) if any(_values(run, name))]
    for place, name in enumerate(dict.fromkeys(maps)):
        rows = _rows(run, name)
        columns = _columns(run, rows)
        words = _map_words(run, name)
        drawn = figure(heat_map(words[0], rows, columns), *words)
        if place == 0:
            parts.append(_beside(drawn, _distribution(run, rows), columns))
        else:
            parts.append(tag("details", tag("summary", words[0]), drawn))
    if not maps:
        parts.append(_beside(_distribution(run, _rows(run, "given_label_counts")), None, run.classes))
    drawn_parts = [part for part in parts if part]
    return join(drawn_parts) if drawn_parts else None


def _beside(first: Markup | None, second: Markup | None, columns: Sequence[str]) -> Markup | None:
    both = [part for part in (first, second) if part]
    if not both:
        return None
    return tag("div", *both, class_="columns" if len(columns) <= MANY_CLASSES else "wide")


def _detection(run: RunData) -> Markup | None:
    found = run.findings
    if found is not None and found.no_clean_reference:
        return tag("p", f"{headline(run)}. {WITHOUT_REFERENCE}")
    if run.found is None:
        truth = run.truth
        if truth is None:
            return None
        noisy = (
            f"In truth {len(truth)} {'is' if len(truth) == 1 else 'are'}: {listed(truth, 12, isolated)}."
            if truth
            else "In truth none is."
        )
        return tag("p", f"{run.method} does not look for noisy sites. {noisy}")
    facts = [("Called noisy", listed(run.found, 40, isolated) or "none")]
    if found is not None and found.p_value is not None:
        sure = "borderline: " if found.borderline else ""
        facts.append(("Two groups or one", sure + words_of_test(found)))
    scores = run.detection
    if scores is None:
        facts.append(("Noisy in truth", "not known" if run.finished else "compared when the run ends"))
        return _facts(facts)
    for words, key in (("Noisy in truth", "truth"), ("Missed", "missed"), ("False alarms", "false_alarms")):
        facts.append((words, listed([str(site) for site in scores.get(key) or ()], 40, isolated) or "none"))
    both = f"{percent(scores.get('precision'))} and {percent(scores.get('recall'))}"
    return _facts([*facts, ("Precision and recall", both)])


def _facts(facts: Sequence[tuple[str, str]]) -> Markup:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", words)) for name, words in facts), class_="facts")


def _listed_records(run: RunData) -> list[str]:
    """Records of a list of numbers for each site, other than those with a figure of their own."""
    names = dict.fromkeys(key for line in run.sites for key in line)
    return [name for name in names if name not in ("indicator", "given_label_counts") and any(_values(run, name))]


def _values(run: RunData, name: str) -> list[list[float | None]]:
    found = [line.get(name) for line in run.sites]
    return [numbers_of(value) for value in found if isinstance(value, list)]


def _rows(run: RunData, name: str) -> list[MatrixRow]:
    """The sites with their values, the largest mean first; sites without any come last, hatched."""
    width = max((len(values) for values in _values(run, name)), default=0)
    rows = []
    for line in run.sites:
        value = line.get(name)
        values = numbers_of(value) if isinstance(value, list) else []
        values += [None] * (width - len(values))
        rows.append(MatrixRow(str(line["site"]), values, _flag(line.get("noisy")), _flag(line.get("truth_noisy"))))
    return sorted(rows, key=_mean, reverse=True) if name != "given_label_counts" else rows


def _mean(row: MatrixRow) -> float:
    known = [value for value in row.values if value is not None]
    return sum(known) / len(known) if known else float("-inf")


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _columns(run: RunData, rows: Sequence[MatrixRow]) -> list[str]:
    width = len(rows[0].values)
    if width == len(run.classes):
        return list(run.classes)
    return ["all classes"] if width == 1 else [str(k + 1) for k in range(width)]


def _map_words(run: RunData, name: str) -> tuple[str, str]:
    order = "Rows from the largest mean down. "
    marks = "● found noisy" + (", ◆ noisy in truth." if run.truth is not None else ".")
    if name == "indicator":
        kind = INDICATORS.get(str(run.study.get("method", {}).get("indicator", "")), "indicator")
        return (
            "Loss map" if kind == "mean loss" else "Indicator map",
            f"{kind} of each site by given class. {order}{marks}",
        )
    if name == "feature":
        return "The map as the method used it", f"scaled within each class, gaps filled. {order}{marks}"
    return name.replace("_", " ").capitalize(), f"as recorded by the method. {order}{marks}"


def _distribution(run: RunData, order: Sequence[MatrixRow]) -> Markup | None:
    """Given labels by site and class, as dots whose area is the count."""
    rows = {row.name: row for row in _rows(run, "given_label_counts")}
    if not any(_values(run, "given_label_counts")):
        return None
    drawn = [rows[row.name] for row in order if row.name in rows]
    words = "given labels of each site by class; the area of a dot is the number of samples"
    return figure(dot_plot("Class distribution", drawn, _columns(run, drawn)), "Class distribution", words)
