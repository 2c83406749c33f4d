"""The loop that all engines share: stages, rounds, evaluation, one line and one checkpoint a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsift.contract.federation import Round
from fedsift.contract.method import Method, Stage
from fedsift.engines.evaluate import Evaluator
from fedsift.engines.federation import EngineFederation
from fedsift.engines.inprocess import InProcess
from fedsift.engines.runfolder import Checkpoint, RunFolder
from fedsift.local.dispatch import decisions, recall

Listener = Callable[[dict[str, Any]], None]
"""Told every finished round's line, e.g. to draw a progress display."""


@dataclass(frozen=True)
class Schedule:
    """When the loop evaluates. The study's `[evaluate]` table."""

    every: int = 1
    """Evaluate after every so many rounds; the last round of a stage always counts."""
    held_out: float = 0.0
    """Share of a site's samples kept for evaluation there; 0.2 when the data has no test set."""


def conduct(
    method: Method,
    federation: EngineFederation,
    folder: RunFolder,
    evaluate: Evaluator,
    *,
    schedule: Schedule | None = None,
    listen: Listener | None = None,
) -> Any:
    """Run a method from its last checkpoint, or from the start, to its end. Returns the final state."""
    schedule = schedule or Schedule()
    state, done, tallies = _begin(method, federation, folder)
    said_at_start = federation.log.warnings
    number, total = 0, method.total_rounds
    for stage in method.stages():
        for index in range(stage.rounds):
            number += 1
            if number <= done:
                continue
            started = time.perf_counter()
            federation.begin(Round(stage.name, index, number - 1), stage.asks)
            federation.log.warnings += said_at_start
            said_at_start = []
            state = stage.step(state, federation)
            metrics = _evaluated(federation, evaluate, method, state) if _due(stage, index, schedule) else {}
            row = _line(federation, stage, number, metrics, time.perf_counter() - started, tallies)
            row["of"] = total
            with federation.watch("checkpoint"):
                folder.append_round(row)
                _checkpoint(folder, federation, state, number, tallies)
            federation.watch.whole += time.perf_counter() - started
            if listen is not None:
                listen(row)
    folder.write_json("timings.json", federation.watch.table())
    return state


def _evaluated(
    federation: EngineFederation, evaluate: Evaluator, method: Method, state: Any
) -> dict[str, Any]:
    if evaluate.test is None:
        return evaluate(method, state)  # asked of the sites, and timed as such
    with federation.watch("evaluation"):
        return evaluate(method, state)


def _begin(
    method: Method, federation: EngineFederation, folder: RunFolder
) -> tuple[Any, int, dict[str, Any]]:
    restored = folder.restore()
    if restored is None:
        federation.begin(Round("start", 0, -1), ())
        return method.start(federation), 0, {}
    point, notebooks = restored
    recall(point.tallies.get("trainers", {}))
    federation.accepted = dict(point.accepted)
    federation.site_records = {name: dict(values) for name, values in point.site_records.items()}
    if isinstance(federation, InProcess):
        federation.notebooks = notebooks
    return point.state, point.rounds_done, dict(point.tallies)


def _due(stage: Stage, index: int, schedule: Schedule) -> bool:
    if not stage.trains:
        return False
    return (index + 1) % schedule.every == 0 or index + 1 == stage.rounds


def _line(
    federation: EngineFederation,
    stage: Stage,
    number: int,
    metrics: dict[str, Any],
    seconds: float,
    tallies: dict[str, Any],
) -> dict[str, Any]:
    log = federation.log
    for key, amount in (
        ("bytes_down", log.bytes_down),
        ("bytes_up", log.bytes_up),
        ("refused", len(log.refused)),
    ):
        tallies[key] = tallies.get(key, 0) + amount
    tallies["participations"] = tallies.get("participations", 0) + len(log.participants)
    seen = tallies.setdefault("refusals", {})
    for site in log.refused:
        seen[site] = seen.get(site, 0) + 1
    return {
        "round": number,
        "stage": stage.name,
        "trains": stage.trains,
        **metrics,
        **log.values,
        "participants": len(log.participants),
        "refused": log.refused,
        "replies": log.replies,
        "bytes_down": log.bytes_down,
        "bytes_up": log.bytes_up,
        "warnings": log.warnings,
        "seconds": round(seconds, 4),
    }


def _checkpoint(
    folder: RunFolder, federation: EngineFederation, state: Any, number: int, tallies: dict[str, Any]
) -> None:
    notebooks: dict[str, dict[str, Any]] = {}
    touched: set[str] = set()
    if isinstance(federation, InProcess):
        notebooks, touched = federation.notebooks, federation.touched
    # a resumed run must not measure again and choose otherwise: the last bits would differ
    tallies["trainers"] = decisions()
    point = Checkpoint(number, state, federation.accepted, federation.site_records, {}, tallies)
    folder.checkpoint(point, notebooks, touched)
    if isinstance(federation, InProcess):
        federation.touched = set()
