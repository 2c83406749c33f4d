"""From a study to a finished run folder: the one sequence that every run goes through, and the choice of its engine."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from threadpoolctl import threadpool_limits

from fedsift.core.errors import ConfigError, FedsiftError, RunError, Stopped
from fedsift.data.dataset import FederatedDataset
from fedsift.data.truth_ledger import ledger
from fedsift.models.weights import read_state
from fedsift.protocol.facts import FederationFacts
from fedsift.runs.events import FAILED, FINISHED, STOPPED, Ended
from fedsift.runs.folder import FAILURE, STOP, RunFolder
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.federation import Engine, EngineFederation, EngineParts
from fedsift.runtime.in_process import InProcess, InProcessFederation
from fedsift.runtime.loop import Listener, run_rounds, write_plan
from fedsift.study.results import write_results
from fedsift.study.study import Study
from fedsift.study.tracking import TrackedByStudy, keep_track, need_packages
from fedsift.study.transport import Transport, transports
from fedsift.training.processes import threads_of

NAME_LENGTH = 80
"""Letters of a study's name in its folder's: file systems end at 255."""


def new_run(study: Study, parent: Path) -> RunFolder:
    """A fresh folder, named after the day and the study, with the resolved study in it."""
    need_packages(study.track)
    slug = re.sub(r"[^a-z0-9]+", "-", study.name.lower())[:NAME_LENGTH].strip("-") or "study"
    folder = RunFolder.create(Path(parent), f"{datetime.now():%Y-%m-%d}-{slug}")
    folder.write_text("study.toml", study.to_toml())
    keep_track(study, folder)
    return folder


def run(
    study: Study, folder: RunFolder, listen: Listener | None = None, spread: FederatedDataset | None = None
) -> dict[str, Any]:
    """Run or go on with a study in its folder, over the transport that it names; returns the summary.

    `spread` saves loading data that the caller has at hand. A run that fails before its first round leaves no folder.
    """
    return transports.get(study.engine.name)().run(study, folder, listen, spread)


class EngineTransport(Transport):
    """A transport that opens an engine in this process."""

    @abstractmethod
    def engine(self, study: Study, spread: FederatedDataset) -> Engine:
        """What opens the federation of a run."""

    def run(
        self,
        study: Study,
        folder: RunFolder,
        listen: Listener | None = None,
        data: FederatedDataset | None = None,
    ) -> dict[str, Any]:
        return execute_run(study, folder, lambda: self.engine(study, study.spread() if data is None else data), listen)


@dataclass(frozen=True)
class InProcessTransport(EngineTransport):
    """All sites in this process, trained together."""

    summary: ClassVar[str] = "all sites in this process, trained together"
    federation: type[InProcess] = InProcess
    """A subclass can watch or disturb the messages."""

    def engine(self, study: Study, spread: FederatedDataset) -> InProcessFederation:
        return InProcessFederation(spread, study.model.of_sites(spread.sites), study.engine.compute(), self.federation)


def execute_run(
    study: Study, folder: RunFolder, engine: Callable[[], Engine], listen: Listener | None = None
) -> dict[str, Any]:
    """The sequence of every run, whatever carries its messages: lock, open, conduct, write the results.

    `engine` is called when the run is locked, so that data which cannot be loaded are a failure of this run.
    """
    folder.lock()
    federation: EngineFederation | None = None
    try:
        folder.forget(FAILURE)
        folder.forget(STOP)
        write_plan(study.method, folder)  # opening may take minutes: whoever looks on knows what is to come
        # one thread unless asked: more are slower on busy cores and change the last bits of the weights
        with threads_of(study.engine.threads or 1), threadpool_limits(1, user_api="blas"):
            federation = engine().open(parts_of(study), folder)
            federation.say, federation.check_stop = folder.events(), folder.check_stop
            study = complete(study, folder, _facts(study, federation))
            summary = _after_rounds(study, folder, federation, listen)
            federation.say(Ended(FINISHED))
            return summary
    except BaseException as error:
        with suppress(OSError):  # a full disk is why it ended; that is what is to be told
            folder.events()(ending(error))
        stopped = isinstance(error, Stopped) or not isinstance(error, Exception)
        if isinstance(error, FedsiftError) and not stopped:
            folder.write_failure(error)
        begun = federation is not None and federation.begun
        if not begun and not stopped and not folder.checkpoint_file.is_file():
            folder.discard()
        raise
    finally:
        folder.unlock()


def ending(error: BaseException) -> Ended:
    """The last event of a run that did not come to its end."""
    if isinstance(error, FedsiftError):
        return Ended(STOPPED if isinstance(error, Stopped) else FAILED, str(error), error.exit_code)
    if isinstance(error, Exception):
        return Ended(FAILED, f"{type(error).__name__}: {error}", FedsiftError.exit_code)
    return Ended(STOPPED, "interrupted; nothing is lost, the run can be resumed", Stopped.exit_code)


def _after_rounds(
    study: Study, folder: RunFolder, federation: EngineFederation, listen: Listener | None
) -> dict[str, Any]:
    simulation = federation.simulation
    if simulation is not None and simulation.spread.truth is not None:
        ledger(simulation.spread).save(folder.path / "truth.csv")
    evaluator = Evaluator(federation, federation.test_set())
    with TrackedByStudy(study, folder, federation.classes, listen) as followed:
        state = run_rounds(
            study.method,
            federation,
            folder,
            evaluator,
            schedule=study.evaluate,
            listen=followed.listen,
            engine=study.engine.name,
        )
        if study.engine.trainer == "measure":
            # what a clock chose is said in the study, so that the run can be repeated
            settled = replace(study, engine=replace(study.engine, cohorts=dict(federation.cohorts)))
            folder.write_text("study.toml", settled.to_toml())
        summary = write_results(study, folder, federation, state)
    return followed.noted(summary)


def complete(study: Study, folder: RunFolder, facts: FederationFacts) -> Study:
    """The study with what follows from its federation, written down: a resumed run reads it instead of guessing."""
    done = study.completed(facts)
    if done != study:
        folder.write_text("study.toml", done.to_toml())
        write_plan(done.method, folder)
    return done


def _facts(study: Study, federation: EngineFederation) -> FederationFacts:
    """What is known of the federation: all of it in a simulation, else what the sites declared."""
    if federation.simulation is not None:
        return study.facts(federation.simulation.spread)
    return FederationFacts.of(federation.facts.values(), federation.classes, federation.multilabel)


def parts_of(study: Study) -> EngineParts:
    origin = study.model.origin
    given = None if origin is None else read_state(origin)
    return EngineParts(
        study.seed,
        study.model.name,
        study.gate,
        study.federation,
        given,
        others=study.model.networks,
        one_network=not study.method.mixed_networks,
        public="public" in study.method.needs,
    )


def open_in_process(
    study: Study, spread: FederatedDataset, run_id: str, kind: type[InProcess] = InProcess
) -> InProcess:
    """The in-process federation of a study, without a run folder."""
    here = InProcessFederation(spread, study.model.of_sites(spread.sites), study.engine.compute(), kind)
    return here.federation(parts_of(study), run_id)


def reopen(path: Path) -> tuple[Study, RunFolder]:
    """The study and folder of a run that was stopped; a finished one is refused."""
    folder = RunFolder.open(path)
    if folder.finished:
        raise RunError(f"{path} is finished; start a new run or read its report")
    try:
        study = Study.from_file(folder.study_file)
    except ConfigError as error:
        raise RunError(f"{folder.study_file} no longer fits this version: {error}") from error
    return study, folder
