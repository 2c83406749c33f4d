"""From a study to a finished run folder: simulate, resume, write the tables."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedsift.contract.errors import ConfigError, FedsiftError, RunError
from fedsift.data.dataset import Spread
from fedsift.data.ledger import ledger
from fedsift.engines.evaluate import Evaluator
from fedsift.engines.inprocess import InProcess
from fedsift.engines.loop import Listener, conduct
from fedsift.engines.runfolder import RunFolder
from fedsift.local.processes import threads_of
from fedsift.study.results import write_results
from fedsift.study.study import Study


def new_run(study: Study, parent: Path) -> RunFolder:
    """A fresh folder, named after the day and the study, with the resolved study in it."""
    slug = re.sub(r"[^a-z0-9]+", "-", study.name.lower()).strip("-") or "study"
    folder = RunFolder.create(Path(parent), f"{datetime.now():%Y-%m-%d}-{slug}")
    folder.write_text("study.toml", study.to_toml())
    return folder


def run(
    study: Study,
    folder: RunFolder,
    listen: Listener | None = None,
    spread: Spread | None = None,
    kind: type[InProcess] = InProcess,
) -> dict[str, Any]:
    """Run or go on with a study in its folder, in this process; returns the summary.

    `spread` saves loading data that the caller has at hand; `kind` lets a caller watch or disturb the messages.
    """
    folder.lock()
    folder.forget("failure.json")
    threads = study.engine.compute().threads
    try:
        # one thread unless asked: more are slower on busy cores and change the last bits of the weights
        with threads_of(threads), threadpool_limits(1, user_api="blas"):
            return _conducted(study, folder, listen, spread, kind)
    except FedsiftError as error:
        folder.write_json("failure.json", {"error": str(error), "exit_code": error.exit_code})
        raise
    finally:
        folder.unlock()


def _conducted(
    study: Study, folder: RunFolder, listen: Listener | None, spread: Spread | None, kind: type[InProcess]
) -> dict[str, Any]:
    federation = federate(study, study.spread() if spread is None else spread, folder.id, kind)
    if federation.spread.truth is not None:
        ledger(federation.spread).save(folder.path / "truth.csv")
    evaluator = Evaluator(federation, federation.test_set(), study.engine.compute())
    state = conduct(study.method, federation, folder, evaluator, schedule=study.evaluate, listen=listen)
    if study.engine.trainer == "measure":
        # what a clock chose is said in the study, so that the run can be repeated
        settled = replace(study, engine=replace(study.engine, cohorts=dict(federation.cohorts)))
        folder.write_text("study.toml", settled.to_toml())
    return write_results(study, folder, federation, state)


def federate(study: Study, spread: Spread, run_id: str, kind: type[InProcess] = InProcess) -> InProcess:
    """The in-process federation of a study."""
    return kind(
        spread,
        models=study.model.of_sites(spread.sites),
        compute=study.engine.compute(),
        run=run_id,
        seed=study.seed,
        model=study.model.name,
        limits=study.gate,
        patience=study.federation,
    )


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


def resume(path: Path, listen: Listener | None = None) -> dict[str, Any]:
    """Go on with a run that was stopped."""
    study, folder = reopen(path)
    return run(study, folder, listen)
