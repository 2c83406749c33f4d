"""Sentences about numbers and findings, the same in report and terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fedsift.core.numbers import duration, listed, named, number, percent, plural, size
from fedsift.protocol.findings import Findings
from fedsift.report.groups import SeedGroup, SeedSpread, groups_of, spread_of
from fedsift.runs.reading import LAST, RunData

METRICS = {
    "accuracy": "Accuracy",
    "bacc": "BACC",
    "auc": "AUC",
    "map": "mAP",
    "mean_site_accuracy": "Mean site accuracy",
}
METRIC_NOTES = {
    "accuracy": "share of test samples predicted right",
    "bacc": "balanced accuracy: the mean of the classes' recalls",
    "auc": "mean area under the ROC curve over the classes",
    "map": "mean average precision over the classes",
    "mean_site_accuracy": "the mean over the sites of the accuracy of each one's own model",
}
INTERVAL_NOTE = "an interval: sites withhold small counts, and any value in it is possible"
"""Said of a score of which no more is known."""


NAMED = 4
"""Methods named in a sentence that compares."""
Name = Callable[[object], str]
"""How a site's name is written within a sentence."""


def headline(run: RunData, name: Name = named) -> str:
    """One sentence: what was found."""
    if not run.rounds:
        return f"No round of {run.method} is finished yet"
    finding = _finding(run, name)
    return finding if run.finished else f"Not finished, {progress(run)}: {finding}"


def progress(run: RunData) -> str:
    done = len(run.rounds)
    return f"{done} of {run.planned} rounds done" if run.planned else f"{plural(done, 'round')} done"


def _finding(run: RunData, name: Name) -> str:
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
        look = f"{count}{of} {sites} {'looks' if count == 1 else 'look'} noisy: {listed(run.found, name=name)}"
    return look + borderline(run) + _against_truth(run, name)


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
    return "; and in truth all are noisy" if clean == 0 else f"; but in truth {clean} of {run.site_count} are clean"


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


def _against_truth(run: RunData, name: Name) -> str:
    scores = run.detection
    if scores is None:
        return ""
    if scores.get("exact"):
        return "; this matches the truth exactly" if run.found else "; and none is"
    parts = []
    if scores.get("missed"):
        parts.append(f"{len(scores['missed'])} missed ({listed(scores['missed'], name=name)})")
    if scores.get("false_alarms"):
        false = scores["false_alarms"]
        parts.append(f"{plural(len(false), 'false alarm')} ({listed(false, name=name)})")
    return f"; against the truth: {', '.join(parts)}" if parts else ""


def _training_result(run: RunData) -> str:
    scores = [
        f"{percent(run.curve(name)[-1][1])} {METRICS[name] if 'ccuracy' not in name else METRICS[name].lower()}"
        for name in run.curves
    ]
    where = f" at {plural(run.site_count, 'site')}" if run.site_count else ""
    after = f"after {plural(len(run.rounds), 'round')}{where}"
    if not scores and run.intervals:
        return f"The scores of {run.method} {after} are intervals, since the sites withhold small counts"
    if not scores:
        return f"{run.method} has no evaluated round {after}"
    return f"{run.method} reaches {' and '.join(scores[:2])} {after}"


def comparison_line(runs: Sequence[RunData]) -> str:
    """How the methods ended beside each other, in one sentence; empty when they share no curve."""
    shared = [name for name in ("bacc", "accuracy", "map", "auc") if all(name in run.curves for run in runs)]
    groups = groups_of(runs)
    if len(groups) < 2 or not shared:
        return ""
    name = shared[0]
    scores = [spread_of(group.figures(_score(name, "last"))) for group in groups]
    if any(score is None for score in scores):
        return ""
    ends = [(score.mean, f"{_label(group)} {_mean_words(score)}") for group, score in zip(groups, scores) if score]
    which = ""
    if len(ends) > NAMED:
        ends = sorted(ends, key=lambda end: -end[0])[:NAMED]
        which = f", the highest {NAMED} of {len(groups)}"
    words = ", ".join(text for _, text in ends)
    return f"{METRICS[name]}, mean of the last {LAST} evaluated rounds{which}: {words}."


def interval_words(interval: Sequence[float | None]) -> str:
    """From where to where a score lies, rounded outwards: a reader may rely on both ends."""
    low, high = (math.nan if end is None else float(end) for end in interval)
    return f"{math.floor(round(1000 * low, 6)) / 10:.1f}\u00a0to\u00a0{math.ceil(round(1000 * high, 6)) / 10:.1f}%"


def oracle(run: RunData) -> str:
    """What the method was given of the truth, which only a simulation knows, such as "noise rate 0.4 given"; else
    empty."""
    return str(run.summary.get("oracle") or "")


def comparison_table(runs: Sequence[RunData]) -> tuple[list[str], list[list[str]]]:
    """Several methods beside each other: the heads (one column a method) and one line a measure."""
    groups = groups_of(runs)
    heads = ["", *(_label(g) if g.finished else f"{_label(g)}, not finished" for g in groups)]
    rows = [["rounds", *(_same(g, lambda run: str(len(run.rounds))) for g in groups)]]
    if any(len(group.runs) > 1 for group in groups):
        rows.insert(0, ["seeds", *(listed([str(seed) for seed in g.seeds], 12) for g in groups)])
    for name in dict.fromkeys(name for run in runs for name in run.curves):
        for key, words in (("final", "at the end"), ("last", f"mean of the last {LAST}"), ("best", "best")):
            scores = [spread_words(spread_of(g.figures(_score(name, key)))) for g in groups]
            rows.append([f"{METRICS[name]}, {words}", *scores])
    for name in dict.fromkeys(name for run in runs for name in run.intervals):
        rows.append([f"{METRICS[name]}, at the end, between", *(_same(g, _interval(name)) for g in groups)])
    rows.append(["noisy sites found", *(_found_words(g) for g in groups)])
    if any(run.detection for run in runs):
        for key in ("precision", "recall"):
            scores = [spread_words(spread_of(g.figures(_detected(key)))) for g in groups]
            rows.append([f"{key} of these", *scores])
    if any(oracle(run) for run in runs):
        rows.append(["given of the truth", *(_same(g, lambda run: oracle(run) or "nothing") for g in groups)])
    for words, key, unit in (
        ("sent by the sites", "bytes_up", size),
        ("refused replies", "refused", number),
        ("time", "seconds", duration),
    ):
        rows.append([words, *(unit(_mean(g.figures(_summed(key)))) for g in groups)])
    return heads, rows


def _label(group: SeedGroup) -> str:
    """The group's name, marked "(oracle)" where a run of it was given part of the truth."""
    return f"{group.label} (oracle)" if any(oracle(run) for run in group.runs) else group.label


def _score(name: str, key: str) -> Callable[[RunData], Any]:
    return lambda run: (run.summary.get(name) or {}).get(key)


def _interval(name: str) -> Callable[[RunData], str]:
    def words(run: RunData) -> str:
        found = (run.summary.get("intervals") or {}).get(name)
        return interval_words(found) if found else percent(_score(name, "final")(run))

    return words


def _detected(key: str) -> Callable[[RunData], Any]:
    return lambda run: (run.detection or {}).get(key)


def _summed(key: str) -> Callable[[RunData], Any]:
    return lambda run: run.summary.get(key)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _same(group: SeedGroup, words: Callable[[RunData], str]) -> str:
    """What the runs of a group have in common, or each of the different values once."""
    return " / ".join(dict.fromkeys(words(run) for run in group.runs))


def _mean_words(score: SeedSpread | None) -> str:
    if score is None or score.sd is None:
        return percent(None if score is None else score.mean)
    return f"{100 * score.mean:.1f}\u00a0±\u00a0{100 * score.sd:.1f}%"


def spread_words(score: SeedSpread | None) -> str:
    """A share over seeds: mean ± sd (interval); of one run the share alone."""
    if score is None or score.sd is None:
        return _mean_words(score)
    low, high = max(0.0, score.low), min(1.0, score.high)  # a share, which Student's interval does not know
    return f"{_mean_words(score)} ({100 * low:.1f}\u00a0to\u00a0{100 * high:.1f})"


def _found_words(group: SeedGroup) -> str:
    if len(group.runs) == 1:
        run = group.runs[0]
        if run.findings is not None and run.findings.no_clean_reference:
            return "no clean reference"
        return "not sought" if run.found is None else (listed(run.found, 6) or "none")
    sought = [run for run in group.runs if run.found is not None]
    if not sought:
        return "not sought"
    judged = [run for run in sought if run.detection is not None]
    if not judged:
        counts = sorted({len(run.found or ()) for run in sought})
        return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    exact = sum(bool((run.detection or {}).get("exact")) for run in judged)
    return f"exactly those in {exact} of {plural(len(judged), 'run')}"


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
