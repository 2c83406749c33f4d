"""What does not fit before the first round: one line at the side that can mend it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.faults.disks import mounted
from benchmarks.faults.references import app_of, said_by
from benchmarks.faults.row import ONE_COMMAND, PROCESSES, Row
from benchmarks.faults.stand import Stand, wait_until
from benchmarks.faults.studies import study_of
from tests.data.pictures_on_disk import labelled_folder

from fedsift.core.errors import DataError
from fedsift.core.version import __version__
from fedsift.deploy.app import write_app
from fedsift.deploy.certificates import temporary_certificate
from fedsift.deploy.trial import make_key

CALLS = "nobody answers"
CLOCK = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Said:
    code: int
    words: str
    seconds: float


def _site(folder: Path, environment: dict[str, str] | None = None) -> Said:
    """`fedsift flower site` for a site whose coordinator does not answer: what is wrong at home is told before that."""
    keys = temporary_certificate(folder.parent / "keys")
    key = folder.parent / "node"
    make_key(key)
    line = ["--superlink", "127.0.0.1:9", "--ca", str(keys.certificate), "--key", str(key)]
    began = time.monotonic()
    with (folder.parent / "said").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsift", "flower", "site", str(folder / "site.toml"), *line],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        said = folder.parent / "said"
        wait_until(lambda: process.poll() is not None or CALLS in said.read_text("utf-8"), 240, "a word")
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it got past its own checks, and goes on trying to connect
            process.wait(60)
    words = CLOCK.sub("", (folder.parent / "said").read_text("utf-8", errors="replace"))
    return Said(process.returncode, words, time.monotonic() - began)


def _trial_site(folder: Path) -> Path:
    files = write_app(study_of("fedavg", folder), folder / "app", trial=folder / "trial")
    return files[0].parent


def _row(name: str, fault: str, found: Said, word: str, code: int = 2) -> Row:
    last = said_by(found.words, word) or found.words.strip()[-200:]
    return Row(
        name=name,
        fault=fault,
        how=ONE_COMMAND,
        expected=f"exit code {code} and one line that says what to mend",
        outcome=f"exit code {found.code} after {found.seconds:.0f} s",
        passed=found.code == code and word in found.words and "Traceback" not in found.words,
        said=last,
    )


def truncated_data(folder: Path) -> Iterator[Row]:
    site = _trial_site(folder)
    whole = (site / "data.npz").read_bytes()
    (site / "data.npz").write_bytes(whole[: len(whole) // 2])
    yield _row("truncated data", "a site's data file is cut off", _site(site), "data.npz", code=3)


def label_out_of_range(folder: Path) -> Iterator[Row]:
    site = _trial_site(folder)
    with np.load(site / "data.npz") as file:
        arrays = dict(file)
    arrays["labels"] = arrays["labels"].copy()
    arrays["labels"][3] = 99
    np.savez(site / "data.npz", **arrays)
    yield _row("label out of range", "a label of a site is no class", _site(site), "99", code=3)


def hostile_pictures(folder: Path) -> Iterator[Row]:
    """Among eight pictures: PostScript called .png, a fifo, and links to /dev/zero and to a file outside."""
    own = labelled_folder(folder / "own", 12)
    ran, programs = folder / "ran", folder / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (programs / "gs").chmod(0o755)
    bad = [own / "pictures" / f"p{k:03d}.png" for k in range(4)]
    for file in bad:
        file.unlink()
    bad[0].write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    os.mkfifo(bad[1])
    bad[2].symlink_to("/dev/zero")
    bad[3].symlink_to("/etc/hostname")
    found, peak = _doctor(own, {"PATH": f"{programs}:{os.environ['PATH']}"})
    named = [file.stem for file in bad if file.stem in found.words]
    yield Row(
        name="hostile pictures",
        fault="among twelve pictures: PostScript called .png with a Ghostscript on the machine, a fifo, links to "
        "/dev/zero and to a file outside",
        how=ONE_COMMAND,
        expected="no program runs, nothing is opened that is no file of the folder, the doctor names all four",
        outcome=f"exit code {found.code} after {found.seconds:.0f} s with {peak:.1f} GB; {len(named)} of 4 named; "
        f"{'Ghostscript ran' if ran.exists() else 'no program ran'}",
        passed=len(named) == len(bad) and not ran.exists() and peak < MOST_MEMORY,
        said=said_by(found.words, "p000"),
    )


def arrays_that_unpack(folder: Path) -> Iterator[Row]:
    """4 GB of zeros, packed into 4 MB."""
    own = folder / "own.npz"
    folder.mkdir(parents=True)
    shape = (100_000, 1, 200, 200)
    with (
        zipfile.ZipFile(own, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("images.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for _ in range(400):
            member.write(bytes(10_000_000))
    found, peak = _doctor(own, {})
    yield Row(
        name="data that unpack",
        fault=f"an .npz of {own.stat().st_size / 1e6:.1f} MB whose pictures unpack to 4 GB",
        how=ONE_COMMAND,
        expected="refused before memory is taken, in one line",
        outcome=f"exit code {found.code} after {found.seconds:.0f} s with {peak:.1f} GB",
        passed=found.code == DataError.exit_code and peak < MOST_MEMORY and "Traceback" not in found.words,
        said=said_by(found.words, "unpack"),
    )


MOST_MEMORY = 1.0
"""GB that reading a few small pictures may take; the program alone takes about half of it."""


def _doctor(data: Path, environment: dict[str, str]) -> tuple[Said, float]:
    """What `fedsift doctor` says of the data, and its peak memory in GB."""
    began = time.monotonic()
    said = data.parent / "said"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsift", "doctor", str(data)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "200", "FEDSIFT_CACHE": str(data.parent / "cache"), **environment},
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    words = CLOCK.sub("", said.read_text("utf-8", errors="replace"))
    return Said(process.returncode, words, time.monotonic() - began), used.ru_maxrss / 1e6


def readonly_notebook(folder: Path) -> Iterator[Row]:
    site = _trial_site(folder)
    with mounted(site / "notebook", "ro"):
        yield _row(
            "read-only notebook",
            "a site's notebook lies on a read-only disk",
            _site(site),
            "cannot be written",
        )


def long_temporary_path(folder: Path) -> Iterator[Row]:
    site = _trial_site(folder)
    deep = folder / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    before = set(Path(tempfile.gettempdir()).glob("fedsift-site-*"))
    found = _site(site, {"TMPDIR": str(deep)})
    left = list(deep.glob("fedsift-site-*"))
    called = CALLS in found.words
    yield Row(
        name="long temporary path",
        fault="TMPDIR is longer than a socket's path may be",
        how=ONE_COMMAND,
        expected="another place is found, the site comes as far as the line to the coordinator, nothing is left behind",
        outcome=f"exit code {found.code}; {'it read its data and called' if called else 'it ended'}",
        passed=called and not left and set(Path(tempfile.gettempdir()).glob("fedsift-site-*")) <= before,
        said=said_by(found.words, CALLS),
    )


def other_study(stand: Stand) -> Iterator[Row]:
    """The run folder of one study, the app of another; then the folder and the app of another fedsift."""
    first = stand.start(app_of(stand, "fedavg"))
    first.finish(1)
    os.kill(first.member.process.pid, signal.SIGINT)
    stopped = first.end()
    changed = stand.app(study_of("fedavg", stand.trial.out, seed=6), "changed")
    yield _start_row(stand, changed, first.folder.id, "changed study", "another study over an old run folder", "seed")
    older = stand.trial.out / "apps" / "older"
    shutil.copytree(app_of(stand, "fedavg"), older)
    text = (older / "pyproject.toml").read_text("utf-8")
    (older / "pyproject.toml").write_text(text.replace(f"=={__version__}", "==0.0.1"), "utf-8")
    yield _start_row(stand, older, "older-app", "app of another version", "the app was made by fedsift 0.0.1", "0.0.1")
    deployed = first.folder.read_json("deployed.json")
    first.folder.write_text("deployed.json", json.dumps({**deployed, "fedsift": "0.0.1"}))
    app = app_of(stand, "fedavg")
    fault = "the run folder began with fedsift 0.0.1"
    yield _start_row(stand, app, first.folder.id, "run of another version", fault, "0.0.1")
    first.folder.write_text("deployed.json", json.dumps(deployed))
    yield Row(
        name="Ctrl-C and again",
        fault="Ctrl-C in a run, then the same command",
        how=PROCESSES,
        expected="exit code 130 and how to go on; then to the end",
        outcome=f"exit code {stopped}, then {(again := stand.start(app, first.folder.id)).end()}",
        passed=stopped == 130 and again.member.process.returncode == 0,
        said=said_by(first.words, "nothing is lost"),
    )


def _start_row(stand: Stand, app: Path, run: str, name: str, fault: str, word: str) -> Row:
    began = time.monotonic()
    running = stand.start(app, run)
    log = running.member.log
    before = log.stat().st_size
    code = running.end()
    words = CLOCK.sub("", log.read_bytes()[before:].decode(errors="replace"))
    return _row(name, fault, Said(code, words, time.monotonic() - began), word)


VERSION = "from fedsift.core import version\nversion.__version__ = '9.9.9'\n"


def other_classes(stand: Stand) -> Iterator[Row]:
    """A site has the classes in another order."""
    site = stand.sites[-1]
    file = stand.trial.sites[site]
    kept = file.read_text("utf-8")

    def swap() -> None:
        names = re.search(r"classes = \[(.*?)\]", kept, re.S)
        assert names is not None
        ordered = [name.strip() for name in names[1].split(",") if name.strip()]
        turned = ", ".join([ordered[1], ordered[0], *ordered[2:]])
        file.write_text(kept.replace(names[0], f"classes = [{turned}]"), "utf-8")

    yield _disagreeing(stand, site, swap, "class order", "a site has the classes in another order", "another order", {})
    file.write_text(kept, "utf-8")
    place = stand.trial.out / "another-version"
    place.mkdir()
    (place / "sitecustomize.py").write_text(VERSION, "utf-8")
    path = {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    fault = "a site runs another version of fedsift"
    yield _disagreeing(stand, site, lambda: None, "site of another version", fault, "runs fedsift 9.9.9", path)
    _restart(stand, site, {})


def _restart(stand: Stand, site: str, environment: dict[str, str]) -> None:
    stand.kill(site)
    kept = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        stand.start_site(site)
    finally:
        for key, value in kept.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def _disagreeing(
    stand: Stand,
    site: str,
    change: Callable[[], None],
    name: str,
    fault: str,
    word: str,
    environment: dict[str, str],
) -> Row:
    stand.kill(site)
    change()
    _restart(stand, site, environment)
    began = time.monotonic()
    run = stand.start(app_of(stand, "fedavg"))
    code = run.end()
    time.sleep(6.0)  # the notice to the site is nobody's business any more, and travels on
    told = said_by(stand.log(site), word)
    rounds = len(run.folder.rounds())
    return Row(
        name=name,
        fault=fault,
        how=PROCESSES,
        expected="exit code 2 before the first round, with the site's name; the site gets the reason in its log",
        outcome=f"exit code {code} after {time.monotonic() - began:.0f} s and {rounds} rounds; "
        f"{'the site got it' if told else 'the site did not get it'}",
        passed=code == 2 and rounds == 0 and bool(told),
        said=said_by(run.words, word),
    )
