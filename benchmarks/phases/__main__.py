"""Where the seconds of a deployed phase go, beside a plain Flower app of the same model, in one run on one machine.

    python -m benchmarks.phases [--sites 3] [--rounds 6] [--turns 3] [--ours]

A turn is a run of the plain app and one of fedsift, each from its start; turns follow each other, so that a machine
that is busier for a while is so for both. Writes results/phases.csv, turn by turn; `python -m benchmarks.phases
--page` writes its table into docs/deployment.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.phases.memory import megabytes, proportional
from benchmarks.phases.page import SECTION, body, keep, read, table_of
from benchmarks.phases.plain import plain_phases

from fedsift.core.errors import RunError
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.trial import ConsortiumTrial, family, prepare_trial, try_consortium
from fedsift.runs.folder import WAITING, RunFolder
from fedsift.study.study import Study

PULL, PUSH = "POST /v1/fleet/pull-messages", "POST /v1/fleet/push-messages"


def study_of(sites: int, rounds: int) -> Study:
    return Study.from_table(
        {
            "name": "phases",
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": sites},
            "model": {"name": "mlp"},
            "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
            "method": {"name": "fedavg", "rounds": rounds},
            "federation": {"quorum": 1.0},
            "evaluate": {"every": rounds},
        }
    )


class Watch(threading.Thread):
    """When each round's question went out, and how much memory a site had at most."""

    def __init__(self, trial: ConsortiumTrial) -> None:
        super().__init__(daemon=True)
        self.trial, self.over = trial, threading.Event()
        self.asked: dict[int, float] = {}
        self.memory = self.shared = 0.0

    def run(self) -> None:
        looked = 0.0
        while not self.over.wait(0.05):
            try:
                now = RunFolder(self.trial.run).read_json(WAITING) or {}
            except (ValueError, RunError):
                continue
            what = str(now.get("what", ""))
            if "answers to" in what:
                self.asked.setdefault(int(what.split()[1]), float(now["since"]))
            if time.monotonic() - looked > 3.0 and len(self.trial.members) > 1:
                looked = time.monotonic()
                site = self.trial.members[1].process.pid
                pids = [site, *family(site)]
                self.memory = max(self.memory, megabytes(pids))
                self.shared = max(self.shared, proportional(pids))


def _stamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def breakdown(trial: ConsortiumTrial, asked: dict[int, float], ended: dict[int, float]) -> list[dict[str, float]]:
    """Seconds of each part for each round that another one follows, at the site that answered last."""
    access = _lines(trial.hub / "access.jsonl")
    rows = []
    for number in sorted(set(asked) & set(ended)):
        begin, end = asked[number], ended[number]
        each = []
        for site, file in trial.sites.items():
            pulls = [_stamp(l["at"]) for l in access if l["who"] == site and l["what"] == PULL and l["bytes_out"] > 100]
            pushes = [_stamp(l["at"]) for l in access if l["who"] == site and l["what"] == PUSH]
            answers = [l for l in _lines(read_head(file).egress) if l.get("request") == "Train"]
            answer = next((l for l in answers if begin <= _stamp(l["at"]) <= end), None)
            if answer is None:
                continue
            done = _stamp(answer["at"])
            pull = max((at for at in pulls if begin <= at <= done), default=None)
            push = min((at for at in pushes if done - 0.01 <= at <= end), default=None)
            if pull is None or push is None:
                continue
            each.append(
                {
                    "to the site's node": pull - begin,
                    "node to the site's process": done - answer["seconds"] - pull,
                    "the site computes": answer["seconds"],
                    "answer to the coordinator's gateway": push - done,
                    "gateway to the next round": end - push,
                }
            )
        if each:
            rows.append(max(each, key=lambda parts: sum(list(parts.values())[:4])))
    return rows


def fedsift_phases(folder: Path, sites: int, rounds: int) -> dict[str, Any]:
    trial = prepare_trial(study_of(sites, rounds), folder / "trial")
    watch = Watch(trial)
    watch.start()
    began = time.time()
    seconds: list[float] = []
    try_consortium(trial, lambda row: seconds.append(row["seconds"]), print)
    watch.over.set()
    asked = watch.asked
    ended = {number: asked[number + 1] for number in asked if number + 1 in asked}
    parts = breakdown(trial, asked, ended)
    return {
        "seconds": seconds,
        "first_question_after": min(asked.values()) - began,
        "parts": {name: statistics.median(row[name] for row in parts) for name in parts[0]},
        "site_megabytes": round(watch.shared),
        "site_megabytes_alone": round(watch.memory),
    }


def keep_alone(sites: int, rounds: int) -> None:
    """Measure without the plain app, and keep it beside what is there: one more look, at another load."""
    before = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="phases-") as place:
        ours = fedsift_phases(Path(place), sites, rounds)
    found = read()
    loads = {"load_before": before, "load_after": round(os.getloadavg()[0], 1)}
    found["alone"].append({"sites": sites, "rounds": rounds, **loads, **ours})
    keep(found)


def one_turn(sites: int, rounds: int) -> dict[str, Any]:
    """The plain app and fedsift, one after the other, with the load that each began at."""
    with tempfile.TemporaryDirectory(prefix="phases-") as place:
        before = os.getloadavg()[0]
        plain = plain_phases(Path(place), sites, rounds)
        between = os.getloadavg()[0]
        ours = fedsift_phases(Path(place), sites, rounds)
    loads = [round(load, 1) for load in (before, between, os.getloadavg()[0])]
    return {"loads": loads, "plain_flower": {"seconds": plain}, "fedsift": ours}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sites", type=int, default=3)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--ours", action="store_true", help="Only fedsift; the result is added to the others.")
    options.add_argument("--page", action="store_true", help="Only write the table into the page.")
    chosen = options.parse_args()
    if chosen.ours:
        keep_alone(chosen.sites, chosen.rounds)
    elif not chosen.page:
        found = read()
        found |= {"sites": chosen.sites, "rounds": chosen.rounds, "cores": os.cpu_count()}
        found["turns"] = []
        for _ in range(chosen.turns):
            found["turns"].append(one_turn(chosen.sites, chosen.rounds))
            keep(found)
        print(table_of(found))
    SECTION.write(body())


if __name__ == "__main__":
    main()
