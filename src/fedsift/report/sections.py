"""Sections of the page that compare runs or list what a run left: each a function of the runs alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedsift.core.units import listed, number, percent
from fedsift.drawing.svg import MANY_CLASSES, SERIES, Markup, empty, figure, join, marker, tag
from fedsift.report.curves import CurveSeries, class_figure, curve_figure
from fedsift.report.groups import SeedGroup, cautions, groups_of, sample_words
from fedsift.report.tables import html_table, sites_table
from fedsift.report.words import METRIC_NOTES, METRICS, comparison_table
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
    for metric in dict.fromkeys(name for one in runs for name in one.curves):
        series = [_series(group, metric, banded=len(groups) <= BANDED) for group in groups]
        figures.append(
            figure(curve_figure(METRICS[metric], series, run.spans()), METRICS[metric], METRIC_NOTES[metric])
        )
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
        series = [(group.label, values) for group in groups_of(runs) if (values := _class_means(group, key))]
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
        chart = join([legend(names), figure(drawn, title, "after the last evaluated round; hatched: no test sample")])
        wide = len(runs[0].classes) > MANY_CLASSES
        return tag("div", tag("div", chart), tag("div", table), class_="wide" if wide else "columns")
    return None


def _class_means(group: SeedGroup, key: str) -> list[float | None]:
    """The mean over a group's runs for each class, of those runs that have a value for it."""
    lists = [numbers_of(run.last_value(key)) for run in group.runs if isinstance(run.last_value(key), list)]
    means: list[float | None] = []
    for k in range(max((len(values) for values in lists), default=0)):
        known = [value for values in lists if k < len(values) and (value := values[k]) is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


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
