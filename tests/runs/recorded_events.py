"""What a run's events say, without what may differ between engines: clocks, processes, last bits, order of arrival."""

from __future__ import annotations

from typing import Any

from fedsift.runs.events import Answered, Asked, Checkpointed, Found, RoundDone, Started, read_events
from fedsift.runs.folder import RunFolder


def recorded_events(folder: RunFolder) -> list[Any]:
    found: list[Any] = []
    for event in (stamped.event for stamped in read_events(folder.path)):
        if isinstance(event, Answered):
            last = found[-1]
            if last[0] == "answered":  # more answers to the same question
                found[-1] = ("answered", event.round, event.request, frozenset(last[3] | {*event.sites}))
            else:
                found.append(("answered", event.round, event.request, frozenset(event.sites)))
        elif isinstance(event, Asked):
            found.append(("asked", event.round, event.stage, event.request, event.sites))
        elif isinstance(event, RoundDone):
            sizes = (event.participants, event.bytes_down, event.bytes_up)
            found.append(("round", event.round, event.of, event.stage, *sizes, sorted(event.values)))
        elif isinstance(event, Started):
            found.append(("started", event.method, event.sites, event.rounds, event.stages, event.done))
        elif isinstance(event, Found):
            found.append(("finding", event.round, event.findings["noisy"], sorted(event.findings)))
        elif not isinstance(event, Checkpointed):
            found.append((event.kind, event))
        else:
            found.append(("checkpoint", event.round))
    return found
