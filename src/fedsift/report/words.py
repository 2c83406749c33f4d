"""Numbers and findings in words: the report and the terminal say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsift.contract.findings import Findings
from fedsift.runs import LAST, RunData, duration, labels_of, listed, number, percent, plural, size

METRICS = {"accuracy": "Accuracy", "bacc": "BACC", "auc": "AUC", "map": "mAP"}
METRIC_NOTES = {
    "accuracy": "share of test samples predicted right",
    "bacc": "balanced accuracy: the mean of the classes' recalls",
    "auc": "mean area under the ROC curve over the classes",
    "map": "mean average precision over the classes",
}


def headline(run: RunData) -> str:
    """One sentence: what was found."""
    if not run.rounds:
        return f"No round of {run.method} is finished yet"
    return _finding(run) if run.finished else f"Not finished, {progress(run)}: {_finding(run)}"


def progress(run: RunData) -> str:
    done = len(run.rounds)
    return f"{done} of {run.planned} rounds done" if run.planned else f"{plural(done, 'round')} done"


def _finding(run: RunData) -> str:
    if run.findings is not None and run.findings.no_clean_reference:
        return no_reference(run.findings) + _nobody_named(run)
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


def no_reference(found: Findings) -> str:
    """That nobody can be named, with what is known of the sites instead."""
    levels = sorted(found.level.values())
    spread = f" ({percent(levels[0], 0)} to {percent(levels[-1], 0)} of a site's)" if levels else ""
    return (
        f"No clean reference: at every site many labels look drawn at random{spread}, so none can be called noisy "
        "beside the others"
    )


def _nobody_named(run: RunData) -> str:
    """The truth beside it, where it is known."""
    truth = run.truth
    if truth is None or not run.site_count:
        return ""
    clean = run.site_count - len(truth)
    return (
        "; and in truth all are noisy"
        if clean == 0
        else f"; but in truth {clean} of {run.site_count} are clean"
    )


def borderline(run: RunData) -> str:
    """Said of a verdict that rounding might have turned; empty for any other."""
    found = run.findings
    return f" (borderline: {words_of_test(found)})" if found is not None and found.borderline else ""


def words_of_test(found: Findings) -> str:
    """A test for noisy sites in a few words."""
    words = f"p = {number(found.p_value)}, threshold {number(found.threshold)}"
    if found.steadiness is not None and found.steadiness < 1:
        words += f", the same in {percent(found.steadiness, 0)} of slightly shaken data"
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
    marks = [" (told)" if oracle(run) else "" for run in runs]
    ends = ", ".join(
        f"{label}{mark} {percent(score)}" for label, mark, score in zip(labels_of(runs), marks, scores)
    )
    return f"{METRICS[name]}, mean of the last {LAST} evaluated rounds: {ends}."


def oracle(run: RunData) -> str:
    """What the run was told of the truth that only a simulation knows, such as "noise rate 0.4 given"; else empty."""
    return str(run.summary.get("oracle") or "")


def comparison_table(runs: Sequence[RunData]) -> tuple[list[str], list[list[str]]]:
    """Several runs beside each other: the heads (one column a run) and one line a measure."""
    marked = [f"{label} (told)" if oracle(run) else label for label, run in zip(labels_of(runs), runs)]
    heads = ["", *(n if run.finished else f"{n}, not finished" for n, run in zip(marked, runs))]
    rows = [["rounds", *(str(len(run.rounds)) for run in runs)]]
    for name in dict.fromkeys(name for run in runs for name in run.curves):
        for key, words in (("final", "at the end"), ("last", f"mean of the last {LAST}"), ("best", "best")):
            scores = [percent((run.summary.get(name) or {}).get(key)) for run in runs]
            rows.append([f"{METRICS[name]}, {words}", *scores])
    rows.append(["noisy sites found", *(_found_words(run) for run in runs)])
    if any(run.detection for run in runs):
        for key in ("precision", "recall"):
            rows.append([f"{key} of these", *(percent((run.detection or {}).get(key)) for run in runs)])
    if any(oracle(run) for run in runs):
        rows.append(["told of the truth", *(oracle(run) or "nothing" for run in runs)])
    rows.append(["sent by the sites", *(size(run.summary.get("bytes_up")) for run in runs)])
    rows.append(["refused replies", *(number(run.summary.get("refused")) for run in runs)])
    rows.append(["time", *(duration(run.summary.get("seconds")) for run in runs)])
    return heads, rows


def _found_words(run: RunData) -> str:
    if run.findings is not None and run.findings.no_clean_reference:
        return "no clean reference"
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
