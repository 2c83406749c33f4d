"""A forecast of a study: one round of every stage is tried on a few samples a site; `timing` forecasts seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsift.contract.disclosure import declared_replies, disclosure_rows
from fedsift.contract.errors import FedsiftError
from fedsift.contract.federation import Round
from fedsift.contract.messages import Answer, Envelope
from fedsift.data.dataset import Spread
from fedsift.engines.inprocess import InProcess
from fedsift.local.requests import Evaluate
from fedsift.study.running import federate
from fedsift.study.study import Study
from fedsift.study.timing import time_stages

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
    """Reply, field, what it tells."""
    seconds: float
    timed_samples: int
    notes: list[str]

    @property
    def phases(self) -> int:
        return sum(stage.phases for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        disclosed = [dict(zip(("reply", "field", "what"), row)) for row in self.disclosures]
        return {**dataclasses.asdict(self), "disclosures": disclosed, "phases": self.phases}


class _Watched(InProcess):
    """An in-process federation that counts how often sites are asked."""

    phases = 0

    def deliver(self, envelopes: Mapping[str, Envelope], deadline: float) -> Mapping[str, Answer]:
        self.phases += 1
        return super().deliver(envelopes, deadline)


def plan_study(study: Study) -> Forecast:
    spread = study.spread()
    study = study.completed(study.facts(spread))
    notes = list(spread.notes)
    stages = _try(study, _shrink(spread), notes)
    evaluates = () if len(spread.dataset.test) else (Evaluate,)
    disclosures = disclosure_rows(declared_replies(study.method, evaluates))
    timing = time_stages(study, spread)
    stages = [dataclasses.replace(stage, seconds=timing.stages.get(stage.name)) for stage in stages]
    headline = (
        f"{study.method_name} on {spread.dataset.name}: {len(spread.sites)} sites, "
        f"{sum(len(rows) for rows in spread.rows.values())} samples, {study.method.total_rounds} rounds"
    )
    return Forecast(headline, stages, disclosures, timing.seconds, timing.samples, notes)


def _try(study: Study, spread: Spread, notes: list[str]) -> list[StagePlan]:
    """One round of each stage, with one local epoch, on the shrunken data: how much is asked and comes back."""
    changes = {"local": dataclasses.replace(study.train, epochs=1)} if hasattr(study.method, "local") else {}
    method = dataclasses.replace(study.method, **changes)
    federation = federate(study, spread, "plan", kind=_Watched)
    assert isinstance(federation, _Watched)
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


def _shrink(spread: Spread) -> Spread:
    """The same sites with their first few samples: messages keep their size, training costs next to nothing."""
    rows = {site: spread.rows[site][:TRIAL_SAMPLES] for site in spread.sites}
    given = {site: spread.given[site][:TRIAL_SAMPLES] for site in spread.sites}
    held = {site: spread.held_out[site][:TRIAL_SAMPLES] for site in spread.held_out}
    held_given = {site: spread.held_out_given[site][:TRIAL_SAMPLES] for site in spread.held_out_given}
    return dataclasses.replace(
        spread, rows=rows, given=given, held_out=held, held_out_given=held_given, truth=None
    )
