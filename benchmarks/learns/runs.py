"""Runs beside the table's: what a method reaches with a step, a budget or a part of its own, each kept in runs.csv.

A run is named by what it was: kind of data, method, settings, seed, whether labels were wrong. `python -m
benchmarks.learns.runs` computes those that `own.json` and `reasons.json` name and runs.csv does not hold, one after
the other, and writes each as it comes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.files import read_list, write_list

HERE = Path(__file__).parent
FILE = HERE / "runs.csv"
KEY = ("kind", "seed", "wrong_labels", "method.name", "set", "metric")


@dataclass(frozen=True)
class Trial:
    """One run."""

    kind: str
    method: Mapping[str, Any]
    settings: Sequence[str]
    seed: int
    wrong_labels: bool = False

    @property
    def key(self) -> str:
        parts = [self.kind, dict(self.method), [*self.settings], self.seed, self.wrong_labels]
        return json.dumps(parts, sort_keys=True)


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Every run that is known, by its key."""
    return {_trial(one).key: one for one in read_list(file)}


def _trial(one: Mapping[str, Any]) -> Trial:
    return Trial(one["kind"], one["method"], one["set"], one["seed"], one["wrong_labels"])


def value(trial: Trial, known: Mapping[str, Mapping[str, Any]], metric: str | None = None) -> float | None:
    """The kind's figure of a run, or another that it was measured by; None where it was not run."""
    found = known.get(trial.key)
    if found is None:
        return None
    figure: float | None = found["values"].get(metric or found["metric"])
    return figure


def compute(trial: Trial) -> dict[str, Any]:
    from benchmarks.learns.__main__ import ending
    from benchmarks.learns.rows import KINDS, Row

    kind = KINDS[trial.kind]
    began = time.process_time()
    settings = () if trial.wrong_labels else kind.clean
    values = ending(kind, Row(trial.method, tuple(trial.settings)), settings, trial.seed)
    return {
        "kind": trial.kind,
        "method": dict(trial.method),
        "set": [*trial.settings],
        "seed": trial.seed,
        "wrong_labels": trial.wrong_labels,
        "metric": kind.metric,
        "values": values,
        "seconds": round(time.process_time() - began, 1),
    }


def wanted() -> Iterator[Trial]:
    """All that the two lists name; those of own.json that depend on a choice come once it can be made."""
    from benchmarks.learns import own, reasons

    yield from own.trials(read())
    yield from reasons.trials()


def main() -> None:
    while True:
        known = read()
        trial = next((one for one in wanted() if one.key not in known), None)
        if trial is None:
            return
        found = compute(trial)
        every = [*known.values(), found]
        write_list(FILE, every, KEY)
        wrong = "noisy" if trial.wrong_labels else "clean"
        print(trial.kind, dict(trial.method), [*trial.settings], trial.seed, wrong, found["values"],
              found["seconds"], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
