"""Groups runs that differ in nothing but their seed into one line, column or row."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedsift.core.numbers import listed, plural
from fedsift.formulas.intervals import t_interval
from fedsift.runs.reading import RunData, labels_of

NOT_COMPUTING = frozenset({"seed", "name", "engine"})
"""Parts of a study in which runs of one group may differ: the seed, what it is called, and where it was answered."""
FEDERATION = ("data", "partition", "noise")


@dataclass(frozen=True)
class SeedGroup:
    """The runs of one study over its seeds."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(int(run.study.get("seed", 1)) for run in self.runs))

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    def figures(self, pick: Callable[[RunData], Any]) -> list[float]:
        """One figure a run, where it has one."""
        return [float(value) for run in self.runs if isinstance(value := pick(run), int | float)]

    def curve(self, name: str) -> list[tuple[int, float, float, float]]:
        """(round, mean, low, high) over the runs that were measured in it; low and high are those of its interval."""
        by_round: dict[int, list[float]] = {}
        for run in self.runs:
            for number, value in run.curve(name):
                by_round.setdefault(number, []).append(value)
        return [(number, *_middle(values)) for number, values in sorted(by_round.items())]

    def band(self, name: str) -> list[tuple[int, float, float]]:
        """(round, lowest, highest) of a score of which only intervals are known, over the runs."""
        by_round: dict[int, list[float]] = {}
        for run in self.runs:
            for number, low, high in run.band(name):
                by_round.setdefault(number, []).extend((low, high))
        return [(number, min(values), max(values)) for number, values in sorted(by_round.items())]


@dataclass(frozen=True)
class SeedSpread:
    """A figure over seeds: mean, standard deviation (of a sample), and Student's 95 % interval of the mean."""

    count: int
    mean: float
    sd: float | None
    low: float
    high: float


def spread_of(values: Sequence[float]) -> SeedSpread | None:
    if not values:
        return None
    mean, low, high = _middle(values)
    return SeedSpread(len(values), mean, statistics.stdev(values) if len(values) > 1 else None, low, high)


def _middle(values: Sequence[float]) -> tuple[float, float, float]:
    mean = statistics.fmean(values)
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return mean, mean, mean
    return (mean, *t_interval(values))


def groups_of(runs: Sequence[RunData]) -> list[SeedGroup]:
    """The groups, in the order in which their first runs are named.

    Two runs of one study and one seed are no sample: then nothing is averaged, and each run stands for itself.
    """
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    doubled = any(len({run.study.get("seed", 1) for run in members}) < len(members) for members in found.values())
    if doubled or len(found) == len(runs):
        return [SeedGroup(label, (run,)) for label, run in zip(labels_of(runs), runs)]
    members = list(found.values())
    return [SeedGroup(label, tuple(some)) for label, some in zip(_labels(members), members)]


def _key(run: RunData) -> str:
    computing = {key: value for key, value in run.study.items() if key not in NOT_COMPUTING}
    return json.dumps([run.method_key, computing], sort_keys=True, default=str)


def _labels(groups: Sequence[Sequence[RunData]]) -> list[str]:
    """The method's name, and where several groups share it the settings in which these differ."""
    firsts = [group[0] for group in groups]
    names = [run.method for run in firsts]
    labels = []
    for run, name in zip(firsts, names):
        same = [other for other, other_name in zip(firsts, names) if other_name == name]
        labels.append(name if len(same) == 1 else f"{name} ({_difference(run, same)})")
    return labels


def _difference(run: RunData, others: Sequence[RunData]) -> str:
    flat = [_flat(other.study) for other in others]
    mine = _flat(run.study)
    keys = [
        key
        for key in dict.fromkeys(key for one in flat for key in one)
        if len({json.dumps(one.get(key), default=str) for one in flat}) > 1
        and key.partition(".")[0] not in NOT_COMPUTING
    ]
    return ", ".join(f"{key.removeprefix('method.')} = {mine.get(key, '–')}" for key in keys[:3]) or run.id


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{above}{key}."))
        else:
            found[f"{above}{key}"] = value
    return found


def cautions(groups: Sequence[SeedGroup]) -> list[str]:
    """What to mind when these are compared."""
    found = []
    runs = [run for group in groups for run in group.runs]
    first = runs[0].study
    if any(run.study.get(key) != first.get(key) for run in runs for key in FEDERATION):
        found.append("These runs differ in seed, data, partition or noise: they are not on the same federation.")
    elif len({group.seeds for group in groups}) > 1:
        if all(len(group.runs) == 1 for group in groups):
            found.append("These runs differ in seed, data, partition or noise: they are not on the same federation.")
        else:
            words = "; ".join(f"{group.label}: {listed([str(seed) for seed in group.seeds])}" for group in groups)
            found.append(f"Not every method ran with every seed ({words}): part of a difference may be the seeds'.")
    unfinished = [run.id for run in runs if not run.finished]
    if unfinished and len(runs) > len(groups):
        found.append(f"Not finished: {listed(unfinished)}.")
    return found


def sample_words(groups: Sequence[SeedGroup]) -> str:
    """What the figures of grouped runs mean; empty where nothing was averaged."""
    most = max(len(group.runs) for group in groups)
    if most < 2:
        return ""
    several = sorted({len(group.runs) for group in groups})
    counts = plural(several[0], "seed") if len(several) == 1 else f"{several[0]} to {several[-1]} seeds"
    return (
        f"Mean ± standard deviation over {counts}; in brackets, and shaded in the curves, "
        "Student's 95 % interval of the mean."
    )
