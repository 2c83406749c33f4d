"""Forecasts a study: tries one round of every stage on a few samples, and estimates seconds and memory."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedsift.core.errors import FedsiftError
from fedsift.data.dataset import FederatedDataset
from fedsift.protocol.disclosure import declared_replies, disclosure_rows
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.in_process import InProcess
from fedsift.runtime.loop import EvaluationSchedule
from fedsift.study.running import open_in_process
from fedsift.study.study import Study
from fedsift.training.processes import threads_of
from fedsift.training.requests import Evaluate

# How long a run will take: one round of every stage, and its evaluation, on parts of the data, with
# the run's own trainer, workers and threads
# ------------------------------------------------------------------------------

FEW, MORE = 3, 9
"""Batches of a mean site in the two parts of the data."""
FEW_EPOCHS = 3
QUICK, REPEATS = 2.0, 3
"""A trial that takes fewer seconds than this is repeated; the fastest counts."""


@dataclass
class StageTrial:
    """Seconds of one round of each stage and of its evaluation, by the stage's name."""

    rounds: dict[str, float] = field(default_factory=dict)
    evaluations: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.rounds.values()) + sum(self.evaluations.values())

    def fastest(self, other: StageTrial) -> StageTrial:
        return StageTrial(
            {name: min(value, other.rounds.get(name, value)) for name, value in self.rounds.items()},
            {name: min(value, other.evaluations.get(name, value)) for name, value in self.evaluations.items()},
        )


@dataclass(frozen=True)
class StageTimes:
    """How long each stage of a run will take."""

    stages: dict[str, float]
    """Seconds of all its rounds and their evaluations, by the stage's name; one that could not be tried is left out."""
    samples: int
    """How many samples were trained on to find out."""

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


def time_study(study: Study) -> StageTimes:
    """The same for a study whose data nobody has laid out yet."""
    federated = study.load_data()
    return time_stages(study.completed(study.facts(federated)), federated)


def time_stages(study: Study, federated: FederatedDataset) -> StageTimes:
    """Try one round of every stage, and say how long all of them will take."""
    samples = sum(len(rows) for rows in federated.rows.values())
    mean = samples / max(len(federated.sites), 1)
    few, more = (min(1.0, batches * study.train.batch_size / max(mean, 1)) for batches in (FEW, MORE))
    epochs = study.train.epochs
    threads = study.engine.compute().threads
    with threads_of(threads), threadpool_limits(1, user_api="blas"):
        _timed_stages(study, _part(federated, few), 1)  # the first round pays for starting workers and for tracing
        if more >= 1 and epochs <= FEW_EPOCHS:  # so little that whole rounds cost no more than parts of them
            return StageTimes(
                _by_stage(study, _fastest(study, federated, 1.0, epochs)), round(samples * (few + epochs))
            )
        small = _fastest(study, federated, few, 1)
        large = small if more <= few else _fastest(study, federated, more, 1)
        twice = large if epochs == 1 else _fastest(study, federated, more, 2)
    whole = _extrapolated(small, large, twice, few, more, epochs)
    return StageTimes(_by_stage(study, whole), round(samples * (few + more * (1 if epochs == 1 else 3))))


def _fastest(study: Study, federated: FederatedDataset, part: float, epochs: int) -> StageTrial:
    small = _part(federated, part)
    trial = _timed_stages(study, small, epochs)
    for _ in range(REPEATS - 1 if trial.seconds < QUICK else 0):
        trial = trial.fastest(_timed_stages(study, small, epochs))
    return trial


def _timed_stages(study: Study, federated: FederatedDataset, epochs: int) -> StageTrial:
    """One round of each stage in turn; a stage that cannot work on so little is left out."""
    method = study.method
    if hasattr(method, "local"):
        method = dataclasses.replace(method, local=dataclasses.replace(method.local, epochs=epochs))  # type: ignore[call-arg]
    federation = open_in_process(study, federated, "plan")
    evaluate = Evaluator(federation, federation.test_set(), federation.compute)
    federation.begin(Round("start", 0, -1), ())
    state = method.start(federation)
    trial = StageTrial()
    for number, stage in enumerate(stage for stage in method.stages() if stage.rounds > 0):
        federation.begin(Round(stage.name, 0, number), stage.asks)
        try:
            started = time.perf_counter()
            state = stage.step(state, federation)
            trial.rounds[stage.name] = time.perf_counter() - started
            if stage.trains:
                started = time.perf_counter()
                evaluate(method, state)
                trial.evaluations[stage.name] = time.perf_counter() - started
        except FedsiftError:
            continue
    return trial


def _part(federated: FederatedDataset, part: float) -> FederatedDataset:
    """Every site and the test set with the first `part` of their samples, one at least."""
    if part >= 1:
        return federated

    def first(rows: np.ndarray) -> np.ndarray:
        return rows[: max(1, math.ceil(part * len(rows)))]

    names = ("rows", "given", "held_out", "held_out_given")
    parts: dict[str, Any] = {
        name: {site: first(rows) for site, rows in getattr(federated, name).items()} for name in names
    }
    dataset = dataclasses.replace(federated.dataset, test=first(federated.dataset.test))
    return dataclasses.replace(federated, dataset=dataset, truth=None, **parts)


def _extrapolated(
    small: StageTrial, large: StageTrial, twice: StageTrial, few: float, more: float, epochs: int
) -> StageTrial:
    """The whole data and all epochs, from the same rounds on two parts and with one epoch more."""

    def whole(a: float, b: float, c: float) -> float:
        each = max(b - a, 0.0) / (more - few) if more > few else 0.0
        another = max(c - b, 0.0) / more
        return a + each * (1 - few) + another * (epochs - 1)

    names = [name for name in small.rounds if name in large.rounds and name in twice.rounds]
    return StageTrial(
        {name: whole(small.rounds[name], large.rounds[name], twice.rounds[name]) for name in names},
        {
            name: whole(small.evaluations[name], large.evaluations[name], large.evaluations[name])
            for name in names
            if name in small.evaluations and name in large.evaluations
        },
    )


def _by_stage(study: Study, whole: StageTrial) -> dict[str, float]:
    return {
        stage.name: stage.rounds * whole.rounds[stage.name]
        + evaluations(study.evaluate, stage.rounds) * whole.evaluations.get(stage.name, 0.0)
        for stage in study.method.stages()
        if stage.name in whole.rounds
    }


def evaluations(schedule: EvaluationSchedule, rounds: int) -> int:
    """How often a stage of so many rounds is evaluated: every so many rounds, and at its end."""
    return math.ceil(rounds / schedule.every)


TRIAL_SAMPLES = 24
"""Samples a site in the trial round: enough for mixtures and for every class to be seen somewhere."""


@dataclass(frozen=True)
class StagePlan:
    name: str
    rounds: int
    messages: int
    """Requests to sites in all rounds."""
    phases: int
    bytes_down: int
    bytes_up: int
    seconds: float | None = None
    """Of all rounds and their evaluations; None where the stage could not be timed."""


@dataclass(frozen=True)
class Forecast:
    headline: str
    stages: list[StagePlan]
    disclosures: list[list[str]]
    """Reply, field, what it discloses."""
    seconds: float
    timed_samples: int
    notes: list[str]

    @property
    def phases(self) -> int:
        return sum(stage.phases for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        disclosed = [dict(zip(("reply", "field", "what"), row)) for row in self.disclosures]
        return {**dataclasses.asdict(self), "disclosures": disclosed, "phases": self.phases}


class _WatchedFederation(InProcess):
    """An in-process federation that counts how often sites are asked."""

    phases = 0

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        self.phases += 1
        return super().deliver(envelopes, deadline)


def plan_study(study: Study, federated: FederatedDataset | None = None) -> Forecast:
    """What the study will cost; `federated`: its data, if they are loaded already."""
    federated = study.load_data() if federated is None else federated
    study = study.completed(study.facts(federated))
    notes = list(federated.notes)
    stages = _tried_stages(study, _shrink(federated), notes)
    evaluates = () if len(federated.dataset.test) else (Evaluate,)
    disclosures = disclosure_rows(declared_replies(study.method, evaluates))
    timing = time_stages(study, federated)
    stages = [dataclasses.replace(stage, seconds=timing.stages.get(stage.name)) for stage in stages]
    headline = (
        f"{study.method_name} on {federated.dataset.name}: {len(federated.sites)} sites, "
        f"{sum(len(rows) for rows in federated.rows.values())} samples, {study.method.total_rounds} rounds"
    )
    return Forecast(headline, stages, disclosures, timing.seconds, timing.samples, notes)


def _tried_stages(study: Study, federated: FederatedDataset, notes: list[str]) -> list[StagePlan]:
    """One round of each stage, with one local epoch, on the shrunken data: how much is asked and comes back."""
    changes = {"local": dataclasses.replace(study.train, epochs=1)} if hasattr(study.method, "local") else {}
    method = dataclasses.replace(study.method, **changes)
    federation = open_in_process(study, federated, "plan", kind=_WatchedFederation)
    assert isinstance(federation, _WatchedFederation)
    federation.begin(Round("start", 0, -1), ())
    state = method.start(federation)
    plans = []
    for number, stage in enumerate(stage for stage in method.stages() if stage.rounds > 0):
        federation.begin(Round(stage.name, 0, number), stage.asks)
        before = federation.phases
        try:
            state = stage.step(state, federation)
        except FedsiftError as error:
            notes.append(f"stage '{stage.name}' could not be tried on a few samples a site: {error}")
            continue
        log, phases = federation.log, federation.phases - before
        sums = (log.asked, phases, log.bytes_down, log.bytes_up)
        plans.append(StagePlan(stage.name, stage.rounds, *(stage.rounds * amount for amount in sums)))
    return plans


def _shrink(federated: FederatedDataset) -> FederatedDataset:
    """The same sites with their first few samples: messages keep their size, training costs next to nothing."""
    rows = {site: federated.rows[site][:TRIAL_SAMPLES] for site in federated.sites}
    given = {site: federated.given[site][:TRIAL_SAMPLES] for site in federated.sites}
    held = {site: federated.held_out[site][:TRIAL_SAMPLES] for site in federated.held_out}
    held_given = {site: federated.held_out_given[site][:TRIAL_SAMPLES] for site in federated.held_out_given}
    return dataclasses.replace(federated, rows=rows, given=given, held_out=held, held_out_given=held_given, truth=None)
