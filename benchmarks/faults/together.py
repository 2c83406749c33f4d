"""Runs that meet: two at once, two commands for one run, a command that dies and is typed again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator

from benchmarks.faults.references import app_of, lost, reference, said_by, sameness
from benchmarks.faults.row import PROCESSES, Row
from benchmarks.faults.stand import Running, Stand

from fedsift.runs.folder import RunFolder

SILENT = 5.0


def two_runs(stand: Stand) -> Iterator[Row]:
    usual = {method: reference(stand, method) for method in ("fedavg", "feddpcont")}
    began = time.monotonic()
    runs = {method: stand.start(app_of(stand, method)) for method in usual}
    codes = {method: run.end() for method, run in runs.items()}
    same = {method: sameness(run, usual[method]) for method, run in runs.items()}
    yield Row(
        name="two runs at once",
        fault="two studies run over the same sites at the same time",
        how=PROCESSES,
        expected="both end, each equal to its run alone",
        outcome=f"exit codes {sorted(codes.values())}; {'; '.join(f'{name}: {words}' for name, words in same.items())}",
        passed=set(codes.values()) == {0} and all(words.startswith("model") for words in same.values()),
        said="",
        **lost(runs["fedavg"], began, usual["fedavg"]),
    )


def start_dies(stand: Stand) -> Iterator[Row]:
    """`start` is killed, typed again, and typed once more beside that."""
    usual = reference(stand, "fedavg")
    began, app = time.monotonic(), app_of(stand, "fedavg")
    first = stand.start(app)
    first.ask(2)
    os.kill(first.member.process.pid, signal.SIGKILL)
    first.end(30)
    second = stand.start(app, first.folder.id)
    third = stand.start(app, first.folder.id)
    codes = [second.end(), third.end()]
    report = "a report" if (first.folder.path / "report.html").is_file() else "no report"
    attached = second.words.count("attached to it")
    yield Row(
        name="start killed",
        fault="`start` is killed in round 2; the same command is typed twice, side by side",
        how=PROCESSES,
        expected="both attach to the run that went on, follow it to its end and write the report",
        outcome=f"exit codes {codes}, {attached} attached, {report}; {sameness(second, usual)}",
        passed=codes == [0, 0]
        and attached == 2
        and report == "a report"
        and sameness(second, usual).startswith("model"),
        said=said_by(second.words, "attached"),
        **lost(second, began, usual),
    )


def coordinator_restored(stand: Stand) -> Iterator[Row]:
    """FedCorr's run folder is put back to what it was after its first round; the sites keep what they have."""
    usual = reference(stand, "fedcorr")
    began, app = time.monotonic(), app_of(stand, "fedcorr")
    first = stand.start(app)
    first.finish(1)
    copy = first.folder.path.with_name("copy")
    os.kill(first.member.process.pid, signal.SIGINT)
    first.end()
    shutil.copytree(first.folder.path, copy)
    old = len(RunFolder(copy).rounds())
    second = stand.start(app, first.folder.id)
    second.finish(old + 2)
    os.kill(second.member.process.pid, signal.SIGINT)
    second.end()
    later = len(second.folder.rounds())
    shutil.rmtree(first.folder.path)
    copy.rename(first.folder.path)
    third = stand.start(app, first.folder.id)
    code = third.end()
    yield Row(
        name="coordinator restored",
        fault="the coordinator's run folder is replaced by a copy that is some rounds old, the sites are not touched",
        how=PROCESSES,
        expected="exit code 0, nobody set aside, equal to the undisturbed run",
        outcome=f"exit code {code} from a copy of {old} rounds after {later}; {sameness(third, usual)}",
        passed=code == 0 and later > old + 1 and sameness(third, usual).startswith("model"),
        said=said_by(third.words, "goes on", "round"),
        **lost(third, began, usual),
    )


def never_silent(stand: Stand) -> Iterator[Row]:
    """The output of a run, looked at twenty times a second: how long nothing was said, from the first second on."""
    app = app_of(stand, "fedavg")
    began, gaps, size, last = time.monotonic(), [], 0, time.monotonic()
    run = stand.start(app)
    first = None
    while not run.over:
        now, found = time.monotonic(), run.member.log.stat().st_size
        if found != size:
            first = first or now - began
            gaps.append((now - last, _last_words(run, size)))
            size, last = found, now
        time.sleep(0.05)
    gaps.append((time.monotonic() - last, _last_words(run, size)))
    longest, after = max(gaps)
    yield Row(
        name="never silent",
        fault="an undisturbed run, from the command to its end",
        how=PROCESSES,
        expected=f"a word within {SILENT:.0f} s, and never more than {SILENT:.0f} s without one",
        outcome=f'first word after {first or 0:.1f} s, longest silence {longest:.1f} s, after "{after}"',
        passed=bool(first) and longest <= SILENT,
        said=_first_words(run),
    )


def _last_words(run: Running, size: int) -> str:
    """What was said last before a silence that begins at this length of the log."""
    lines = run.member.log.read_bytes()[:size].decode("utf-8", errors="replace").split("\n")
    said = [re.sub(r"\x1b\[[0-9;]*m|\s+", " ", line).strip() for line in lines]
    return next((line for line in reversed(said) if line), "nothing yet")[:100]


def _first_words(run: Running) -> str:
    lines = [re.sub(r"\s+", " ", line).strip() for line in run.words.splitlines()]
    return " / ".join(line for line in lines if line)[:200]
