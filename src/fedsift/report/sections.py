"""Sections of the HTML report: the comparison of runs, curves, classes, sites, the timeline of sites, notes and the
study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsift.core.numbers import isolated, listed, number, percent
from fedsift.drawing.svg import (
    FULL,
    MANY_CLASSES,
    SERIES,
    Markup,
    clipped,
    empty,
    figure,
    join,
    label,
    marker,
    picture,
    tag,
)
from fedsift.report.curves import ClassSeries, CurveSeries, class_figure, curve_figure
from fedsift.report.groups import SeedGroup, cautions, groups_of, sample_words
from fedsift.report.matrix import MatrixRow, dot_plot, heat_map
from fedsift.report.tables import html_table, sites_table
from fedsift.report.words import (
    INTERVAL_NOTE,
    METRIC_NOTES,
    METRICS,
    comparison_table,
    headline,
    interval_words,
    words_of_test,
)
from fedsift.runs.events import read_events
from fedsift.runs.history import ABSENT, ANSWERED, REFUSED, RunHistory
from fedsift.runs.reading import RunData, numbers_of

BESIDE = 4
"""Methods that stand beside each other in a table; more become its rows."""
SHORT = 10
BANDED = 5
"""Methods whose intervals are drawn; more would cover each other."""


def comparison(runs: Sequence[RunData]) -> Markup | None:
    """The methods beside each other; many of them as rows, since a page is taller than it is wide."""
    if len(runs) < 2:
        return None
    groups = groups_of(runs)
    heads, rows = comparison_table(runs)
    marked = [join([swatch(i), head]) for i, head in enumerate(heads[1:])]
    alerts = [tag("p", text, class_="alert") for text in cautions(groups)]
    words = sample_words(groups)
    if len(groups) > BESIDE:
        turned = [[name, *(_firm(row[i + 1]) for row in rows)] for i, name in enumerate(marked)]
        top = ["", *(row[0] for row in rows)]
        table = html_table(top, turned, numeric=" " + "n" * len(rows), kind="runs turned")
    else:
        table = html_table(["", *marked], rows, numeric=" " + "n" * len(groups), kind="runs")
    return join([*alerts, tag("p", words, class_="note") if words else None, table])


def _firm(cell: str) -> str:
    """A short cell stays on one line, whatever the width of its column."""
    return cell.replace(" ", "\u00a0") if len(cell) <= SHORT else cell


def swatch(number: int) -> Markup:
    line_ = empty("line", x1=1, y1=6, x2=33, y2=6, class_=f"curve s{number % SERIES}")
    return tag(
        "svg",
        join([line_, marker(number, 17.0, 6.0, 2.8)]),
        class_="swatch",
        width=34,
        height=12,
        aria_hidden="true",
    )


def legend(names: Sequence[str]) -> Markup | None:
    if len(names) < 2:
        return None
    return tag("p", *(tag("span", swatch(i), name) for i, name in enumerate(names)), class_="legend")


def curves(runs: Sequence[RunData]) -> Markup | None:
    """A panel for each metric with a line for each method; and the losses of the first run."""
    run, groups = runs[0], groups_of(runs)
    names = [group.label for group in groups]
    figures = []
    for metric in dict.fromkeys(name for one in runs for name in (*one.curves, *one.intervals)):
        series = [_series(group, metric, banded=len(groups) <= BANDED) for group in groups]
        note = METRIC_NOTES[metric]
        if any(metric in one.intervals for one in runs):
            note += f"; a band without a line is {INTERVAL_NOTE}"
        figures.append(figure(curve_figure(METRICS[metric], series, run.spans()), METRICS[metric], note))
    losses = [
        CurveSeries("at the sites, in training", run.curve("train_loss")),
        CurveSeries("in evaluation", run.curve("loss")),
    ]
    if any(one.values for one in losses):
        words = f"{run.method}: mean training loss at the sites, and loss in evaluation"
        drawn = curve_figure("Loss", losses, run.spans(), share=False)
        figures.append(figure(join([legend([one.name for one in losses]), drawn]), "Loss", words))
    if not figures:
        return None
    figures.append(_stage_list(run, several=len(groups) > 1))
    return join([legend(names), tag("div", *figures, class_="columns")])


def _series(group: SeedGroup, metric: str, *, banded: bool) -> CurveSeries:
    if any(metric in run.intervals for run in group.runs):
        return CurveSeries(group.label, [], group.band(metric))
    curve = group.curve(metric)
    band = [(r, low, high) for r, _, low, high in curve] if banded and len(group.runs) > 1 else []
    return CurveSeries(group.label, [(r, mean) for r, mean, _, _ in curve], band)


def _stage_list(run: RunData, *, several: bool) -> Markup:
    items = [tag("li", tag("b", span.stage), f", {span.words}") for span in run.spans()]
    note = f"of {run.method}, shaded in the curves" if several else "shaded in the curves"
    return figure(tag("ol", *items), "Stages", note)


def classes(runs: Sequence[RunData]) -> Markup | None:
    """Recall (multi-label: AUC) of every class after the last evaluated round."""
    for key, title in (("recall", "Recall by class"), ("auc_per_class", "AUC by class")):
        series = [_class_series(group, key) for group in groups_of(runs)]
        series = [one for one in series if one.values]
        if not series or not runs[0].classes:
            continue
        drawn = class_figure(title, runs[0].classes, series)
        names = [one.name for one in series]
        table = html_table(
            ["class", "given labels", *names],
            [
                [
                    name,
                    number(_given(runs[0], k)),
                    *(_class_words(one, k) for one in series),
                ]
                for k, name in enumerate(runs[0].classes)
            ],
            kind="sortable",
            numeric=" n" + "n" * len(series),
        )
        note = "after the last evaluated round; hatched: no test sample"
        if any(known is not None for one in series for known in one.ranges):
            note += "; a bar: lumped with others or rounded, as the sites withhold small counts, anywhere in it"
        chart = join([legend(names), figure(drawn, title, note)])
        wide = len(runs[0].classes) > MANY_CLASSES
        return tag("div", tag("div", chart), tag("div", table), class_="wide" if wide else "columns")
    return None


def _class_series(group: SeedGroup, key: str) -> ClassSeries:
    """For each class the mean over a group's runs, or the range of all of them where one has no more than a range."""
    last: list[dict[str, Any]] = [
        next((row for row in reversed(run.rounds) if isinstance(row.get(key), list)), {}) for run in group.runs
    ]
    lists, lows, highs = (
        [numbers_of(row.get(name) or ()) for row in last] for name in (key, f"{key}_low", f"{key}_high")
    )
    means: list[float | None] = []
    ranges: list[tuple[float, float] | None] = []
    for k in range(max((len(values) for values in lists), default=0)):
        known, low, high = (
            [value for values in every if k < len(values) and (value := values[k]) is not None]
            for every in (lists, lows, highs)
        )
        within = len(known) < len(low)
        means.append(sum(known) / len(known) if known and not within else None)
        ranges.append((min([*known, *low]), max([*known, *high])) if within else None)
    return ClassSeries(group.label, means, ranges)


def _class_words(one: ClassSeries, k: int) -> str:
    known = one.range(k)
    if known is not None:
        return interval_words(known)
    return percent(one.values[k]) if k < len(one.values) else "–"


def _given(run: RunData, k: int) -> int | None:
    counts = [line.get("given_label_counts") for line in run.sites]
    known = [values[k] for values in counts if isinstance(values, list) and k < len(values)]
    return sum(known) if known else None


def site_list(run: RunData) -> Markup | None:
    if not run.sites:
        return None
    return join([sites_table(run), tag("p", "A click on a column's head sorts by it.", class_="note screen")])


def notes(run: RunData) -> Markup | None:
    """Warnings with the rounds in which they came up, then what loading the data left out or changed."""
    where: dict[str, list[int]] = {}
    for row in run.rounds:
        for text in row.get("warnings") or ():
            where.setdefault(str(text), []).append(row["round"])
    items = [tag("li", text, tag("span", f" (round {_few(at)})", class_="note")) for text, at in where.items()]
    items += [tag("li", text) for text in run.summary.get("notes") or ()]
    return tag("ul", *items) if items else tag("p", "None.")


def _few(rounds: Sequence[int]) -> str:
    return listed([str(number_) for number_ in rounds], 4)


def study(run: RunData) -> Markup:
    words = "The resolved study, every default written out. Saved as a file, it runs again."
    return join(
        [
            tag("p", words),
            tag("details", tag("summary", "study.toml"), tag("pre", tag("code", run.study_text))),
        ]
    )


# What each site did in each round
# ------------------------------------------------------------------------------


LEFT, RIGHT, ROW, FOOT = 170, 12, 15, 20
SHAPES = {ANSWERED: ("answered", 5.0, 5.0), REFUSED: ("refused", 1.0, 13.0), ABSENT: ("absent", 11.0, 3.0)}
"""By what a site did: its style, and where the mark lies in the row. Shape carries as much as colour."""
WORDS = {ANSWERED: "answered", REFUSED: "set aside", ABSENT: "absent"}


def lanes(run: RunData) -> Markup | None:
    """A lane for each site of a run that recorded its events; None for an older one."""
    story = RunHistory()
    story.take(read_events(run.path))
    if not story.columns or not story.sites:
        return None
    rounds = max(story.planned, max(story.columns))
    width = FULL - LEFT - RIGHT
    pixels = min(rounds, width)
    step = width / pixels
    parts = []
    for place, site in enumerate(story.sites):
        y = place * ROW
        parts.append(label(LEFT - 8, y + 11, clipped(site, 24), "end"))
        parts.append(empty("rect", x=LEFT, y=y + 1, width=width, height=ROW - 2, class_="lane"))
        parts += _marks(_codes(story.columns, place, rounds, pixels), y, step)
    bottom = len(story.sites) * ROW
    parts += [
        label(LEFT, bottom + 14, "round 1"),
        label(FULL - RIGHT, bottom + 14, f"round {rounds}", "end"),
    ]
    drawn = tag("div", picture(FULL, bottom + FOOT, "What each site did in each round", *parts), class_="plot")
    keys = [tag("span", tag("i", class_=f"key {SHAPES[code][0]}"), words) for code, words in WORDS.items()]
    return join(
        [
            tag("p", *keys, class_="legend keys"),
            tag("div", figure(drawn, "Answers by round"), class_="wide"),
        ]
    )


def _codes(columns: Mapping[int, bytearray], place: int, rounds: int, pixels: int) -> list[int]:
    """What is shown at each pixel: of the rounds that share it, the most notable."""
    found = [0] * pixels
    for round_, column in columns.items():
        at = min(pixels - 1, (round_ - 1) * pixels // rounds)
        if round_ > 0 and column[place] > found[at]:
            found[at] = column[place]
    return found


def _marks(codes: list[int], y: float, step: float) -> list[Markup]:
    """A rectangle for each stretch of equal codes."""
    marks, start = [], 0
    for end in range(1, len(codes) + 1):
        if end < len(codes) and codes[end] == codes[start]:
            continue
        if codes[start] in SHAPES:
            kind, top, height = SHAPES[codes[start]]
            marks.append(
                empty(
                    "rect",
                    x=LEFT + start * step,
                    y=y + top,
                    width=(end - start) * step,
                    height=height,
                    class_=f"did {kind}",
                )
            )
        start = end
    return marks


# Noisy sites
# ------------------------------------------------------------------------------


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
