"""Events of a run: typed, one JSON line each in `events.jsonl`, written at once.

The file is a history: it is only ever appended to, also by a run that is resumed, and a line is whole before the next
one begins. Each ends with its checksum. Live pages, terminals and trackers read it and nothing of the engine; every
engine writes the same events. Rounds count from 1; 0 is the time before the first. Sites that answer together stand in
one event.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsift.core.files import line_with_check, read_checked_line
from fedsift.core.numbers import plain

EVENTS = "events.jsonl"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
"""How a run can end; one that was killed has no last event."""


@dataclass(frozen=True)
class Event:
    """Base of all events; the line adds `at`, the time in seconds since 1970, and the kind."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True)
class Started(Event):
    """The sites are known and the rounds begin, or go on."""

    kind: ClassVar[str] = "started"
    run: str
    method: str
    engine: str
    sites: tuple[str, ...]
    rounds: int
    """In all."""
    stages: tuple[dict[str, Any], ...] = ()
    """Name, rounds and `trains` of each, as in plan.json."""
    done: int = 0
    """Rounds that the last checkpoint holds. Events of later ones belong to what a kill undid."""
    host: str = ""
    process: int = 0


@dataclass(frozen=True)
class Asked(Event):
    """A request goes out."""

    kind: ClassVar[str] = "asked"
    round: int
    stage: str
    request: str
    sites: tuple[str, ...]
    deadline: float = 0.0
    """Seconds that sites have for it, where they are waited for."""


@dataclass(frozen=True)
class Answered(Event):
    """Answers came in; whether they can be used is judged when all have come."""

    kind: ClassVar[str] = "answered"
    round: int
    request: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Refused(Event):
    """A site's answer was set aside."""

    kind: ClassVar[str] = "refused"
    round: int
    request: str
    site: str
    reason: str


@dataclass(frozen=True)
class Absent(Event):
    """A site did not answer in time, or could not be reached."""

    kind: ClassVar[str] = "absent"
    round: int
    request: str
    site: str
    reason: str


@dataclass(frozen=True)
class RoundDone(Event):
    """A round is over. `values`: every number of its line in rounds.jsonl, and nothing longer."""

    kind: ClassVar[str] = "round"
    round: int
    of: int
    stage: str
    participants: int
    bytes_down: int
    bytes_up: int
    seconds: float
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Found(Event):
    """What the method found out about the sites: `protocol.findings.Findings` as its line. The latest holds."""

    kind: ClassVar[str] = "finding"
    round: int
    findings: dict[str, Any]


@dataclass(frozen=True)
class Warned(Event):
    """A warning for the user."""

    kind: ClassVar[str] = "warning"
    round: int
    text: str


@dataclass(frozen=True)
class Changed(Event):
    """A person changed settings of the run while it stood: what they were and what they are, by key; None is not
    set."""

    kind: ClassVar[str] = "changed"
    round: int
    """The last one that was judged by what they were."""
    before: dict[str, Any]
    now: dict[str, Any]


@dataclass(frozen=True)
class Checkpointed(Event):
    """What is up to here is safe: a run that stops now goes on after this round."""

    kind: ClassVar[str] = "checkpoint"
    round: int


@dataclass(frozen=True)
class Ended(Event):
    """How it ended: `finished`, `stopped` (by the user, to be resumed) or `failed`."""

    kind: ClassVar[str] = "ended"
    state: str
    error: str = ""
    exit_code: int = 0


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Started, Asked, Answered, Refused, Absent, RoundDone, Found, Warned, Changed, Checkpointed, Ended,
    )
}  # fmt: skip

Say = Callable[[Event], None]
"""Where events go."""


def no_listener(event: Event) -> None:
    """For a federation without a run folder."""


class EventLog:
    """Appends to a run's events. Each line is written and closed, so that readers on other machines see it too."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = folder / EVENTS
        self._clock = clock
        self._mended = False

    def __call__(self, event: Event) -> None:
        line = {"at": round(self._clock(), 3), "kind": event.kind, **plain(event)}
        text = line_with_check(line) + "\n"
        with self.path.open("ab") as file:
            if not self._mended:
                self._mended = True
                if is_cut(self.path):  # a kill within a line: the next one must not become part of it
                    text = "\n" + text
            file.write(text.encode())


def is_cut(path: Path) -> bool:
    """Whether a file of lines ends within a line."""
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"


@dataclass(frozen=True)
class StampedEvent:
    """An event with its time."""

    at: float
    event: Event


class LineTail:
    """Reads a file's lines on from where it stopped reading: what is new costs, what is old does not.

    A line without its end waits until it has one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def lines(self, most: int = 0) -> list[bytes]:
        """Whole lines since the last call, at most about `most` bytes of them (0: all)."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:  # another file by the same name
                    self.offset = 0
                if size == self.offset:
                    return []
                file.seek(self.offset)
                data = file.read(most or -1)
                if most and b"\n" not in data:
                    data += file.readline()
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        return [line for line in data[:end].split(b"\n") if line.strip()]


class EventTail(LineTail):
    """The events of a run. A line that is none of ours is counted in `strange` and passed over."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / EVENTS)
        self.strange = 0

    def new(self, most: int = 0) -> list[StampedEvent]:
        """Events since the last call, from at most about `most` bytes (0: all)."""
        found = [stamped(line) for line in self.lines(most)]
        self.strange += found.count(None)
        return [moment for moment in found if moment is not None]


def read_events(folder: Path) -> list[StampedEvent]:
    """All events of a run, as far as they can be read."""
    return EventTail(folder).new()


def stamped(line: bytes) -> StampedEvent | None:
    """An event's line; None for one that this version did not write, or that has changed since."""
    try:
        values = read_checked_line(line)
        cls = KINDS[values.pop("kind")]
        at = float(values.pop("at"))
        return StampedEvent(at, cls(**dict(_fields(cls, values))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _fields(cls: type[Event], values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The event's own fields, each of its declared kind; keys of a later version are passed over."""
    for entry in dataclasses.fields(cls):
        if entry.name not in values:
            continue  # its default, or the TypeError of a field that has none
        value: Any = values[entry.name]
        kind = str(entry.type)
        if isinstance(value, bool) or type(value) not in _ACCEPTED[kind]:
            raise TypeError(f"{entry.name} is {value!r}, not {kind}")
        if kind.startswith("tuple"):
            inner = str if "str, ..." in kind and "dict" not in kind else dict
            if not all(isinstance(item, inner) for item in value):
                raise TypeError(f"{entry.name} holds other things than {kind}")
            value = tuple(value)
        elif kind == "dict[str, float]":
            value = {key: number for key, number in value.items() if isinstance(number, int | float)}
        yield entry.name, value


_ACCEPTED: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "tuple[str, ...]": (list,),
    "tuple[dict[str, Any], ...]": (list,),
    "dict[str, Any]": (dict,),
    "dict[str, float]": (dict,),
}
