"""The page: its sections in order, each a function of the runs alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedsift import __version__
from fedsift.report.curves import Series, class_figure, curve_figure
from fedsift.report.matrix import Row, dot_plot, heat_map
from fedsift.report.runs import RunData, labels_of, same_federation
from fedsift.report.svg import MANY_CLASSES, Markup, join, tag
from fedsift.report.tables import disclosure_table, html_table, refusals_table, sites_table, stages_table
from fedsift.report.words import (
    METRIC_NOTES,
    METRICS,
    comparison_line,
    comparison_table,
    duration,
    headline,
    listed,
    number,
    percent,
    plural,
    progress,
    size,
)

INDICATORS = {"loss": "mean loss", "lid": "local intrinsic dimension", "confidence": "confidence, negated"}
HATCH = Markup(
    '<svg class="defs" width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="5" height="5" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" class="hatch-ground"/>'
    '<line x1="0" y1="0" x2="0" y2="5" class="hatch-line"/></pattern></defs></svg>'
)


def page(run: RunData, others: Sequence[RunData] = ()) -> str:
    """The whole document. `run` is the subject; `others` are drawn beside it."""
    runs = [run, *others]
    sections = [
        section("runs", "The runs beside each other", comparison(runs)),
        section("curves", "Curves", curves(runs)),
        section("noisy", "Noisy sites", noisy_sites(run)),
        section("classes", "Classes", classes(runs)),
        section("sites", "Sites", site_list(run)),
        section("traffic", "What travelled", stages_table(run) if run.rounds else None),
        section("refused", "Refused replies", refusals_table(run) if run.rounds else None),
        section("disclosure", "What left the sites", disclosure_table(run)),
        section("notes", "Warnings and notes", notes(run)),
        section("study", "The study", study(run)),
    ]
    shown = [(name, title, body) for name, title, body in sections if body is not None]
    body = join(
        [
            HATCH,
            top(run, others),
            tag(
                "nav", *(tag("a", title, href=f"#{name}") for name, title, _ in shown), aria_label="Sections"
            ),
            tag("main", *(tag("section", tag("h2", title), part, id=name) for name, title, part in shown)),
            tag("footer", f"fedsift {__version__} · {run.id} · this file needs no network"),
            tag("div", id="tip", role="status", hidden=""),
            Markup(f"<script>{_asset('script.js')}</script>"),
        ]
    )
    return _document(headline(run), body)


def _document(title: str, body: Markup) -> str:
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            tag("title", f"{title} · fedsift"),
            Markup(f"<style>{_asset('style.css')}</style>"),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _asset(name: str) -> str:
    return files("fedsift.report").joinpath(name).read_text("utf-8")


def section(name: str, title: str, body: Markup | None) -> tuple[str, str, Markup | None]:
    return name, title, body


# The top -----------------------------------------------------------------------------------------------------------


def top(run: RunData, others: Sequence[RunData]) -> Markup:
    line = comparison_line([run, *others])
    absent = [tag("li", text) for text in run.missing]
    return tag(
        "header",
        tag("p", _where(run), class_="eyebrow"),
        tag("h1", f"{headline(run)}."),
        tag("p", line, class_="lead") if line else None,
        _unfinished(run),
        tag("ul", *absent, class_="absent") if absent else None,
        tiles(run),
    )


def _where(run: RunData) -> str:
    data = run.summary.get("dataset") or run.study.get("data", {}).get("name", "")
    parts = [run.method, f"on {data}" if data else ""]
    words = [" ".join(part for part in parts if part), str(run.study.get("model", {}).get("name", ""))]
    if run.site_count:
        words.append(plural(run.site_count, "site"))
    words += [f"seed {run.study['seed']}" if "seed" in run.study else "", str(run.study.get("name", ""))]
    return " · ".join(word for word in words if word)


def _unfinished(run: RunData) -> Markup | None:
    if run.finished:
        return None
    return tag(
        "p",
        f"This run has not come to its end: {progress(run)}. What is there is shown. Go on with ",
        tag("code", f"fedsift resume {run.path.name}"),
        ".",
        class_="alert",
    )


def tiles(run: RunData) -> Markup:
    """The figures that a reader looks for first."""
    found = []
    for name in run.curves:
        scores = run.summary.get(name) or {}
        under = f"best {percent(scores.get('best'))} in round {scores.get('best_round')}"
        found.append(
            tile(
                METRICS[name],
                percent(scores.get("final")),
                f"{under} · last 10: {percent(scores.get('last'))}",
            )
        )
    if run.detection is not None:
        under = f"recall {percent(run.detection.get('recall'), 0)} of {plural(len(run.truth or []), 'noisy site')}"
        found.append(tile("Detection precision", percent(run.detection.get("precision"), 0), under))
    if run.rounds:
        sent, received = run.summary.get("bytes_up"), run.summary.get("bytes_down")
        found.append(tile("Sent by the sites", size(sent), f"received by them {size(received)}"))
        seconds = run.summary.get("seconds")
        under = f"{number(run.summary.get('participations'))} replies · {number(run.summary.get('refused'))} refused"
        found.append(tile(plural(len(run.rounds), "round"), duration(seconds), under))
    return tag("dl", *found, class_="tiles")


def tile(name: str, value: str, under: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", under, class_="under"))


# Sections ----------------------------------------------------------------------------------------------------------


def comparison(runs: Sequence[RunData]) -> Markup | None:
    if len(runs) < 2:
        return None
    heads, rows = comparison_table(runs)
    marked = ["", *(join([swatch(i), head]) for i, head in enumerate(heads[1:]))]
    warning = tag(
        "p",
        "These runs differ in seed, data, partition or noise: they are not on the same federation, so compare with care.",
        class_="alert",
    )
    return join(
        [
            None if same_federation(runs) else warning,
            html_table(marked, rows, numeric=" " + "n" * len(runs), kind="runs"),
        ]
    )


def swatch(number: int) -> Markup:
    return Markup(
        f'<svg class="swatch" width="26" height="10" aria-hidden="true">'
        f'<line x1="1" y1="5" x2="25" y2="5" class="curve s{number % 7}"/></svg>'
    )


def legend(names: Sequence[str]) -> Markup | None:
    if len(names) < 2:
        return None
    return tag("p", *(tag("span", swatch(i), name) for i, name in enumerate(names)), class_="legend")


def curves(runs: Sequence[RunData]) -> Markup | None:
    """A panel for each metric, all runs in each; and the losses of the first."""
    run, names = runs[0], labels_of(runs)
    figures = []
    for metric in dict.fromkeys(name for one in runs for name in one.curves):
        series = [Series(name, one.curve(metric)) for name, one in zip(names, runs)]
        figures.append(
            figure(curve_figure(METRICS[metric], series, run.spans()), METRICS[metric], METRIC_NOTES[metric])
        )
    losses = [
        Series("at the sites, in training", run.curve("train_loss")),
        Series("in evaluation", run.curve("loss")),
    ]
    if any(one.values for one in losses):
        words = f"{run.method}: mean training loss at the sites, and loss in evaluation"
        drawn = curve_figure("Loss", losses, run.spans(), share=False)
        figures.append(figure(join([legend([one.name for one in losses]), drawn]), "Loss", words))
    if not figures:
        return None
    figures.append(_stage_list(run, several=len(runs) > 1))
    return join([legend(names), tag("div", *figures, class_="columns")])


def _stage_list(run: RunData, *, several: bool) -> Markup:
    items = [tag("li", tag("b", span.stage), f", {span.words}") for span in run.spans()]
    note = f"of {run.method}, shaded in the curves" if several else "shaded in the curves"
    return figure(tag("ol", *items), "Stages", note)


def figure(drawing: Markup, title: str, note: Any = "") -> Markup:
    return tag("figure", tag("figcaption", tag("b", title), " " if note else "", tag("span", note)), drawing)


def noisy_sites(run: RunData) -> Markup | None:
    """Who was found, against the truth; the indicators that it rests on."""
    parts: list[Markup | None] = [_detection(run)]
    maps = [name for name in ("indicator", *_listed_records(run)) if any(_values(run, name))]
    for number_, name in enumerate(dict.fromkeys(maps)):
        rows = _rows(run, name)
        columns = _columns(run, rows)
        words = _map_words(run, name)
        drawn = figure(heat_map(words[0], rows, columns), *words)
        if number_ == 0:
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
    if run.found is None:
        truth = run.truth
        if truth is None:
            return None
        noisy = f"In truth {len(truth)} are: {listed(truth, 12)}." if truth else "In truth none is."
        return tag("p", f"{run.method} does not look for noisy sites. {noisy}")
    facts = [("Called noisy", listed(run.found, 40) or "none")]
    scores = run.detection
    if scores is None:
        facts.append(("Noisy in truth", "not known" if run.finished else "compared when the run ends"))
        return _facts(facts)
    for words, key in (("Noisy in truth", "truth"), ("Missed", "missed"), ("False alarms", "false_alarms")):
        facts.append((words, listed([str(site) for site in scores.get(key) or ()], 40) or "none"))
    both = f"{percent(scores.get('precision'))} and {percent(scores.get('recall'))}"
    return _facts([*facts, ("Precision and recall", both)])


def _facts(facts: Sequence[tuple[str, str]]) -> Markup:
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", words)) for name, words in facts), class_="facts"
    )


def _listed_records(run: RunData) -> list[str]:
    """Records of a list of numbers for each site, other than those with a figure of their own."""
    names = dict.fromkeys(key for line in run.sites for key in line)
    return [
        name for name in names if name not in ("indicator", "given_label_counts") and any(_values(run, name))
    ]


def _values(run: RunData, name: str) -> list[list[float | None]]:
    found = [line.get(name) for line in run.sites]
    return [_numbers(value) for value in found if isinstance(value, list)]


def _numbers(values: Sequence[Any]) -> list[float | None]:
    return [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]


def _rows(run: RunData, name: str) -> list[Row]:
    """The sites with their values, the largest mean first; sites without any come last, hatched."""
    width = max((len(values) for values in _values(run, name)), default=0)
    rows = []
    for line in run.sites:
        value = line.get(name)
        values = _numbers(value) if isinstance(value, list) else []
        values += [None] * (width - len(values))
        rows.append(Row(str(line["site"]), values, _flag(line.get("noisy")), _flag(line.get("truth_noisy"))))
    return sorted(rows, key=_mean, reverse=True) if name != "given_label_counts" else rows


def _mean(row: Row) -> float:
    known = [value for value in row.values if value is not None]
    return sum(known) / len(known) if known else float("-inf")


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _columns(run: RunData, rows: Sequence[Row]) -> list[str]:
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


def _distribution(run: RunData, order: Sequence[Row]) -> Markup | None:
    """Given labels by site and class, as dots whose area is the count."""
    rows = {row.name: row for row in _rows(run, "given_label_counts")}
    if not any(_values(run, "given_label_counts")):
        return None
    drawn = [rows[row.name] for row in order if row.name in rows]
    words = "given labels of each site by class; the area of a dot is the number of samples"
    return figure(dot_plot("Class distribution", drawn, _columns(run, drawn)), "Class distribution", words)


def classes(runs: Sequence[RunData]) -> Markup | None:
    """Recall (multi-label: AUC) of every class after the last evaluated round."""
    for key, title in (("recall", "Recall by class"), ("auc_per_class", "AUC by class")):
        series = [
            (name, _numbers(run.last_value(key)))
            for name, run in zip(labels_of(runs), runs)
            if isinstance(run.last_value(key), list)
        ]
        if not series or not runs[0].classes:
            continue
        drawn = class_figure(title, runs[0].classes, series)
        names = [name for name, _ in series]
        table = html_table(
            ["class", "given labels", *names],
            [
                [
                    name,
                    number(_given(runs[0], k)),
                    *(percent(values[k]) if k < len(values) else "–" for _, values in series),
                ]
                for k, name in enumerate(runs[0].classes)
            ],
            kind="sortable",
            numeric=" n" + "n" * len(series),
        )
        chart = join(
            [legend(names), figure(drawn, title, "after the last evaluated round; hatched: no test sample")]
        )
        wide = len(runs[0].classes) > MANY_CLASSES
        return tag("div", tag("div", chart), tag("div", table), class_="wide" if wide else "columns")
    return None


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
    items = [
        tag("li", text, tag("span", f" (round {_few(at)})", class_="note")) for text, at in where.items()
    ]
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
