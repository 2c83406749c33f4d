"""What a run comes to when nothing disturbs it: the measure of every accuracy and every second that is lost."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from benchmarks.faults.row import REFERENCES, keep, known, source
from benchmarks.faults.stand import NotSeen, Running, Stand, accuracy_of, mark_of
from benchmarks.faults.studies import study_of


@dataclass(frozen=True)
class Reference:
    accuracy: float | None
    """Of the last evaluation, in per cent; None where sites keep their models, and the coordinator has none to test."""
    seconds: float
    """From the command to its end."""
    mark: str
    machine: str = ""
    """Where it was measured: the last bits of a model are a processor's and a library's own."""
    source: str = ""
    """The program's state: another one's seconds are no measure."""


BY_SECRETS = frozenset({"feddpcont"})
"""Methods whose sites draw from secrets of their own, new in every consortium: only runs of one consortium compare."""


OF_SITES = frozenset({"rhfl"})
"""Methods whose models stay at their sites: runs compare by what the coordinator was told in every round."""


def this_machine() -> str:
    text = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    return f"{model or platform.machine()}, torch {torch.__version__}"


def app_of(stand: Stand, method: str) -> Path:
    return stand.app(study_of(method, stand.trial.out), method)


def reference(stand: Stand, method: str) -> Reference:
    """Measured once for this machine and this state of the program, on a machine as busy as it was then."""
    own: Reference | None = stand.references.get(method)
    if own is not None:
        return own
    found = known(REFERENCES).get(method)
    of_now = {"machine": this_machine(), "source": source()}
    if found is not None and of_now.items() <= found.items() and method not in BY_SECRETS:
        return Reference(**found)
    began = time.monotonic()
    run = stand.start(app_of(stand, method))
    code, accuracy = run.end(), accuracy_of(run.folder)
    if code or (accuracy is None and method not in OF_SITES):
        raise NotSeen(f"{method} did not end well though nothing disturbed it: {run.words[-500:]}")
    measured = Reference(accuracy, time.monotonic() - began, mark_of(run.folder), **of_now)
    stand.references[method] = measured
    keep(REFERENCES, method, asdict(measured))
    return measured


def lost(run: Running, began: float, usual: Reference) -> dict[str, float | None]:
    """Points and seconds that a disturbed run has lost."""
    accuracy = accuracy_of(run.folder)
    return {
        "accuracy_lost": None if accuracy is None or usual.accuracy is None else round(usual.accuracy - accuracy, 2),
        "seconds_lost": round(time.monotonic() - began - usual.seconds, 1),
    }


def sameness(run: Running, usual: Reference) -> str:
    same = mark_of(run.folder) == usual.mark
    return "model and rounds equal to the last bit" if same else "another model or other rounds"


def said_by(text: str, *words: str) -> str:
    """The first line of a log that has one of these words, without its clock."""
    for word in words:
        for line in text.splitlines():
            if word in line:
                return line.strip()[:300]
    return ""
