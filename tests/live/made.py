"""Run folders as a run leaves them, written by hand: no training, the clock in the test's hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsift.runs.events import Answered, Asked, Checkpointed, Ended, Event, EventLog, RoundDone, Started
from fedsift.runs.folder import RunFolder

SITES = ("a", "b", "c", "d")
STAGES = ({"name": "warm up", "rounds": 2, "trains": True}, {"name": "train", "rounds": 4, "trains": True})
ROUNDS = 6


class Made:
    """A run that is told event by event; each takes a second."""

    def __init__(self, parent: Path, name: str = "run", sites: tuple[str, ...] = SITES) -> None:
        self.folder = RunFolder.create(parent, name)
        self.folder.write_text("study.toml", 'seed = 1\n[method]\nname = "fedavg"\n')
        self.folder.write_json("plan.json", {"method": "FedAvg", "rounds": ROUNDS, "stages": STAGES})
        self.sites, self.now = sites, 1000.0
        self.log = EventLog(self.folder.path, clock=lambda: self.now)

    def say(self, event: Event, seconds: float = 1.0) -> None:
        self.now += seconds
        self.log(event)

    def start(self, done: int = 0, **more: Any) -> None:
        self.say(Started("run", "FedAvg", "inprocess", self.sites, ROUNDS, STAGES, done, **more))

    def stage(self, number: int) -> str:
        return "warm up" if number <= 2 else "train"

    def ask(self, number: int, seconds: float = 1.0) -> None:
        self.say(Asked(number, self.stage(number), "Train", self.sites, 60.0), seconds)

    def answer(self, number: int, *sites: str, seconds: float = 1.0) -> None:
        self.say(Answered(number, "Train", sites or self.sites), seconds)

    def done(self, number: int, **values: float) -> None:
        values = values or {"accuracy": number / 10}
        self.say(RoundDone(number, ROUNDS, self.stage(number), len(self.sites), 100, 50, 3.0, values))
        self.say(Checkpointed(number), 0.0)

    def round(self, number: int, **values: float) -> None:
        self.ask(number)
        self.answer(number)
        self.done(number, **values)

    def end(self, state: str = "finished", error: str = "") -> None:
        if state == "finished":
            self.folder.write_json("summary.json", {"rounds": ROUNDS, "accuracy": {"final": 0.6}})
        self.say(Ended(state, error, 0 if state == "finished" else 4))
