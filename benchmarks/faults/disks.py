"""Disks that are full or read-only, and programs killed while they write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.faults.references import app_of, lost, reference, said_by, sameness
from benchmarks.faults.row import HERE, PROCESSES, Row
from benchmarks.faults.stand import NotSeen, Stand
from benchmarks.faults.studies import study_of
from tests.commands import fedsift

from fedsift.core.errors import RunError, Stopped
from fedsift.runs.folder import Checkpoint, RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study

KILLS = 200


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """A small file system of its own at this place; raises NotSeen where that is not allowed."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(["mode=0700", *options]), "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotSeen("a small file system could not be mounted here: it needs the rights of root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def remount(place: Path, *options: str) -> bool:
    command = ["mount", "-o", ",".join(["remount", *options]), str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def full_at_a_site(stand: Stand) -> Iterator[Row]:
    """A site's notebook is on a disk without room for an answer; later there is room again."""
    usual = reference(stand, "fedavg")
    site = stand.sites[-1]
    notebook = stand.trial.sites[site].parent / "notebook"
    changes = {"federation": {"quorum": 0.5, "deadline": 120, "grace": 10}}
    app = stand.app(study_of("fedavg", stand.trial.out, **changes), "full")
    stand.kill(site)
    with mounted(notebook, "size=64k"):
        stand.start_site(site)
        began = time.monotonic()
        run = stand.start(app)
        run.finish(2)
        refused = [row["refused"].get(site, "") for row in run.folder.rounds()]
        remount(notebook, "size=64m")
        code = run.end()
        own = said_by(stand.log(site), "No space left")
        last = run.folder.rounds()[-1]
        stand.kill(site)
    stand.start_site(site)
    yield Row(
        name="disk full at a site",
        fault="the disk of a site's notebook is full for two rounds of four",
        how=PROCESSES,
        expected="the site is set aside with a reason, its own log says why; with room again it takes part again",
        outcome=f"exit code {code}; set aside in {sum(bool(why) for why in refused)} rounds, "
        f"{last['participants']} sites in the last",
        passed=code == 0 and any(refused) and last["participants"] == len(stand.sites) and bool(own),
        said=own or next(filter(None, refused), ""),
        **lost(run, began, usual),
    )


def disks_of_the_coordinator(stand: Stand) -> Iterator[Row]:
    """The run folder's disk is full, then another's read-only; the same command goes on when it is mended."""
    usual, app = reference(stand, "fedavg"), app_of(stand, "fedavg")
    for state, broken in (("full", _full), ("read-only", _read_only)):
        name = f"disk {state} at the coordinator"
        place = stand.trial.out / "runs" / name.replace(" ", "-")
        with mounted(place, "size=64m"):
            began = time.monotonic()
            run = stand.start(app, f"{place.name}/run")
            run.finish(2)
            with broken(place):
                code = run.end()
            said = said_by(run.words, "cannot be written (")
            run = stand.start(app, f"{place.name}/run")
            again = run.end()
            row = Row(
                name=name,
                fault=f"the run folder's disk is {state} after round 2 of 4",
                how=PROCESSES,
                expected="the run ends and says why; mended, the same command goes on, equal to the undisturbed run",
                outcome=f"exit code {code}, then {again}; {sameness(run, usual)}",
                passed=code != 0 and again == 0 and bool(said) and sameness(run, usual).startswith("model"),
                said=said,
                **lost(run, began, usual),
            )
        yield row


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """The folder read-only for all that is opened from now on; a disk with files open for writing stays writable."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        if not remount(folder, "bind", "ro"):
            raise NotSeen("a folder could not be made read-only here")
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextmanager
def _full(place: Path) -> Iterator[None]:
    """No room left."""
    filler = place / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
            file.flush()
    yield
    filler.unlink()


def killed_while_writing(folder: Path) -> Iterator[Row]:
    """A program that writes checkpoints as fast as it can is killed two hundred times; each time one must load."""
    place = RunFolder.create(folder.parent, folder.name)
    chance = random.Random(1)
    loaded, last, losses, began = 0, 0, 0, time.monotonic()
    for _ in range(KILLS):
        child = os.fork()
        if child == 0:
            _write_for_ever(RunFolder(place.path), last)
        time.sleep(chance.uniform(0.004, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            point = place.restore()
        except Exception as error:
            print(f"a checkpoint did not load: {error}")
            continue
        if point is None:
            loaded += last == 0
            continue
        whole = all(page == _page(point.rounds_done) for page in point.notebooks.values())
        loaded += whole and point.state == _page(point.rounds_done) and point.rounds_done >= last
        losses += point.rounds_done < last
        last = point.rounds_done
    leftovers = sum(1 for path in place.path.rglob("*.tmp"))
    yield Row(
        name="killed while writing",
        fault=f"{KILLS} kills of a program that writes checkpoints of 1 MB with three notebooks as fast as it can",
        how=HERE,
        expected=f"{KILLS} checkpoints load, whole, none older than the one before",
        outcome=f"{loaded} of {KILLS} loaded after {last} checkpoints in {time.monotonic() - began:.0f} s; "
        f"{losses} went back; {leftovers} unfinished files left",
        passed=loaded == KILLS and last >= KILLS // 4,
        said="",
    )


def changed_bytes(folder: Path) -> Iterator[Row]:
    """A byte of each file of a stopped run is changed, at five places; `resume` and `report` must name the file."""
    place = new_run(study_of("fedcorr", folder), folder)

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == STOPPED_AFTER:
            raise Stopped("as asked")

    with suppress(Stopped):
        run(Study.from_file(place.study_file), place, stop)
    files = [file for file in sorted(place.path.rglob("*")) if file.is_file() and file.name not in UNREAD]
    tried = named = 0
    said, unnamed = "", set()
    for file in files:
        whole = file.read_bytes()
        for share in (0.0, 0.3, 0.55, 0.8, 0.97):
            where = round(share * (len(whole) - 1))
            file.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :])
            for command in ("resume", "report"):
                words = _refused([command, str(place.path)])
                tried += 1
                if words.count("\n") <= 1 and words.startswith("error: ") and file.name in words:
                    named, said = named + 1, words
                else:
                    unnamed.add(f"{file.name}: {words}")
        file.write_bytes(whole)
    yield Row(
        name="disk changes bytes",
        fault=f"a bit of each of the {len(files)} files of a stopped FedCorr run is changed, at five places, before "
        "`resume` and before `report`",
        how=HERE,
        expected="exit code 5 and one line that names the file, each time",
        outcome=f"{named} of {tried} refused with the file's name",
        passed=named == tried,
        said=(" ".join(sorted(unnamed)) or said).strip(),
    )


STOPPED_AFTER = 3
UNREAD = frozenset({".lock", "checksums.txt", "events.jsonl", "report.html"})
"""Nothing is computed from these: a changed line of the events is counted on the live page and passed over."""


def _refused(words: list[str]) -> str:
    """What the command says when it ends with exit code 5; another end is said too."""
    done = fedsift(*words, cwd=Path.cwd())
    return done.stderr if done.returncode == RunError.exit_code else f"exit code {done.returncode}: {done.stderr}"


def _page(number: int) -> bytes:
    return number.to_bytes(8, "little") * 40_000


def _write_for_ever(place: RunFolder, number: int) -> None:
    try:
        place.restore()
        while True:
            number += 1
            page = _page(number)
            place.append_round({"round": number})
            place.checkpoint(Checkpoint(number, page, [], dict.fromkeys(("a", "b", "c"), page)))
    finally:
        os._exit(1)
