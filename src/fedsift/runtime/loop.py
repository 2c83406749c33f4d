"""The round loop of all transports: stages, rounds, evaluation, a line and a checkpoint a round."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fedsift.core import codec
from fedsift.core.codec import WireFormat
from fedsift.core.numbers import plain
from fedsift.core.ranges import AtLeastOne, Range, RangeChecked
from fedsift.protocol.federation import Round
from fedsift.protocol.method import Method, Stage
from fedsift.runs.events import Checkpointed, RoundDone, Started
from fedsift.runs.folder import PLAN, Checkpoint, RunFolder
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.federation import EngineFederation

Listener = Callable[[dict[str, Any]], None]
"""Told every finished round's line, e.g. to draw a progress display."""


@dataclass(frozen=True)
class EvaluationSchedule(RangeChecked):
    """When the loop evaluates. The study's `[evaluate]` table."""

    every: AtLeastOne = 1
    """Evaluate after every so many rounds; the last round of a stage always counts."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Share of a site's samples kept for evaluation there; 0.2 when the data has no test set."""


@dataclass(frozen=True)
class RunProgress(WireFormat):
    """The engine's part of a checkpoint."""

    state: Any
    accepted: dict[str, str]
    site_records: dict[str, dict[str, Any]]
    tallies: dict[str, Any]


def run_rounds(
    method: Method,
    federation: EngineFederation,
    folder: RunFolder,
    evaluate: Evaluator,
    *,
    schedule: EvaluationSchedule | None = None,
    listen: Listener | None = None,
    engine: str = "inprocess",
) -> Any:
    """Run a method from its last checkpoint, or from the start, to its end. Returns the final state."""
    schedule = schedule or EvaluationSchedule()
    write_plan(method, folder)
    state, done, tallies = _begin(method, federation, folder, engine)
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
                federation.say(_done(row))
                _checkpoint(folder, federation, state, number, tallies)
                federation.say(Checkpointed(number))
            federation.watch.whole += time.perf_counter() - started
            if listen is not None:
                listen(row)
            if number < total:
                federation.check_stop()
    folder.write_json("timings.json", federation.watch.table())
    return state


def write_plan(method: Method, folder: RunFolder) -> None:
    """Write the run's stages and rounds to its folder, readable without this program's classes."""
    plan = {
        "method": type(method).__name__,
        "rounds": method.total_rounds,
        "stages": _stages(method),
    }
    folder.write_json(PLAN, plan)


def _stages(method: Method) -> list[dict[str, Any]]:
    return [{"name": s.name, "rounds": s.rounds, "trains": s.trains} for s in method.stages()]


def _started(method: Method, federation: EngineFederation, folder: RunFolder, engine: str, done: int) -> Started:
    return Started(
        run=folder.id,
        method=type(method).__name__,
        engine=engine,
        sites=tuple(federation.sites),
        rounds=method.total_rounds,
        stages=tuple(_stages(method)),
        done=done,
        host=platform.node(),
        process=os.getpid(),
    )


OF_THE_ROUND = frozenset({"round", "of", "participants", "bytes_down", "bytes_up", "seconds"})
"""Fields of their own in the event of a round."""


def _done(row: dict[str, Any]) -> RoundDone:
    numbers = {
        name: float(value)
        for name, value in plain(row).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in OF_THE_ROUND
    }
    return RoundDone(
        row["round"], row["of"], row["stage"], row["participants"], row["bytes_down"], row["bytes_up"],
        row["seconds"], numbers,
    )  # fmt: skip


def _evaluated(federation: EngineFederation, evaluate: Evaluator, method: Method, state: Any) -> dict[str, Any]:
    if evaluate.test is None:
        return evaluate(method, state)  # asked of the sites, and timed as such
    with federation.watch("evaluation"):
        return evaluate(method, state)


def _begin(
    method: Method, federation: EngineFederation, folder: RunFolder, engine: str
) -> tuple[Any, int, dict[str, Any]]:
    point = folder.restore()
    federation.say(_started(method, federation, folder, engine, 0 if point is None else point.rounds_done))
    if point is None:
        federation.begin(Round("start", 0, -1), ())
        for reason in federation.set_aside.values():
            federation.warn(f"set aside before the first round: {reason}")
        return method.start(federation), 0, {}
    progress: RunProgress = codec.decoded(point.state, folder.checkpoint_file)
    federation.cohorts.update(progress.tallies.get("trainers", {}))
    federation.protection.recall(progress.tallies.get("protection", {}))
    federation.accepted = dict(progress.accepted)
    federation.site_records = {name: dict(values) for name, values in progress.site_records.items()}
    federation.restore(
        {
            site: codec.decoded(pages, folder.path / f"the notebook of site '{site}'")
            for site, pages in point.notebooks.items()
        }
    )
    return progress.state, point.rounds_done, dict(progress.tallies)


def _due(stage: Stage, index: int, schedule: EvaluationSchedule) -> bool:
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
    # a resumed run must not measure again and choose otherwise: the last bits would differ
    tallies["trainers"] = dict(federation.cohorts)
    # nor judge replies by another past than a run that was never stopped
    tallies["protection"] = federation.protection.memory()
    progress = RunProgress(state, federation.accepted, federation.site_records, tallies)
    notebooks = {site: codec.to_bytes(pages) for site, pages in federation.notebooks_to_keep().items()}
    folder.checkpoint(Checkpoint(number, codec.to_bytes(progress), _sites_so_far(federation, tallies), notebooks))


def _sites_so_far(federation: EngineFederation, tallies: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each site that answered, was refused or has a record, by name."""
    records, refusals = federation.site_records, tallies.get("refusals", {})
    known = [*federation.accepted, *(site for values in records.values() for site in values), *refusals]
    return [
        {
            "site": site,
            **{name: values.get(site) for name, values in records.items()},
            "replies_refused": refusals.get(site, 0),
        }
        for site in sorted(dict.fromkeys(known))
    ]
