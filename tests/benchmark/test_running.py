"""A table is computed once, goes on after it was stopped, and is the same from any number of parts."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedsift.benchmark import cells, pool, running
from fedsift.benchmark.pool import IN_USE, JobNews, TableJob, do, run_jobs
from fedsift.benchmark.running import TableOutcome, TableProgress, in_shard, run_table
from fedsift.benchmark.store import RunStore, merge
from fedsift.benchmark.table import table_of
from fedsift.core.errors import ConfigError, RunError
from tests.benchmark.small import COLUMNS, ROWS, SCENARIO, same_files, small_table


def files_of(out: Path) -> dict[str, Any]:
    return same_files(out / "digits")


def test_all_cells_are_there_and_nothing_is_left_over(made: tuple[TableOutcome, Path]) -> None:
    outcome, out = made
    assert (outcome.computed, outcome.missing, dict(outcome.failures)) == (8, 0, {})
    assert len(list((out / "cells").iterdir())) == 8
    assert list((out / "runs").iterdir()) == []


@pytest.mark.usefixtures("in_this_process")
def test_what_exists_is_not_computed_again(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    _, out = made
    shutil.copytree(out, tmp_path / "out")
    before = files_of(tmp_path / "out")
    assert run_table(small_table(), tmp_path / "out").computed == 0
    assert files_of(tmp_path / "out") == before
    assert run_table(small_table(seeds=[1, 2, 3]), tmp_path / "out").computed == 4


@pytest.mark.usefixtures("in_this_process")
def test_four_shards_merged_are_the_unsharded_table_byte_for_byte(
    made: tuple[TableOutcome, Path], tmp_path: Path
) -> None:
    _, out = made
    parts = [tmp_path / f"part-{number}" for number in range(1, 5)]
    computed = [run_table(small_table(), part, shard=(n, 4)).computed for n, part in enumerate(parts, 1)]
    assert sum(computed) == 8
    assert merge(parts, RunStore(tmp_path / "whole")) == 8
    assert run_table(small_table(), tmp_path / "whole").computed == 0
    assert files_of(tmp_path / "whole") == files_of(out)


def test_every_run_belongs_to_one_shard() -> None:
    keys = [cell.study_key for cell in cells.cells_of(small_table())]
    for key in keys:
        assert [in_shard(key, (n, 4)) for n in range(1, 5)].count(True) == 1
    with pytest.raises(ConfigError, match="--shard 5/4"):
        run_table(small_table(), Path("nowhere"), shard=(5, 4))


def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(
    made: tuple[TableOutcome, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the first round of its third run: two cells are kept, the third goes on from its checkpoint."""
    _, out = made
    began: list[int] = []

    def broken(jobs: list[TableJob], processes: int) -> Any:
        for job in jobs[:2]:
            yield do(job)
        from fedsift.benchmark.cells import measure
        from fedsift.study.study import Study

        def stop(row: dict[str, Any]) -> None:
            began.append(row["round"])
            raise KeyboardInterrupt

        measure(Study.from_table(jobs[2].study), jobs[2].folder, stop)

    monkeypatch.setattr(running, "run_jobs", broken)
    with pytest.raises(KeyboardInterrupt):
        run_table(small_table(), tmp_path)
    assert began == [1]
    assert len(list((tmp_path / "cells").iterdir())) == 2
    (left,) = (tmp_path / "runs").iterdir()
    assert (left / "checkpoint.bin").is_file()
    rounds: list[tuple[int, int]] = []

    def watched(jobs: list[TableJob], processes: int) -> Any:
        for job in jobs:
            if job.folder == left:
                rounds.append((len((left / "rounds.jsonl").read_text().splitlines()), job.number))
            yield do(job)

    monkeypatch.setattr(running, "run_jobs", watched)
    assert run_table(small_table(), tmp_path).computed == 6
    assert rounds == [(1, 0)], "the run that was stopped is the first to go on, with one round done"
    assert files_of(tmp_path) == files_of(out)


@pytest.mark.usefixtures("in_this_process")
def test_another_version_is_noticed_and_never_mixed_in_silence(
    made: tuple[TableOutcome, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = made
    shutil.copytree(out, tmp_path / "out")
    monkeypatch.setattr(cells, "version_of", lambda study: "9.9.9+other")
    monkeypatch.setattr("fedsift.benchmark.cells.version_of", lambda study: "9.9.9+other")
    told: list[str] = []
    mixed = run_table(
        small_table(seeds=[1, 2, 3]), tmp_path / "out", any_version=True, listen=lambda p: told.append(p.text)
    )
    assert mixed.computed == 4
    assert len(mixed.results.versions) == 2
    rest = "; FedAvg (2 runs) by 9.9.9+other; FedLA (2 runs) by 9.9.9+other."
    assert rest in (tmp_path / "out" / "digits" / "table.md").read_text("utf-8")
    alone = run_table(small_table(), tmp_path / "out", listen=lambda p: told.append(p.text))
    assert (alone.computed, alone.other_versions) == (8, 8)
    assert alone.results.versions == ["9.9.9+other"]
    assert "8 of its runs were made by another version and are not used" in told


@pytest.mark.usefixtures("in_this_process")
def test_a_failed_run_is_named_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    bad = {"label": "Too many", "method": {"name": "fedavg", "rounds": 2}, "partition": {"sites": 5000}}
    told: list[TableProgress] = []
    outcome = run_table(
        small_table(rows=[ROWS[1], bad], columns=[{"label": "clean"}], seeds=[1], claims=[]),
        tmp_path,
        listen=told.append,
    )
    assert (outcome.computed, outcome.missing) == (1, 1)
    assert list(outcome.failures) == ["Too many in clean, seed 1"]
    assert next(p.text for p in told if p.failed).startswith("Too many in clean, seed 1 failed: ")
    assert "1 of 2 runs are there" in (tmp_path / "digits" / "table.md").read_text("utf-8")


def test_two_results_of_one_run_are_refused(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    _, out = made
    shutil.copytree(out / "cells", tmp_path / "other" / "cells")
    file = sorted((tmp_path / "other" / "cells").iterdir())[0]
    content = json.loads(file.read_text())
    content["outcome"]["scores"]["accuracy"]["best"] += 0.1
    file.write_text(json.dumps(content))
    whole = RunStore(tmp_path / "whole")
    with pytest.raises(RunError, match=r"1 of the runs have two results .*accuracy\.best"):
        merge([out, tmp_path / "other"], whole)
    assert list(whole) == [], "nothing is written"
    assert merge([out, tmp_path / "other"], whole, first=True) == 8


@pytest.mark.usefixtures("in_this_process")
def test_the_csv_of_a_table_can_be_merged(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    """What is kept in a repository is `table.csv`: it gives the same table, and agrees with the runs in full."""
    _, out = made
    assert merge([out / "digits" / "table.csv"], RunStore(tmp_path)) == 8
    whole = {record.key: record for record in RunStore(out)}
    for record in RunStore(tmp_path):
        assert (record.torch, record.seconds) == (whole[record.key].torch, whole[record.key].seconds)
        assert record.figures.items() <= whole[record.key].figures.items()
    assert run_table(small_table(), tmp_path).computed == 0
    assert files_of(tmp_path) == files_of(out)
    assert (tmp_path / "digits" / "table.csv").read_bytes() == (out / "digits" / "table.csv").read_bytes()
    assert merge([out], RunStore(tmp_path)) == 0, "nothing is new, and nothing differs"
    with pytest.raises(RunError, match="neither a folder of `fedsift bench` nor a table's CSV"):
        merge([tmp_path / "nothing"], RunStore(tmp_path))


def test_a_damaged_line_of_a_table_is_named(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    _, out = made
    lines = (out / "digits" / "table.csv").read_text().splitlines()
    file = tmp_path / "table.csv"
    for damaged, words in (
        ([*lines[:3], lines[3].rpartition(",")[0]], r"table.csv, line 4: \d+ cells, the header has \d+"),
        ([lines[0], lines[1].replace(",1,", ",one,", 1)], "table.csv, line 2 is no result of a run: ValueError"),
        ([*lines, lines[2]], "line 10 is the run of line 3 again"),
        ([], "is empty: it has no header"),
    ):
        file.write_text("\n".join(damaged) + "\n" if damaged else "")
        with pytest.raises(RunError, match=words):
            merge([file], RunStore(tmp_path / "into"))


def test_keys_depend_on_what_is_computed_alone() -> None:
    one = {cell.label: cell.key for cell in cells.cells_of(small_table())}
    two = {cell.label: cell.key for cell in cells.cells_of(small_table(all={**_all(), "engine": {"workers": 2}}))}
    other = {cell.label: cell.key for cell in cells.cells_of(small_table(all={**_all(), "train": {"lr": 0.1}}))}
    assert one == two, "workers change no byte of a result"
    assert not set(one.values()) & set(other.values())
    assert len(set(one.values())) == 8


def test_two_tables_share_a_run_and_own_classes_are_part_of_the_version() -> None:
    one = {cell.key for cell in cells.cells_of(small_table())}
    renamed = table_of("another", {"rows": ROWS, "columns": COLUMNS, "scenario": SCENARIO, "all": _all()})
    assert one == {cell.key for cell in cells.cells_of(renamed) if cell.seed < 3}
    rows = [{**ROWS[0], "model": {"name": "tests.benchmark.dying:network"}}]
    (own, *_) = cells.cells_of(small_table(rows=rows, claims=[]))
    assert re.search(r"\+tests\.benchmark\.dying@[0-9a-f]{16}$", own.version)
    assert "@" not in next(iter(cells.cells_of(small_table()))).version


def _all() -> dict[str, Any]:
    return dict(small_table().everywhere)


@pytest.mark.slow
def test_processes_give_the_bytes_of_this_process(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    _, out = made
    assert run_table(small_table(), tmp_path, processes=2).computed == 8
    assert files_of(tmp_path) == files_of(out)


def shared_run(tmp_path: Path, name: str, granted: Callable[[], int] | None) -> JobNews:
    """Twelve rounds of FedCorr, which keeps pages at its sites, with as many processes as are granted on the way."""
    method = {"name": "fedcorr", "iterations": 2, "fine_tuning_rounds": 4, "usual_rounds": 4}
    (cell, *_) = cells.cells_of(small_table(rows=[{"label": "FedCorr", "method": method}], claims=[]))
    job = TableJob(0, cell.study.to_table(), tmp_path / name, keep=True)
    return do(job, lambda news: None, granted)


def test_a_run_that_gets_more_processes_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores become free while it runs, and it has long to go: broken off after its third round, then two workers."""
    for name, seconds in (("WORTH_A_BREAK", -1.0), ("TRIED_AFTER", 0.0), ("SAID_EVERY", 0.0)):
        monkeypatch.setattr(pool, name, seconds)
    heard = iter([0, 0, 2] + [0] * 100)
    alone, shared = shared_run(tmp_path, "alone", None), shared_run(tmp_path, "shared", lambda: next(heard))
    assert alone.record is not None and shared.record is not None
    assert alone.record.line() == shared.record.line()
    events = [json.loads(line) for line in (tmp_path / "shared" / "events.jsonl").read_text().splitlines()]
    begun = [event["done"] for event in events if event["kind"] == "started"]
    assert begun == [0, 3], "it was broken off once, and went on from its last round"
    assert shared.record.seconds > 0


def test_two_commands_in_one_folder_of_results_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins a run at the very moment at which the first, which has made it, removes its folder."""
    store = RunStore(tmp_path)
    store.prepare()
    (cell, *_) = cells.cells_of(small_table())
    job = TableJob(0, cell.study.to_table(), store.run_folder("key"))
    second: list[JobNews] = []
    remove = shutil.rmtree

    def removed(place: Path, **options: Any) -> None:
        remove(place, **options)
        if Path(place) == job.folder and not second:
            other = threading.Thread(target=lambda: second.append(do(job)))
            other.start()
            while other.is_alive() and not (job.folder / "checkpoint.bin").is_file():
                time.sleep(0.01)
            remove(place, **options)
            other.join()

    monkeypatch.setattr(shutil, "rmtree", removed)
    first = do(job)
    assert first.record is not None
    assert [IN_USE in news.failure for news in second] == [True]
    store.write(replace(first.record, key="key"))
    again = do(job)
    assert again.record is not None
    assert again.record.seconds == first.record.seconds


def test_a_run_that_ends_soon_is_not_broken_off(tmp_path: Path) -> None:
    assert shared_run(tmp_path, "short", lambda: 2).record is not None
    assert (tmp_path / "short" / "events.jsonl").read_text().count('"started"') == 1


def test_a_run_on_another_device_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH_A_BREAK", -1.0)
    monkeypatch.setattr(pool, "_can_share", lambda study: False)
    assert shared_run(tmp_path, "elsewhere", lambda: 2).record is not None
    assert (tmp_path / "elsewhere" / "events.jsonl").read_text().count('"started"') == 1


class Line:
    """A connection to nobody that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, item: Any) -> None:
        self.sent.append(item)

    def recv(self) -> JobNews:
        (*_, job) = (item for item in self.sent if isinstance(item, TableJob))
        return JobNews(job.number, failure="over")

    def close(self) -> None:
        pass


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """The lines of a pool in which the run of the first hand at work is always the next to end."""
    made: list[Line] = []

    class Hand(pool._JobProcess):
        def __init__(self) -> None:
            made.append(Line())
            self.connection, self.job, self.workers = cast(Any, made[-1]), None, 1
            self.process = cast(Any, threading.current_thread())
            self.started = time.monotonic()

        def end(self) -> None:
            pass

    monkeypatch.setattr(pool, "_JobProcess", Hand)
    monkeypatch.setattr(pool, "wait", lambda connections: connections[:1])
    return made


def sent(lines: list[Line]) -> list[list[str]]:
    """What each hand was sent: a run by its number, or in how many processes it may go on."""
    return [[f"run {i.number}" if isinstance(i, TableJob) else f"{i} each" for i in line.sent] for line in lines]


def jobs_of(count: int) -> list[TableJob]:
    return [TableJob(number, {}, Path(str(number))) for number in range(count)]


def test_cores_are_shared_among_the_runs_that_are_left(lines: list[Line]) -> None:
    """Seven runs and four cores: one core each, then two each where two are left, and the last has them all."""
    assert [news.number for news in run_jobs(jobs_of(7), 4)] == [0, 4, 5, 6, 1, 2, 3]
    first, *others = sent(lines)
    assert first == ["run 0", "run 4", "run 5", "run 6"]
    assert others == [["run 1"], ["run 2", "2 each"], ["run 3", "2 each", "4 each"]]


def test_a_process_that_has_worked_long_is_renewed(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RENEWED_AFTER", -1.0)
    assert [news.number for news in run_jobs(jobs_of(4), 1)] == [0, 1, 2, 3]
    assert sent(lines) == [["run 0"], ["run 1"], ["run 2"], ["run 3"]]


def test_fewer_runs_than_cores_have_more_than_one_each(lines: list[Line]) -> None:
    assert [news.number for news in run_jobs(jobs_of(2), 5)] == [0, 1]
    assert sent(lines) == [["run 0", "2 each"], ["run 1", "2 each", "4 each"]], "four is the most"


@pytest.mark.slow
def test_a_process_that_dies_takes_only_its_own_run(tmp_path: Path) -> None:
    jobs = [TableJob(n, c.study.to_table(), tmp_path / str(n)) for n, c in enumerate(cells.cells_of(small_table()))]
    dying = {**jobs[1].study, "model": {"name": "tests.benchmark.dying:network"}}
    jobs[1] = TableJob(1, dying, tmp_path / "1")
    ended: dict[int, JobNews] = {news.number: news for news in run_jobs(jobs, 2) if news.ended}
    assert "its process ended with code 3" in ended[1].failure
    assert all(news.record is not None for number, news in ended.items() if number != 1)
    assert len(ended) == 8


@pytest.mark.slow
def test_the_same_on_ray(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    _, out = made
    assert run_table(small_table(), tmp_path, ray="local").computed == 8
    assert files_of(tmp_path) == files_of(out)
