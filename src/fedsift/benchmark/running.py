"""Runs the missing cells of a table, then writes its files."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsift.benchmark.cells import Cell, cells_of, source_digest
from fedsift.benchmark.eta import PastRuns, last_end
from fedsift.benchmark.figures import check_figure
from fedsift.benchmark.outputs import write_table
from fedsift.benchmark.pool import IN_USE, JobNews, TableJob, cores, do, run_jobs
from fedsift.benchmark.store import RunRecord, RunStore
from fedsift.benchmark.summary import Results, results_of
from fedsift.benchmark.table import Table
from fedsift.core.errors import ConfigError

# The same jobs on a Ray cluster: every machine of it needs this version of fedsift and the data
# ------------------------------------------------------------------------------


def run_jobs_on_ray(jobs: Sequence[TableJob], address: str) -> Iterator[JobNews]:
    """All jobs, as many at a time as the cluster has cores; "local" starts a cluster on this machine."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'fedsift[flower]', which brings it") from None
    os.environ.setdefault("RAY_worker_niceness", "0")  # a cluster of one's own: not behind everything else here
    # Ray gives a task of one core one thread by itself, and a run asks for one besides
    ray.init(
        address=None if address == "local" else address,
        log_to_driver=False,
        include_dashboard=False if address == "local" else None,
    )
    try:
        task = ray.remote(num_cpus=1, max_retries=0)(_there)
        waiting: dict[Any, TableJob] = {task.remote(job, source_digest()): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                job = waiting.pop(reference)
                try:
                    news: JobNews = ray.get(reference)
                except ray.exceptions.RayError as error:
                    news = JobNews(job.number, failure=f"{type(error).__name__}: {str(error).splitlines()[0]}")
                yield news
    finally:
        ray.shutdown()


def _there(job: TableJob, digest: str) -> JobNews:
    """One job on a machine of the cluster, in a folder of its own; another version is refused."""
    if source_digest() != digest:
        return JobNews(
            job.number, failure="this machine of the cluster has another version of fedsift: install the same"
        )
    with tempfile.TemporaryDirectory(prefix="fedsift-") as place:
        return do(replace(job, folder=Path(place) / "run", keep=False))


WRITE_EVERY = 20.0
"""Seconds between two writings of the table's files while runs come in."""


@dataclass(frozen=True)
class TableProgress:
    """How far a table is; reported after every event."""

    done: int
    total: int
    seconds_left: float | None
    """From the rounds of the runs under way, stage by stage, and from runs like those that wait; None while nothing is
    known."""
    running: Mapping[str, tuple[int, int]]
    """Round and rounds of every run under way, by its label."""
    text: str = ""
    """What happened just now, where it is worth a line."""
    failed: bool = False


Listener = Callable[[TableProgress], None]


@dataclass(frozen=True)
class TableOutcome:
    """A table after `bench`: its results, its folder, and what could not be computed."""

    table: Table
    results: Results
    folder: Path
    computed: int
    failures: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by the label of the cell."""
    other_versions: int = 0
    """Cells that another version has computed, and that were not used."""

    @property
    def missing(self) -> int:
        return self.results.cells_wanted - self.results.cells_there


def run_table(
    table: Table,
    out: Path,
    *,
    processes: int = 0,
    shard: tuple[int, int] = (1, 1),
    ray: str = "",
    keep: bool = False,
    any_version: bool = False,
    listen: Listener | None = None,
) -> TableOutcome:
    """Compute what is missing of a table, or of one shard of it, and write its files under `out`.

    processes: runs at a time, 0 is one a core. any_version: use results of other versions too; the table says so.
    """
    for figure in table.figures:
        check_figure(figure)
    if not 1 <= shard[0] <= shard[1]:
        raise ConfigError(f"--shard {shard[0]}/{shard[1]}: from 1/{shard[1]} to {shard[1]}/{shard[1]}")
    store, cells = RunStore(out), list(cells_of(table))
    store.prepare()
    found, others = find_cells(cells, store, any_version=any_version)
    todo = [c for c in cells if c.key not in found and in_shard(c.study_key, shard)]
    todo = list({cell.key: cell for cell in todo}.values())
    desk = _ResultCollector(table, cells, store, found, todo, None if ray else processes or cores(), listen)
    jobs = [TableJob(n, c.study.to_table(), store.run_folder(c.key), keep) for n, c in enumerate(todo)]
    desk.say(f"{others} of its runs were made by another version and are not used" if others else "")
    try:
        with contextlib.closing(_news(jobs, processes or cores(), ray)) as news:
            for item in news:
                desk.take(item)
    finally:
        results = desk.write()
    return TableOutcome(table, results, out / table.name, desk.computed, desk.failures, others)


def find_cells(
    cells: Sequence[Cell], store: RunStore, *, any_version: bool = False
) -> tuple[dict[str, RunRecord], int]:
    """The records of the cells that are there, by the cell's key; and how many only another version has made."""
    found: dict[str, RunRecord] = {}
    missing = []
    for cell in cells:
        record = store.read(cell.key)
        if record is None:
            missing.append(cell)
        else:
            found[cell.key] = record
    known = store.by_study() if missing else {}
    others = 0
    for cell in missing:
        made = known.get(cell.study_key, [])
        if made and any_version:
            found[cell.key] = max(made, key=lambda record: record.version)
        elif made:
            others += 1
    return found, others


def in_shard(study_key: str, shard: tuple[int, int]) -> bool:
    """Which shard a run belongs to follows from what it computes alone."""
    number, of = shard
    return int(study_key, 16) % of == number - 1


def _news(jobs: Sequence[TableJob], processes: int, ray: str) -> Generator[JobNews, None, None]:
    if not ray:
        yield from run_jobs(jobs, processes)
        return
    yield from run_jobs_on_ray(jobs, ray)


class _ResultCollector:
    """Keeps what comes in, and says how far the table is."""

    def __init__(
        self,
        table: Table,
        cells: Sequence[Cell],
        store: RunStore,
        found: dict[str, RunRecord],
        todo: Sequence[Cell],
        processes: int | None,
        listen: Listener | None,
    ) -> None:
        self.table, self.cells, self.store, self.found = table, cells, store, found
        self.todo, self.processes, self.listen = todo, processes, listen
        self.computed = 0
        self.failures: dict[str, str] = {}
        self.running: dict[str, tuple[int, int]] = {}
        self.ends: dict[int, float] = {}
        """When each run under way will end, by its number, where that is known."""
        self.over: set[int] = set()
        self.wholes, self.spent = PastRuns(), 0.0
        self.started = self.written = time.monotonic()

    def take(self, news: JobNews) -> None:
        cell = self.todo[news.number]
        if news.ahead is not None:
            self.ends[news.number] = time.monotonic() + news.ahead.left
            self.wholes.know(news.number, cell.row, cell.column, news.ahead.whole)
        if not news.ended:
            self.running[cell.label] = (news.round, news.of)
            self.say()
            return
        self.running.pop(cell.label, None)
        self.over.add(news.number)
        self.ends.pop(news.number, None)
        self.spent += 0.0 if news.ahead is None else news.ahead.whole
        if news.record is not None:
            self.store.write(news.record)
            self.found[cell.key] = news.record
            self.computed += 1
            self.say(f"{cell.label}: {_headline(self.table, news.record)}")
        elif IN_USE in news.failure:
            self.say(f"{cell.label}: left to the process that works on it")
        else:
            self.failures[cell.label] = news.failure
            self.say(f"{cell.label} failed: {news.failure}", failed=True)
        if time.monotonic() - self.written > WRITE_EVERY:
            self.write()

    def say(self, text: str = "", *, failed: bool = False) -> None:
        if self.listen is None:
            return
        there = sum(cell.key in self.found for cell in self.cells)
        self.listen(TableProgress(there, len(self.cells), self.left(), dict(self.running), text, failed))

    def left(self) -> float | None:
        """Seconds until the last run ends; None while nothing is known of one that waits, or nothing is to do."""
        now = time.monotonic()
        waiting = [n for n in range(len(self.todo)) if n not in self.over and n not in self.ends]
        guesses = [self.wholes.guess(self.todo[n].row, self.todo[n].column) for n in waiting]
        known = [seconds for seconds in guesses if seconds is not None]
        if len(known) < len(guesses) or not (waiting or self.ends):
            return None
        # how many runs a cluster makes at a time shows by what it has done
        processes = self.processes or max(1, round(self.spent / max(now - self.started, 1e-9)))
        return last_end([max(end - now, 0.0) for end in self.ends.values()], known, processes)

    def write(self) -> Results:
        self.written = time.monotonic()
        kept = [(c.row, c.column, c.seed, self.found[c.key]) for c in self.cells if c.key in self.found]
        results = results_of(self.table, kept, len(self.cells))
        write_table(results, self.store.path / self.table.name)
        return results


def _headline(table: Table, record: RunRecord) -> str:
    from fedsift.benchmark.figures import digits, value_of

    values: list[Any] = [(figure, value_of(record.figures, figure)) for figure in table.figures[:3]]
    shown = [f"{figure} {value:.{digits(figure)}f}" for figure, value in values if value is not None]
    return f"{'  '.join(shown)}  in {record.seconds:.0f} s of processor time"
