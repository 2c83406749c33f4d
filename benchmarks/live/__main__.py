"""What the live page costs: `python -m benchmarks.live`, with 200 sites, in a real Chromium.

First the page of a run of 1,000 rounds: its events are written as an engine writes them, and the last rounds come
while the page is open. Then a real run (`fedsift run`) with a page open beside it, for the server's CPU time as a share
of the run's. CPU time and memory come from the kernel's own books (/proc), the page's times from the page itself.
Results go to `results/live.csv` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.files import write_list
from benchmarks.live.page import RESULTS
from tests.label_audit.browser import MISSING, Browser

from fedsift.runs.events import Answered, Asked, Checkpointed, EventLog, Refused, RoundDone, Started
from fedsift.runs.folder import RunFolder

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
STUDY = """
name = "live benchmark"
seed = 1
[data]
name = "digits"
[partition]
name = "iid"
sites = {sites}
[noise]
name = "fedcorr"
rho = 0.3
tau = 0.5
[model]
name = "cnn"
[train]
epochs = 1
batch_size = 8
lr = 0.05
[method]
name = "fedavg"
rounds = {rounds}
[gate]
heuristics = "always"
norm_factor = 1.6
[federation]
quorum = 0.1
[evaluate]
every = 1
"""
"""The gate is so strict that some honest updates are set aside: lanes with nothing to see would be cheap to draw."""


def seconds_used(pid: int) -> float:
    """CPU time of a process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK


def most_memory(pid: int) -> float:
    """The most that a process ever had in memory, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"process {pid} tells no memory")


@contextmanager
def program(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "fedsift", *arguments], text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def opened(place: Path, url: str, name: str) -> tuple[Browser, float]:
    """A fresh browser with a run's page in it, and the seconds from asking for it until the run was drawn."""
    window = Browser(place / name)
    window.visit(url)
    window.wait_until("window.fedsiftReady > 0")
    return window, window.run("return window.fedsiftReady") / 1000


@contextmanager
def served(runs: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server, with its address."""
    with program("serve", str(runs), "--port", "0", "--json", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield server, json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"]


def page_of_a_long_run(sites: int, rounds: int, place: Path) -> dict[str, Any]:
    """The page of a run that is nearly through, and how it takes the last rounds, four a second."""
    last = 40
    made = LongRun(place / "runs", sites, rounds)
    for number in range(1, rounds - last + 1):
        made.round(number)
    with served(place / "runs") as (server, address):
        window, ready = opened(place, f"{address}runs/long/", "page")
        window.run("document.getElementById('sites').scrollIntoView()")  # so that lanes are painted too
        first = window.run("return window.fedsiftUpdates.splice(0)")[0]
        for number in range(rounds - last + 1, rounds + 1):
            made.round(number)
            time.sleep(0.25)
        window.wait_until(f"document.getElementById('headline').textContent.includes('round {rounds} of')")
        updates = window.run("return window.fedsiftUpdates")
        memory = most_memory(server.pid)
        window.close()
    return {
        "sites": sites,
        "rounds": rounds,
        "events_mb": round((made.folder.path / "events.jsonl").stat().st_size / 1e6, 2),
        "ready_seconds": round(ready, 3),
        "first_drawing_ms": round(first, 1),
        "updates": len(updates),
        "update_ms_median": round(statistics.median(updates), 2),
        "update_ms_worst": round(max(updates), 1),
        "server_memory_mb": round(memory, 1),
    }


class LongRun:
    """Events as an engine writes them: every site is asked and answers, three answers a round are set aside."""

    def __init__(self, runs: Path, sites: int, rounds: int) -> None:
        self.folder = RunFolder.create(runs, "long")
        self.folder.write_text("study.toml", "seed = 1\n")
        self.folder.lock()
        self.names = tuple(f"site-{i:03d}" for i in range(sites))
        self.rounds, self.say, self.random = rounds, EventLog(self.folder.path), random.Random(1)
        stages = tuple({"name": n, "rounds": rounds // 2, "trains": True} for n in ("warm up", "training"))
        self.say(Started("long", "FedNoRo", "inprocess", self.names, rounds, stages, 0, platform.node()))

    def round(self, number: int) -> None:
        stage = "warm up" if number <= self.rounds // 2 else "training"
        self.say(Asked(number, stage, "Train", self.names, 600.0))
        self.say(Answered(number, "Train", self.names))
        for site in self.random.sample(self.names, 3):
            self.say(Refused(number, "Train", site, "the update's length 3.1 is 21 times the cohort's median 0.15"))
        score = 1 - 1 / (1 + number / 100) + self.random.gauss(0, 0.01)
        values = {
            "accuracy": score,
            "bacc": score - 0.02,
            "train_loss": 2 / number**0.5,
            "loss": 2 / number**0.4,
        }
        up = len(self.names) * 100_000
        self.say(RoundDone(number, self.rounds, stage, len(self.names) - 3, up, up, 0.4, values))
        self.say(Checkpointed(number))


def cost_beside_a_run(sites: int, rounds: int, place: Path) -> dict[str, Any]:
    """CPU time of the server while a page follows a real run, beside the run's own, from the first round on."""
    study = place / "study.toml"
    study.write_text(STUDY.format(sites=sites, rounds=rounds))
    runs = place / "real"
    runs.mkdir()
    with (
        served(runs) as (server, address),
        program("run", str(study), "--out", str(runs), "--json", stdout=subprocess.DEVNULL) as run,
    ):
        folder = wait_for_run(runs, run)
        window, _ = opened(place, f"{address}runs/{folder.name}/", "beside")
        run_from, server_from = seconds_used(run.pid), seconds_used(server.pid)
        run_seconds = server_seconds = 0.0
        first = done = _lines(folder / "rounds.jsonl")
        while run.poll() is None and done < rounds - 1:
            time.sleep(0.5)
            run_seconds = seconds_used(run.pid) - run_from
            server_seconds = seconds_used(server.pid) - server_from
            done = _lines(folder / "rounds.jsonl")
        window.close()
    return {
        "sites": sites,
        "rounds": done - first,
        "run_cpu_seconds": round(run_seconds, 1),
        "server_cpu_seconds": round(server_seconds, 2),
        "server_cpu_share": round(server_seconds / run_seconds, 4),
    }


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for_run(runs: Path, run: subprocess.Popen[str]) -> Path:
    while run.poll() is None:
        for folder in runs.iterdir():
            if (folder / "events.jsonl").is_file():
                return folder
        time.sleep(0.1)
    raise RuntimeError("the run ended before it began")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sites", type=int, default=200)
    options.add_argument("--rounds", type=int, default=1000)
    options.add_argument("--real-rounds", type=int, default=100, help="rounds of the real run")
    options.add_argument("--out", type=Path, default=RESULTS)
    chosen = options.parse_args()
    if MISSING:
        sys.exit(f"{MISSING}: this benchmark needs a real browser")
    place = Path(tempfile.mkdtemp(prefix="fedsift-live-"))
    try:
        found = {
            "page": page_of_a_long_run(chosen.sites, chosen.rounds, place),
            "beside_a_run": cost_beside_a_run(chosen.sites, chosen.real_rounds, place),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load": round(os.getloadavg()[0], 1),
        }
    finally:
        shutil.rmtree(place, ignore_errors=True)
    write_list(chosen.out, [found], ("machine",))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
