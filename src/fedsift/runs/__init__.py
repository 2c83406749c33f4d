"""The run folder, written and read in one place: rounds, events, plan, summary, sites, checkpoint. No torch here."""

from fedsift.runs.checkpoint import Checkpoint
from fedsift.runs.events import EventLog, EventTail, Stamped, read_events
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import RunData, Span, labels_of, numbers_of, read_run, same_federation
from fedsift.runs.summary import CURVES, LAST, refusals, summarise
from fedsift.runs.units import duration, isolated, listed, named, number, percent, plural, size

__all__ = [
    "CURVES",
    "LAST",
    "Checkpoint",
    "EventLog",
    "EventTail",
    "RunData",
    "RunFolder",
    "Span",
    "Stamped",
    "duration",
    "isolated",
    "labels_of",
    "listed",
    "named",
    "number",
    "numbers_of",
    "percent",
    "plural",
    "read_events",
    "read_run",
    "refusals",
    "same_federation",
    "size",
    "summarise",
]
