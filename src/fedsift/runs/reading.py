"""Reads a run, finished or not, from its folder; what is missing is noted."""

from __future__ import annotations

import csv
import json
import platform
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsift.core.errors import RunError
from fedsift.core.text import uncell
from fedsift.protocol.findings import Findings
from fedsift.runs.events import FAILED, FINISHED, STOPPED, Ended, Started
from fedsift.runs.folder import FAILURE, PLAN, SUMMARY, RunFolder

TEXT_COLUMNS = frozenset({"site", "model"})
"""Columns of sites.csv that stay text, whatever they look like: a site may well be called 12 or True."""
SAME_FEDERATION = ("seed", "data", "partition", "noise")
"""Parts of a study that make the federation; runs that agree in them can be compared."""


@dataclass(frozen=True)
class StageSpan:
    """Consecutive rounds of one stage."""

    stage: str
    first: int
    last: int

    @property
    def words(self) -> str:
        return f"round {self.first}" if self.first == self.last else f"rounds {self.first}–{self.last}"


@dataclass(frozen=True)
class RunData:
    """One run, as far as its folder describes it."""

    path: Path
    study: dict[str, Any]
    """The resolved study."""
    study_text: str
    rounds: list[dict[str, Any]]
    sites: list[dict[str, Any]]
    """One table line a site; of an unfinished run only what the methods recorded so far."""
    summary: dict[str, Any]
    """The written summary, or of an unfinished run one made from its rounds."""
    finished: bool
    plan: dict[str, Any]
    """What was written when the run began: the method as its paper writes it, and its stages."""
    missing: tuple[str, ...] = ()
    """What the folder lacks, in words for the user."""
    classes: tuple[str, ...] = field(default=())

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def method_key(self) -> str:
        return str(self.study.get("method", {}).get("name", "fedavg"))

    @property
    def method(self) -> str:
        """The method as its paper writes it."""
        return str(self.plan.get("method") or self.method_key)

    @property
    def planned(self) -> int | None:
        """Rounds that the method has in all; None when the run never began."""
        rounds = self.plan.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def site_names(self) -> list[str]:
        return [str(line["site"]) for line in self.sites]

    @property
    def site_count(self) -> int | None:
        if self.sites:
            return len(self.sites)
        count = self.study.get("partition", {}).get("sites")
        return count if isinstance(count, int) else None

    @property
    def found(self) -> list[str] | None:
        """Sites that the method called noisy last; None when it never said, or could not for want of a clean one."""
        if self.findings is None or self.findings.no_clean_reference:
            return None
        return [str(site) for site in self.findings.noisy]

    @property
    def findings(self) -> Findings | None:
        """What the method found last, and how sure it was; None when it never said."""
        return Findings.of(self.summary)

    @property
    def detection(self) -> dict[str, Any] | None:
        scores = self.summary.get("detection")
        return scores if isinstance(scores, dict) else None

    @property
    def truth(self) -> list[str] | None:
        """Sites that the simulation made noisy; None when nobody knows."""
        if not any(isinstance(line.get("truth_noisy"), bool) for line in self.sites):
            return None
        return [str(line["site"]) for line in self.sites if line.get("truth_noisy") is True]

    @property
    def curves(self) -> list[str]:
        """Scores that are known; one that is an interval in any round is in `intervals` instead."""
        return [name for name in CURVES if name not in self.intervals and self.curve(name)]

    @property
    def intervals(self) -> list[str]:
        """Scores of which only intervals are known, since sites withhold small counts."""
        return [name for name in CURVES if any(row.get(f"{name}_low") is not None for row in self.rounds)]

    def band(self, name: str) -> list[tuple[int, float, float]]:
        """(round, low, high) of a score that is an interval; both are the value where it is known."""
        found = []
        for row in self.rounds:
            low, high = row.get(f"{name}_low", row.get(name)), row.get(f"{name}_high", row.get(name))
            if low is not None and high is not None:
                found.append((int(row["round"]), float(low), float(high)))
        return found

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(round, value) wherever the value was measured."""
        return [(int(row["round"]), float(row[name])) for row in self.rounds if row.get(name) is not None]

    def spans(self) -> list[StageSpan]:
        spans: list[StageSpan] = []
        for row in self.rounds:
            stage, number = str(row.get("stage", "")), int(row["round"])
            if spans and spans[-1].stage == stage:
                spans[-1] = StageSpan(stage, spans[-1].first, number)
            else:
                spans.append(StageSpan(stage, number, number))
        return spans

    def last_value(self, name: str) -> Any:
        """The value of the last round that has one."""
        return next((row[name] for row in reversed(self.rounds) if row.get(name) is not None), None)

    def replies_by_stage(self) -> dict[str, list[str]] | None:
        """Reply classes that left the sites so far, by stage; None when some round does not say."""
        seen: dict[str, list[str]] = {}
        for row in self.rounds:
            if not isinstance(row.get("replies"), dict):
                return None
            names = seen.setdefault(str(row.get("stage", "")), [])
            for sent in row["replies"].values():
                names += [str(name) for name in sent if name not in names]
        return seen or None


def read_run(path: Path) -> RunData:
    """Read a run folder, finished or not. Raises RunError when it is no run folder at all."""
    folder = RunFolder.open(path)
    missing: list[str] = []
    text = folder.study_file.read_text("utf-8")
    study = _study(text, missing)
    rounds = [row for row in folder.rounds() if isinstance(row, dict) and "round" in row]
    summary, finished = _summary(folder, rounds, missing)
    sites = _sites(folder, finished, missing)
    if not rounds:
        missing.append("No round is finished yet: there are no curves and no measurements.")
    failure = _json(folder, FAILURE)
    if failure:
        missing.insert(0, f"The run stopped: {failure.get('error', 'no reason was written')}")
    return RunData(
        path=folder.path.absolute(),
        study=study,
        study_text=text,
        rounds=rounds,
        sites=sites,
        summary=summary,
        finished=finished,
        plan=_json(folder, PLAN),
        missing=tuple(missing),
        classes=_classes(summary, rounds, sites),
    )


def same_federation(runs: Sequence[RunData]) -> bool:
    first = runs[0]
    return all(run.study.get(key) == first.study.get(key) for run in runs for key in SAME_FEDERATION)


def labels_of(runs: Sequence[RunData]) -> list[str]:
    """A short name for each run: its method, and the folder where that is not unique."""
    names = [run.method for run in runs]
    return [f"{n} ({run.id})" if names.count(n) > 1 else n for n, run in zip(names, runs)]


def numbers_of(values: Sequence[Any]) -> list[float | None]:
    """A recorded list as numbers; whatever is none becomes None."""
    return [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]


def _study(text: str, missing: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        missing.append(f"study.toml cannot be read: {error}.")
        return {}


def _json(folder: RunFolder, name: str) -> dict[str, Any]:
    """A file's table; empty where the file is missing or damaged."""
    try:
        value = folder.read_json(name)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _summary(folder: RunFolder, rounds: list[dict[str, Any]], missing: list[str]) -> tuple[dict[str, Any], bool]:
    try:
        written = folder.read_json(SUMMARY)
    except (json.JSONDecodeError, UnicodeDecodeError):
        written = None
        missing.append("summary.json cannot be read; its figures are made from the rounds.")
    if isinstance(written, dict):
        return written, True
    try:
        return summarise(rounds), folder.finished
    except (KeyError, TypeError) as error:
        missing.append(f"rounds.jsonl lacks what a summary needs ({error}).")
        return {}, folder.finished


def _sites(folder: RunFolder, finished: bool, missing: list[str]) -> list[dict[str, Any]]:
    file = folder.path / "sites.csv"
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as text:
            return [_typed(line) for line in csv.DictReader(text) if line.get("site")]
    if finished:
        missing.append("sites.csv is missing: what is known of the sites comes from the checkpoint.")
    else:
        missing.append("sites.csv is written when the run ends: counts of samples and labels and the truth come then.")
    header = folder.checkpointed()
    return [] if header is None else [line for line in header.sites if line.get("site")]


def _typed(line: dict[str, str]) -> dict[str, Any]:
    return {key: uncell(text) if key in TEXT_COLUMNS else _value(text) for key, text in line.items() if key}


def _value(text: Any) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if not isinstance(text, str) or text == "":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _classes(summary: dict[str, Any], rounds: list[dict[str, Any]], sites: list[dict[str, Any]]) -> tuple[str, ...]:
    """Names of the classes; of an unfinished run their numbers, as many as the measurements have."""
    if summary.get("classes"):
        return tuple(str(name) for name in summary["classes"])
    lists = [row["recall"] for row in rounds if isinstance(row.get("recall"), list)]
    lists += [line["indicator"] for line in sites if isinstance(line.get("indicator"), list)]
    return tuple(str(k) for k in range(max((len(values) for values in lists), default=0)))


# What a run's lines add up to
# ------------------------------------------------------------------------------


# What a paper's table takes from a curve of one value a round
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveSummary:
    best: float
    best_round: int | None
    """The first round that reaches `best`, from 0; None for a curve without values."""
    last: float
    """Mean of the last rounds."""
    best_from: float
    """The best value from a given round on; NaN if the curve is shorter."""


def summarise_curve(curve: ArrayLike, last: int = 10, from_round: int = 0) -> CurveSummary:
    """What a table takes from a curve; rounds without a value (NaN) are passed over.

    last: how many rounds at the end are averaged (all if fewer); from_round: where `best_from` begins.
    """
    values = np.asarray(curve, dtype=np.float64).ravel()
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return CurveSummary(float("nan"), None, float("nan"), float("nan"))
    best_round = int(known[values[known].argmax()])
    later = known[known >= from_round]
    return CurveSummary(
        best=float(values[best_round]),
        best_round=best_round,
        last=float(values[known[-last:] if last > 0 else known[:0]].mean()) if last > 0 else float("nan"),
        best_from=float(values[later].max()) if len(later) else float("nan"),
    )


def targeted_cost(accuracy: Sequence[float], participants: Sequence[int], target: float) -> int | None:
    """Participations until the first round with accuracy >= target, this one included; None if never.

    FedCorr C.3 counts every site in every round.
    """
    reached = np.flatnonzero(np.asarray(accuracy, dtype=np.float64) >= target)
    return int(sum(participants[: reached[0] + 1])) if len(reached) else None


CURVES = ("accuracy", "bacc", "auc", "map", "mean_site_accuracy")
LAST = 10
"""Rounds over which "last" is averaged, as FedNoRo's tables do."""


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Best and last of every curve, the sites called noisy last, what travelled, what was refused.

    A score of which only intervals are known has no best and no last: its last interval stands in `intervals`.
    """
    result: dict[str, Any] = {"rounds": len(rows)}
    for name in CURVES:
        ranges = [[row[f"{name}_low"], row[f"{name}_high"]] for row in rows if row.get(f"{name}_low") is not None]
        if ranges:
            result.setdefault("intervals", {})[name] = ranges[-1]
            continue
        curve = [row[name] for row in rows if row.get(name) is not None]
        if curve:
            found = summarise_curve(curve, last=LAST)
            where = [row["round"] for row in rows if row.get(name) is not None]
            result[name] = {
                "best": found.best,
                "best_round": None if found.best_round is None else where[found.best_round],
                "last": found.last,
                "final": curve[-1],
            }
    findings = Findings.last(rows)
    if findings is not None:
        result["noisy_sites_found"] = None if findings.no_clean_reference else list(findings.noisy)
        result["findings"] = findings.line()
    result["bytes_down"] = sum(row["bytes_down"] for row in rows)
    result["bytes_up"] = sum(row["bytes_up"] for row in rows)
    result["participations"] = sum(row["participants"] for row in rows)
    result["refused"] = sum(len(row["refused"]) for row in rows)
    result["seconds"] = round(sum(row["seconds"] for row in rows), 3)
    result["warnings"] = list(dict.fromkeys(text for row in rows for text in row.get("warnings", ())))
    return result


def refusals(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many replies of each site were refused, for the sites that had any."""
    counts: dict[str, int] = {}
    for row in rows:
        for site in row["refused"]:
            counts[site] = counts.get(site, 0) + 1
    return counts


# The state of a run
# ------------------------------------------------------------------------------


RUNNING, STARTING, STOPPING = "running", "starting", "stopping"
INTERRUPTED, SILENT, NEW = "interrupted", "silent", "new"
SILENCE = 600.0
"""Seconds without an event after which a run on another machine is called silent."""


@dataclass(frozen=True)
class RunState:
    """A word, and a sentence where there is more to say."""

    word: str
    why: str = ""

    @property
    def active(self) -> bool:
        return self.word in (RUNNING, STARTING, STOPPING)

    @property
    def resumable(self) -> bool:
        return self.word in (STOPPED, FAILED, INTERRUPTED, NEW)


def state_of(
    folder: RunFolder,
    started: Started | None,
    ended: Ended | None,
    last_at: float,
    clock: float | None = None,
) -> RunState:
    """`started` and `ended`: the last of each in the events, `ended` None when a start came after it."""
    if folder.in_use:
        if folder.asked_to_stop:
            return RunState(STOPPING, "it stops at the next safe point")
        if started is None or ended is not None:
            return RunState(STARTING, "data are read, sites are waited for")
        return RunState(RUNNING)
    if folder.finished:
        return RunState(FINISHED)
    if ended is not None:
        if ended.state == FINISHED:
            return RunState(FAILED, "it ended, but summary.json is missing")
        return RunState(ended.state if ended.state in (FAILED, STOPPED) else FAILED, ended.error)
    failure = _failure(folder)
    if failure:
        return RunState(FAILED, failure)
    if started is None:
        return RunState(INTERRUPTED, "it has no events") if folder.rounds_file.is_file() else RunState(NEW)
    if started.host and started.host != platform.node():  # a lock on another machine may not be seen here
        quiet = (time.time() if clock is None else clock) - last_at
        if quiet < SILENCE:
            return RunState(RUNNING, f"on {started.host}")
        return RunState(SILENT, f"no sign of life from {started.host} for {quiet / 60:.0f} minutes")
    return RunState(INTERRUPTED, "its process ended without a word; nothing up to the last checkpoint is lost")


def _failure(folder: RunFolder) -> str:
    try:
        value = folder.read_json(FAILURE)
    except RunError as error:
        return str(error)
    except (OSError, ValueError):
        return ""
    return str(value.get("error", "")) if isinstance(value, dict) else ""
