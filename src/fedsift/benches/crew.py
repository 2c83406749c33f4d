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

from fedsift.benches.store import Record

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SAID_EVERY = 0.5
"""Seconds between two words about the rounds of one run."""


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

    said = time.monotonic()

    def listen(row: dict[str, Any]) -> None:
        nonlocal said
        if tell is not None and time.monotonic() - said >= SAID_EVERY:
            said = time.monotonic()
            tell(News(job.number, round=row["round"], of=row.get("of", 0)))

    try:
        record = measure(Study.from_table(job.study), job.folder, listen, keep=job.keep)
    except FedsiftError as error:
        return News(job.number, failure=str(error))
    except Exception as error:
        return News(job.number, failure=f"{type(error).__name__}: {error}")
    return News(job.number, record=record)


def _end_with(parent: int) -> None:
    """A run whose starter was killed must not live on and hold its folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
