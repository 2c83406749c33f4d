"""How long a run and a table still take: by hand, by a study whose stages differ tenfold, and beside `fedsift plan`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fedsift.benchmark import pool, running
from fedsift.benchmark.eta import PastRuns, RunPace, TimeLeft, last_end
from fedsift.benchmark.pool import JobNews, TableJob, do
from fedsift.benchmark.running import TableProgress, run_table
from fedsift.study.planning import StageTimes, plan_study
from fedsift.study.study import Study
from tests.benchmark.small import STUDY, small_table

STAGES = [("one site", 10), ("ten sites", 20)]


def rounds(stage: str, count: int, seconds: float) -> list[dict[str, Any]]:
    return [{"stage": stage, "seconds": seconds}] * count


def pace_after(*rows: dict[str, Any], tried: dict[str, float] | None = None, before: float = 0.0) -> RunPace:
    pace = RunPace(STAGES, tried=tried, before=before)
    for row in rows:
        pace.add_round(row)
    return pace


def test_a_stage_that_has_not_begun_is_weighed_by_its_trial() -> None:
    """4 of 10 rounds of 1 s are done; 6 s are left of this stage, and 20 rounds that cost ten times as much."""
    pace = pace_after(*rounds("one site", 4, 1.0), tried={"one site": 1.0, "ten sites": 10.0}, before=3.0)
    assert pace.ahead() == TimeLeft(left=6 + 200, whole=3 + 10 + 200)


def test_a_trial_on_an_idle_machine_is_stretched_by_what_the_rounds_took() -> None:
    pace = pace_after(*rounds("one site", 5, 2.0), tried={"one site": 1.0, "ten sites": 10.0})
    assert pace.ahead() == TimeLeft(left=5 * 2 + 20 * 20, whole=10 * 2 + 20 * 20)


def test_rounds_that_ask_nobody_make_no_stage_ahead_cheaper() -> None:
    """Of FedCorr's published visits most find no site in a small federation; the stages after it ask as ever."""
    idle = [*rounds("one site", 1, 1.0), *rounds("one site", 8, 0.0)]
    ahead = pace_after(*idle, tried={"one site": 1.0, "ten sites": 10.0}).ahead()
    assert ahead is not None
    assert ahead.left == pytest.approx(1 / 9 + 200)


def test_a_stage_that_has_begun_speaks_for_itself_by_its_last_rounds() -> None:
    slow_then_fast = [*rounds("ten sites", 1, 50.0), *rounds("ten sites", 9, 5.0)]
    pace = pace_after(*rounds("one site", 10, 1.0), *slow_then_fast)
    assert not pace.unknown
    assert pace.ahead() == TimeLeft(left=10 * 9.5, whole=10 + 95 + 10 * 9.5)


def test_nothing_is_said_of_a_stage_of_which_nothing_is_known() -> None:
    pace = pace_after(*rounds("one site", 4, 1.0))
    assert pace.unknown
    assert pace.ahead() is None
    pace.tried = {}  # the trial failed: like those before
    assert pace.ahead() == TimeLeft(left=6 + 20, whole=30)


def test_free_processes_take_the_next_run_in_order() -> None:
    """Seven runs of 50 minutes on two processes end after four, not after three and a half."""
    assert last_end([], [50.0] * 7, 2) == 200
    assert last_end([10.0, 40.0], [50.0, 5.0], 2) == 60  # 10 + 50; the short one goes to 40
    assert last_end([10.0], [], 4) == 10


def test_a_run_that_waits_is_guessed_by_its_row_first() -> None:
    wholes = PastRuns()
    assert wholes.guess("FedAvg", "clean") is None
    wholes.know(0, "FedAvg", "clean", 9.0)
    wholes.know(0, "FedAvg", "clean", 3.0)  # the same run, known better
    wholes.know(1, "DivideMix", "clean", 21.0)
    assert [wholes.guess(*place) for place in (("FedAvg", "noisy"), ("DivideMix", "clean"), ("LC", "noisy"))] == [
        3.0, 21.0, 12.0,
    ]  # fmt: skip


TWO_STAGES: dict[str, Any] = {
    **STUDY,
    "partition": {"name": "iid", "sites": 10},
    "method": {
        "name": "fedcorr", "iterations": 1, "visit_fraction": 0.1, "fraction": 1.0, "fine_tuning_rounds": 20,
        "usual_rounds": 20,
    },
}  # fmt: skip


def told_of(study: dict[str, Any], folder: Path) -> list[JobNews]:
    told: list[JobNews] = []
    ended = do(TableJob(0, study, folder), told.append)
    assert ended.record is not None, ended.failure
    return [*told, ended]


def test_a_run_in_its_first_stage_is_forecast_as_plan_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedCorr asks one site a round, then ten. Its clock is replaced, so that a visit costs a second on any machine."""
    visits = {"pre-processing": 1.0, "fine-tuning": 10.0, "relabel the rest": 0.0, "usual training": 10.0}
    whole = 10 * 1.0 + 20 * 10.0 + 20 * 10.0
    by_stage = {
        "pre-processing": 10.0,
        "fine-tuning": 200.0,
        "relabel the rest": 0.0,
        "usual training": 200.0,
    }
    monkeypatch.setattr(pool, "TRIED_AFTER", 0.0)
    monkeypatch.setattr(pool, "SAID_EVERY", 0.0)
    monkeypatch.setattr("fedsift.study.planning.time_stages", lambda study, federated: StageTimes(by_stage, 1))
    monkeypatch.setattr("fedsift.study.planning.time_stages", lambda study, federated: StageTimes(by_stage, 1))
    add_round = RunPace.add_round
    monkeypatch.setattr(
        RunPace, "add_round", lambda self, row: add_round(self, {**row, "seconds": visits[row["stage"]]})
    )
    told = told_of(TWO_STAGES, tmp_path / "run")
    first, last = told[0].ahead, told[-1].ahead
    assert first is not None and last is not None
    assert told[0].round == 1
    assert first.left == pytest.approx(whole - 1)
    assert last.left == 0
    forecast = plan_study(Study.from_table(TWO_STAGES))
    assert forecast.seconds == whole
    assert {stage.name: stage.seconds for stage in forecast.stages} == by_stage
    assert told[9].ahead is not None
    assert told[9].ahead.left == pytest.approx(400)  # 41 more rounds like the first ten would be 41 s


def test_a_trial_changes_no_byte_of_the_run_and_does_not_count_as_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = do(TableJob(0, TWO_STAGES, tmp_path / "alone")).record
    monkeypatch.setattr(pool, "TRIED_AFTER", 0.0)
    monkeypatch.setattr(pool, "SAID_EVERY", 0.0)
    tried: list[float] = []
    try_stages = pool._tried

    def slow(job: TableJob, pace: RunPace) -> dict[str, float]:
        started = time.process_time()
        while time.process_time() - started < 3.0:
            pass
        tried.append(1.0)
        return try_stages(job, pace)

    monkeypatch.setattr(pool, "_tried", slow)
    watched = told_of(TWO_STAGES, tmp_path / "watched")[-1].record
    assert alone is not None and watched is not None
    assert tried == [1.0], "once a run"
    assert watched.line() == alone.line()
    assert watched.seconds < alone.seconds + 2.0


def test_a_run_that_is_gone_on_with_knows_the_rounds_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsift.benchmark.cells import measure

    def stop(row: dict[str, Any]) -> None:
        if row["stage"] == "fine-tuning":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(Study.from_table(TWO_STAGES), tmp_path / "run", stop)
    paces: list[RunPace] = []
    so_far = pool._pace_so_far
    monkeypatch.setattr(pool, "_pace_so_far", lambda folder: paces.append(so_far(folder)) or paces[0])
    told_of(TWO_STAGES, tmp_path / "run")
    assert {stage: len(seen) for stage, seen in paces[0].rounds.items()} == {
        "pre-processing": 10, "fine-tuning": 20, "relabel the rest": 1, "usual training": 20,
    }  # fmt: skip


def test_a_table_says_how_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs 0 and 1 take 100 s; run 2, FedAvg in noisy, says in its first round that 300 s lie ahead; five wait."""
    now = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    told: list[TableProgress] = []

    def script(jobs: list[TableJob], processes: int) -> Any:
        assert len(jobs) == 8
        yield JobNews(0, round=1, of=2, ahead=TimeLeft(50.0, 100.0))
        yield JobNews(1, round=1, of=2)  # nothing known: like the other
        now[0] = 60.0
        yield JobNews(0, failure="it failed", ahead=TimeLeft(0.0, 100.0))
        yield JobNews(1, round=1, of=2, ahead=TimeLeft(40.0, 100.0))
        now[0] = 80.0
        yield JobNews(2, round=1, of=9, ahead=TimeLeft(300.0, 320.0))

    monkeypatch.setattr(running, "run_jobs", script)
    run_table(small_table(), tmp_path, processes=2, listen=told.append)
    first, second, failed, third, fourth = [progress.seconds_left for progress in told][1:]
    assert told[0].seconds_left is None
    assert first == second == 50 + 3 * 100 + 50  # 50 and 0 busy; 7 of 100 s: 350 and 400
    assert failed == 400  # 7 of 100 s on two
    assert third == 40 + 3 * 100  # 40, then six more: 340 and 300
    # 20 and 300 are under way; FedLA 100, FedAvg in clean 100, FedLA 100, FedAvg in noisy 320 as run 2, FedLA 100
    assert fourth == 300 + 320
