"""As many processes of one thread as there are cores, a run each: its bytes are those of a lone run.

A process is started once and gets one run after another. One that dies takes its own run with it and nobody else's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedsift.benches.left import Ahead, Pace
from fedsift.benches.store import Record

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SAID_EVERY = 0.5
"""Seconds between two words about the rounds of one run."""
TRIED_AFTER = 20.0
"""Seconds of rounds after which the stages that lie ahead of a run are tried, to say how long it takes."""


@dataclass(frozen=True)
class Job:
    """One run: its place in the caller's list, its study as tables, its folder."""

    number: int
    study: dict[str, Any]
    folder: Path
    keep: bool = False


@dataclass(frozen=True)
class News:
    """What a process says of its run: a round, its record, or why there is none."""

    number: int
    round: int = 0
    of: int = 0
    ahead: Ahead | None = None
    """How long it still takes, and took or takes in all, where that is known."""
    record: Record | None = None
    failure: str = ""

    @property
    def ended(self) -> bool:
        return self.record is not None or bool(self.failure)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def carry_out(jobs: Sequence[Job], processes: int) -> Iterator[News]:
    """All jobs, `processes` at a time, in the order given; news as they come. Leaving the loop ends the processes."""
    waiting = list(jobs)[::-1]
    crew: list[_Hand] = []
    try:
        for _ in range(min(processes, len(waiting))):
            crew.append(_Hand())
        for hand in crew:
            hand.begin(waiting.pop())
        while any(hand.job is not None for hand in crew):
            ready = wait([hand.connection for hand in crew if hand.job is not None])
            for place, hand in enumerate(crew):
                if hand.connection not in ready:
                    continue
                news = hand.hear()
                yield news
                if news.ended:
                    if not hand.process.is_alive() and waiting:
                        crew[place] = hand = _Hand()
                    if waiting and hand.process.is_alive():
                        hand.begin(waiting.pop())
    finally:
        for hand in crew:
            hand.end()


class _Hand:
    """One process and the run that it works on."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        with _one_thread():
            self.process: BaseProcess = context.Process(
                target=_serve, args=(theirs, os.getpid()), daemon=True
            )
            self.process.start()
        theirs.close()
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        self.job = job
        self.connection.send(job)

    def hear(self) -> News:
        assert self.job is not None
        number = self.job.number
        try:
            news: News = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5.0)
            self.job = None
            return News(number, failure=f"its process ended with code {self.process.exitcode}")
        if news.ended:
            self.job = None
        return news

    def end(self) -> None:
        """Ended at once: a run's folder is whole at any moment, and the next start goes on with it."""
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(10.0)
        if self.process.is_alive():
            self.process.kill()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries read these when they are loaded, in the new process."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(connection: Connection, parent: int) -> None:
    """What a process does: one run after another until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the starter decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with(parent)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        news = do(job, lambda said: connection.send(said))
        try:
            connection.send(news)
        except OSError:
            return


def do(job: Job, tell: Callable[[News], None] | None = None) -> News:
    """One job; what goes wrong in it is said, not raised."""
    from fedsift.benches.measure import measure
    from fedsift.contract.errors import FedsiftError
    from fedsift.study import Study

    began = said = time.monotonic()
    pace: Pace | None = None

    def listen(row: dict[str, Any]) -> None:
        nonlocal said, pace
        now = time.monotonic()
        if pace is None:
            pace = _pace_so_far(job.folder)
            pace.before = max(now - began - row["seconds"], 0.0)
        else:
            pace.hear(row)
        if tell is None or now - said < SAID_EVERY:
            return
        if pace.unknown and now - began >= TRIED_AFTER:
            pace.tried = _tried(job, pace)
        said = time.monotonic()
        tell(News(job.number, round=row["round"], of=row.get("of", 0), ahead=pace.ahead()))

    try:
        record = measure(Study.from_table(job.study), job.folder, listen, keep=job.keep)
    except FedsiftError as error:
        return News(job.number, failure=str(error))
    except Exception as error:
        return News(job.number, failure=f"{type(error).__name__}: {error}")
    return News(job.number, record=record, ahead=None if pace is None else pace.ahead())


def _pace_so_far(folder: Path) -> Pace:
    """After the first round that this process has seen: those before it, if the run was gone on with, are in its
    folder."""
    from fedsift.runs import RunFolder
    from fedsift.runs.folder import PLAN

    place = RunFolder(folder)
    plan = place.read_json(PLAN) or {}
    pace = Pace([(str(stage["name"]), int(stage["rounds"])) for stage in plan.get("stages", ())])
    for row in place.rounds():
        pace.hear(row)
    return pace


def _tried(job: Job, pace: Pace) -> dict[str, float]:
    """Seconds of one round of every stage, as `fedsift plan` finds them. No forecast is worth a run: one that fails
    leaves the stages ahead to be like those before."""
    from fedsift.study import Study
    from fedsift.study.timing import time_study

    try:
        timing = time_study(Study.from_table(job.study))
    except Exception:
        return {}
    rounds = dict(pace.stages)
    return {name: seconds / rounds[name] for name, seconds in timing.stages.items() if rounds.get(name)}


def _end_with(parent: int) -> None:
    """A run whose starter was killed must not live on and hold its folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
