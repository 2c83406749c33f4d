"""A pool of worker processes for the runs of a table: one run and one thread each, so that results equal those of a
single run.

A process gets one run after another, and is renewed after some minutes. One that dies takes its own run with it and
nobody else's. When fewer runs are left than cores, those under way share the rest as worker processes, which change no
bit of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.benchmark.eta import RunPace, TimeLeft
from fedsift.benchmark.store import RunRecord
from fedsift.core.errors import FedsiftError, RunError, Stopped
from fedsift.core.process import exclusive, when_parent_ends

if TYPE_CHECKING:
    from fedsift.study.study import Study

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SAID_EVERY = 0.5
"""Seconds between two words about the rounds of one run."""
TRIED_AFTER = 20.0
"""Seconds of rounds after which the stages that lie ahead of a run are tried, to say how long it takes."""
WORTH_A_BREAK = 60.0
"""Seconds that a run must still take for it to be broken off and gone on with by more processes: loading its data anew
takes a few."""
RENEWED_AFTER = 600.0
"""Seconds after which a process is replaced before its next run: of two that had made two runs of 40 minutes each, the
third took 3.0 s a round, and 2.4 s once the processes were new."""
LOCKS = ".locks"
"""In a folder of results: a lock for each run, against another command that works in the same folder."""
IN_USE = "is in use by another process"
MOST_WORKERS = 4
"""Of one run: a round of few sites has no work for more, and each takes a process's memory."""


@dataclass(frozen=True)
class TableJob:
    """One run: its place in the caller's list, its study as tables, its folder."""

    number: int
    study: dict[str, Any]
    folder: Path
    keep: bool = False


@dataclass(frozen=True)
class JobNews:
    """What a process says of its run: a round, its record, or why there is none."""

    number: int
    round: int = 0
    of: int = 0
    ahead: TimeLeft | None = None
    """How long it still takes, and took or takes in all, where that is known."""
    record: RunRecord | None = None
    failure: str = ""

    @property
    def ended(self) -> bool:
        return self.record is not None or bool(self.failure)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[TableJob], processes: int) -> Iterator[JobNews]:
    """All jobs, `processes` at a time, in the order given; news as they come. Leaving the loop ends the processes."""
    waiting = list(jobs)[::-1]
    pool: list[_JobProcess] = []
    try:
        for _ in range(min(processes, len(waiting))):
            pool.append(_JobProcess())
        for hand in pool:
            hand.begin(waiting.pop())
        while busy := [hand for hand in pool if hand.job is not None]:
            for hand in busy:
                hand.share(min(processes // len(busy), MOST_WORKERS))
            ready = wait([hand.connection for hand in busy])
            for place, hand in enumerate(pool):
                if hand.connection not in ready:
                    continue
                news = hand.add_round()
                yield news
                if news.ended and waiting:
                    if not hand.process.is_alive() or hand.age > RENEWED_AFTER:
                        hand.end()
                        pool[place] = hand = _JobProcess()
                    hand.begin(waiting.pop())
    finally:
        for hand in pool:
            hand.end()


class _JobProcess:
    """One process and the run that it works on."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        with _one_thread():
            self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
            self.process.start()
        theirs.close()
        self.job: TableJob | None = None
        self.workers = 1
        self.started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since its process was started."""
        return time.monotonic() - self.started

    def begin(self, job: TableJob) -> None:
        self.job, self.workers = job, 1
        self.connection.send(job)

    def share(self, workers: int) -> None:
        """So many processes may work on its run from now on."""
        if workers > self.workers:
            self.workers = workers
            with contextlib.suppress(OSError):  # its end will be heard
                self.connection.send(workers)

    def add_round(self) -> JobNews:
        assert self.job is not None
        number = self.job.number
        try:
            news: JobNews = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5.0)
            self.job = None
            return JobNews(number, failure=f"its process ended with code {self.process.exitcode}")
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
    when_parent_ends(lambda: os._exit(1), parent)  # or it would hold its folder
    while True:
        try:
            job = connection.recv()
            while not isinstance(job, TableJob):  # a share in cores that came when its run had just ended
                job = connection.recv()
        except EOFError:
            return
        news = do(job, connection.send, lambda: connection.recv() if connection.poll() else 0)
        try:
            connection.send(news)
        except OSError:
            return


class _StoppedToShare(Stopped):
    """A run is broken off to be gone on with by more processes."""

    def __init__(self, workers: int) -> None:
        super().__init__(f"goes on with {workers} processes")
        self.workers = workers


def do(
    job: TableJob, on_news: Callable[[JobNews], None] | None = None, granted: Callable[[], int] | None = None
) -> JobNews:
    """One job; what goes wrong in it is said, not raised.

    granted: asked after every round for the number of processes that may work on it from now on, 0 if as before.
    """
    from fedsift.study.study import Study

    listener = _RoundListener(job, on_news, granted)
    try:
        study = Study.from_table(job.study)
        if not _can_share(study):
            listener.granted = None
        began = processor_seconds(study.engine.workers)
        while True:
            listener.workers = study.engine.workers
            try:
                record = _measured(study, job, listener)
                break
            except _StoppedToShare as share:
                study = replace(study, engine=replace(study.engine, workers=share.workers))
    except FedsiftError as error:
        return JobNews(job.number, failure=str(error))
    except Exception as error:
        return JobNews(job.number, failure=f"{type(error).__name__}: {error}")
    spent = processor_seconds(listener.workers) - began - listener.seconds
    seconds = record.seconds or round(spent, 2)  # another process has made a record that has seconds already
    return JobNews(job.number, record=replace(record, seconds=seconds), ahead=listener.ahead)


def _measured(study: Study, job: TableJob, listener: _RoundListener) -> RunRecord:
    """The run's record; another process that works in the same folder of results has it, or has made it by now."""
    from fedsift.benchmark.cells import measure
    from fedsift.benchmark.store import RunStore

    store = job.folder.parent.parent
    lock = store / LOCKS / job.folder.name  # not in the run's folder, which goes when the run is done
    lock.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock, RunError(f"{job.folder} {IN_USE}")):
        made = RunStore(store).read(job.folder.name)
        return made if made is not None else measure(study, job.folder, listener, keep=job.keep)


def processor_seconds(workers: int = 0) -> float:
    """Processor time of this process until now, with that of its workers, those that have ended among them."""
    ended = os.times()
    spent = time.process_time() + ended.children_user + ended.children_system
    if workers > 1:
        from fedsift.training.processes import workers as worker_processes

        spent += sum(worker_processes(workers).map(time.process_time, [()] * workers, []))
    return spent


def _can_share(study: Study) -> bool:
    """Whether worker processes could help it: those of Flower and of a GPU are another matter."""
    engine = study.engine
    return engine.name == "inprocess" and engine.device == "cpu" and hasattr(socket, "send_fds")


class _RoundListener:
    """Hears the rounds of a run: says how far it is, and breaks it off where more processes make up for that."""

    def __init__(
        self, job: TableJob, on_news: Callable[[JobNews], None] | None, granted: Callable[[], int] | None
    ) -> None:
        self.job, self.on_news, self.granted = job, on_news, granted
        self.workers = self.offered = 0
        self.pace: RunPace | None = None
        self.began = self.said = time.monotonic()
        self.seconds = 0.0
        """Processor time that listening took, which is no part of the run's."""

    @property
    def ahead(self) -> TimeLeft | None:
        return None if self.pace is None else self.pace.ahead()

    def __call__(self, row: dict[str, Any]) -> None:
        before = time.process_time()
        self._follow(row)
        self.seconds += time.process_time() - before
        if self.granted is not None:
            self.offered = max(self.offered, self.granted())
        if self.offered > max(self.workers, 1):
            ahead = self.ahead
            if ahead is not None and ahead.left > WORTH_A_BREAK:
                raise _StoppedToShare(self.offered)

    def _follow(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.pace is None:
            self.pace = _pace_so_far(self.job.folder)
            self.pace.before = max(now - self.began - row["seconds"], 0.0)
        else:
            self.pace.add_round(row)
        if self.on_news is None or now - self.said < SAID_EVERY:
            return
        if self.pace.unknown and now - self.began >= TRIED_AFTER:
            self.pace.tried = _tried(self.job, self.pace)
        self.said = time.monotonic()
        self.on_news(JobNews(self.job.number, round=row["round"], of=row.get("of", 0), ahead=self.pace.ahead()))


def _pace_so_far(folder: Path) -> RunPace:
    """After the first round that this process has seen: those before it, if the run was gone on with, are in its
    folder."""
    from fedsift.runs.folder import PLAN, RunFolder

    place = RunFolder(folder)
    plan = place.read_json(PLAN) or {}
    pace = RunPace([(str(stage["name"]), int(stage["rounds"])) for stage in plan.get("stages", ())])
    for row in place.rounds():
        pace.add_round(row)
    return pace


def _tried(job: TableJob, pace: RunPace) -> dict[str, float]:
    """Seconds of one round of every stage, as `fedsift plan` finds them. No forecast is worth a run: one that fails
    leaves the stages ahead to be like those before."""
    from fedsift.study.planning import time_study
    from fedsift.study.study import Study

    try:
        timing = time_study(Study.from_table(job.study))
    except Exception:
        return {}
    rounds = dict(pace.stages)
    return {name: seconds / rounds[name] for name, seconds in timing.stages.items() if rounds.get(name)}
