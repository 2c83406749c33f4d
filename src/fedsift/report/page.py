"""`write_report`: one offline HTML file from a run folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fedsift.core.files import write_atomically
from fedsift.core.numbers import duration, isolated, number, percent, plural, size
from fedsift.core.text import argument
from fedsift.core.version import __version__
from fedsift.drawing import page_style, saving_script
from fedsift.drawing.svg import Markup, document, join, tag
from fedsift.report.sections import classes, comparison, curves, lanes, noisy_sites, notes, site_list, study
from fedsift.report.tables import disclosure_table, refusals_table, stages_table
from fedsift.report.words import (
    INTERVAL_NOTE,
    METRICS,
    comparison_line,
    headline,
    interval_words,
    oracle,
    progress,
)
from fedsift.runs.reading import LAST, RunData, read_run

# The page: what stands on top, and the sections in their order
# ------------------------------------------------------------------------------

LONG_HEADLINE = 90
HATCH = Markup(
    '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" class="hatch-ground"/><line x1="0" y1="0" x2="0" y2="5" class="hatch-line"/>'
    "</pattern></defs></svg>"
)


def page(run: RunData, others: Sequence[RunData] = ()) -> str:
    """The whole document. `run` is the subject; `others` are drawn beside it."""
    runs = [run, *others]
    sections: list[tuple[str, str, Markup | None]] = [
        ("runs", "Runs compared", comparison(runs)),
        ("curves", "Curves", curves(runs)),
        ("noisy", "Noisy sites", noisy_sites(run)),
        ("classes", "Classes", classes(runs)),
        ("sites", "Sites", site_list(run)),
        ("lanes", "Rounds of the sites", lanes(run)),
        ("traffic", "What travelled", stages_table(run) if run.rounds else None),
        ("refused", "Refused replies", refusals_table(run) if run.rounds else None),
        ("disclosure", "What left the sites", disclosure_table(run)),
        ("notes", "Notes", notes(run)),
        ("study", "The study", study(run)),
    ]
    shown = [(name, title, body) for name, title, body in sections if body is not None]
    body = join(
        [
            HATCH,
            top(run, others),
            tag("nav", *(tag("a", title, href=f"#{name}") for name, title, _ in shown), aria_label="Sections"),
            tag("main", *(tag("section", tag("h2", title), part, id=name) for name, title, part in shown)),
            tag("footer", f"fedsift {__version__} · {run.id} · this file needs no network"),
            tag("div", id="tip", role="status", hidden=""),
            Markup(f"<script>{script()}{saving_script()}</script>"),
        ]
    )
    return document(headline(run), body, page_style())


def script() -> str:
    """What the page's figures and tables do under a pointer."""
    return files("fedsift.report").joinpath("script.js").read_text("utf-8")


def top(run: RunData, others: Sequence[RunData]) -> Markup:
    line = comparison_line([run, *others])
    absent = [tag("li", text) for text in run.missing]
    finding = f"{headline(run, isolated)}."
    return tag(
        "header",
        tag("p", _where(run), class_="eyebrow"),
        tag("h1", finding, class_="long" if len(finding) > LONG_HEADLINE else None),
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
    if oracle(run):
        words.append(f"given of the truth: {oracle(run)}")
    return " · ".join(word for word in words if word)


def _unfinished(run: RunData) -> Markup | None:
    if run.finished:
        return None
    return tag(
        "p",
        f"This run has not come to its end: {progress(run)}. What is there is shown. Go on with ",
        tag("code", f"fedsift resume …/{argument(run.id)}"),
        ".",
        class_="alert",
    )


def tiles(run: RunData) -> Markup:
    """The figures that a reader looks for first."""
    found = []
    for name in run.curves:
        scores = run.summary.get(name) or {}
        under = f"best {percent(scores.get('best'))} in round {scores.get('best_round')}"
        under += f" · last {LAST}: {percent(scores.get('last'))}"
        found.append(tile(METRICS[name], percent(scores.get("final")), under))
    for name in run.intervals:
        found.append(tile(METRICS[name], interval_words(run.summary["intervals"][name]), INTERVAL_NOTE))
    if run.detection is not None:
        noisy = plural(len(run.detection.get("truth") or ()), "noisy site")
        under = f"recall {percent(run.detection.get('recall'), 0)} of {noisy}"
        found.append(tile("Detection precision", percent(run.detection.get("precision"), 0), under))
    if run.rounds:
        sent, received = run.summary.get("bytes_up"), run.summary.get("bytes_down")
        found.append(tile("Sent by the sites", size(sent), f"received by them {size(received)}"))
        replies, refused = run.summary.get("participations"), run.summary.get("refused")
        under = f"{number(replies)} site participations · {number(refused)} refused"
        found.append(tile(plural(len(run.rounds), "round"), duration(run.summary.get("seconds")), under))
    return tag("dl", *found, class_="tiles")


def tile(name: str, value: str, under: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", under, class_="under"))


FILE = "report.html"


def write_report(run: Path, out: Path | None = None, compare: Sequence[Path] = ()) -> Path:
    """Write the report of a run, finished or not, and return where it is.

    out: the file, or a folder that gets a `report.html`; by default that is the run's own folder.
    compare: other runs on the same federation, drawn beside it.
    """
    text = page(read_run(Path(run)), [read_run(Path(other)) for other in compare or ()])
    target = Path(run) / FILE if out is None else Path(out)
    if target.is_dir():
        target = target / FILE
    write_atomically(target, text.encode("utf-8"))
    return target
