"""Numbers and findings in words: the report and the terminal say the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsift.report.runs import RunData, labels_of
from fedsift.study.results import LAST

SHOWN = 5
"""Names listed in a sentence before "and so many more"."""
METRICS = {"accuracy": "Accuracy", "bacc": "BACC", "auc": "AUC", "map": "mAP"}
METRIC_NOTES = {
    "accuracy": "share of test samples predicted right",
    "bacc": "balanced accuracy: the mean of the classes' recalls",
    "auc": "mean area under the ROC curve over the classes",
    "map": "mean average precision over the classes",
}


def percent(value: Any, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%" if _is_number(value) else "–"


def number(value: Any) -> str:
    """A number as a person writes it: whole ones with separators, others with three or four figures."""
    if not _is_number(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def size(count: Any) -> str:
    if not _is_number(count):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: Any) -> str:
    if not _is_number(seconds):
        return "–"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], shown: int = SHOWN) -> str:
    """Names in a row; a long list ends in how many more there are."""
    if len(names) <= shown + 1:
        return ", ".join(names)
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def headline(run: RunData) -> str:
    """One sentence: what was found."""
    if not run.rounds:
        return f"No round of {run.method} is finished yet"
    return _finding(run) if run.finished else f"Not finished, {progress(run)}: {_finding(run)}"


def progress(run: RunData) -> str:
    done = len(run.rounds)
    return f"{done} of {run.planned} rounds done" if run.planned else f"{plural(done, 'round')} done"


def _finding(run: RunData) -> str:
    if run.found is None:
        return _training_result(run)
    count = len(run.found)
    of = f" of {run.site_count}" if run.site_count else ""
    if count == 0:
        look = "No site looks noisy" if run.finished else "no site looks noisy"
    else:
        sites = "site" if count == 1 and run.site_count in (1, None) else "sites"
        look = f"{count}{of} {sites} {'looks' if count == 1 else 'look'} noisy: {listed(run.found)}"
    return look + borderline(run) + _against_truth(run)


def borderline(run: RunData) -> str:
    """Said of a verdict that rounding might have turned; empty for any other."""
    if not run.tested or not run.tested.get("borderline"):
        return ""
    return f" (borderline: {words_of_test(run.tested)})"


def words_of_test(facts: dict[str, Any]) -> str:
    """A test for noisy sites in a few words."""
    steadiness = facts.get("steadiness")
    words = f"p = {number(facts.get('p_value'))}, threshold {number(facts.get('threshold'))}"
    if isinstance(steadiness, float) and steadiness < 1:
        words += f", the same in {percent(steadiness, 0)} of slightly shaken data"
    return words


def _against_truth(run: RunData) -> str:
    scores = run.detection
    if scores is None:
        return ""
    if scores.get("exact"):
        return "; this matches the truth exactly" if run.found else "; and none is"
    parts = []
    if scores.get("missed"):
        parts.append(f"{len(scores['missed'])} missed ({listed(scores['missed'])})")
    if scores.get("false_alarms"):
        false = scores["false_alarms"]
        parts.append(f"{plural(len(false), 'false alarm')} ({listed(false)})")
    return f"; against the truth: {', '.join(parts)}" if parts else ""


def _training_result(run: RunData) -> str:
    scores = [
        f"{percent(run.curve(name)[-1][1])} {METRICS[name] if name != 'accuracy' else 'accuracy'}"
        for name in run.curves
    ]
    where = f" at {plural(run.site_count, 'site')}" if run.site_count else ""
    after = f"after {plural(len(run.rounds), 'round')}{where}"
    if not scores:
        return f"{run.method} has no evaluated round {after}"
    return f"{run.method} reaches {' and '.join(scores[:2])} {after}"


def comparison_line(runs: Sequence[RunData]) -> str:
    """How the runs ended beside each other, in one sentence; empty when they share no curve."""
    shared = [name for name in ("bacc", "accuracy", "map", "auc") if all(name in run.curves for run in runs)]
    if len(runs) < 2 or not shared:
        return ""
    name = shared[0]
    scores = [run.summary.get(name, {}).get("last") for run in runs]
    if any(score is None for score in scores):
        return ""
    ends = ", ".join(f"{label} {percent(score)}" for label, score in zip(labels_of(runs), scores))
    return f"{METRICS[name]}, mean of the last {LAST} evaluated rounds: {ends}."


def comparison_table(runs: Sequence[RunData]) -> tuple[list[str], list[list[str]]]:
    """Several runs beside each other: the heads (one column a run) and one line a measure."""
    heads = ["", *(n if run.finished else f"{n}, not finished" for n, run in zip(labels_of(runs), runs))]
    rows = [["rounds", *(str(len(run.rounds)) for run in runs)]]
    for name in dict.fromkeys(name for run in runs for name in run.curves):
        for key, words in (("final", "at the end"), ("last", f"mean of the last {LAST}"), ("best", "best")):
            scores = [percent((run.summary.get(name) or {}).get(key)) for run in runs]
            rows.append([f"{METRICS[name]}, {words}", *scores])
    rows.append(["noisy sites found", *(_found_words(run) for run in runs)])
    if any(run.detection for run in runs):
        for key in ("precision", "recall"):
            rows.append([f"{key} of these", *(percent((run.detection or {}).get(key)) for run in runs)])
    rows.append(["sent by the sites", *(size(run.summary.get("bytes_up")) for run in runs)])
    rows.append(["refused replies", *(number(run.summary.get("refused")) for run in runs)])
    rows.append(["time", *(duration(run.summary.get("seconds")) for run in runs)])
    return heads, rows


def _found_words(run: RunData) -> str:
    return "not sought" if run.found is None else (listed(run.found, 6) or "none")


def verdict(line: dict[str, Any]) -> str:
    """A site's result in a word: what was found against what is true."""
    found, truth = line.get("noisy"), line.get("truth_noisy")
    if not isinstance(found, bool):
        return "noisy in truth" if truth is True else ""
    if not isinstance(truth, bool):
        return "looks noisy" if found else ""
    return {
        (True, True): "found",
        (True, False): "false alarm",
        (False, True): "missed",
        (False, False): "",
    }[found, truth]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
