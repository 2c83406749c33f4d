"""A run as the live page shows it: its events are read as they come, and all viewers get the same stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.numbers import plain, plural
from fedsift.core.text import short
from fedsift.live.actions import with_resumed
from fedsift.live.page import site_page
from fedsift.runs.events import FAILED, FINISHED, STOPPED, EventTail, LineTail
from fedsift.runs.folder import RunFolder
from fedsift.runs.history import RunHistory, found_words
from fedsift.runs.reading import INTERRUPTED, NEW, RUNNING, SILENT, STARTING, STOPPING, RunState, state_of

# What the live page says on top, and which numbers it keeps to itself
# ------------------------------------------------------------------------------

MIN_COUNT = 10
"""Counts below this are withheld across real sites, as in what leaves a site by default."""
HAS = {
    STOPPING: "is stopping",
    STOPPED: "was stopped",
    FAILED: "failed",
    INTERRUPTED: "was interrupted",
    SILENT: "has gone silent",
}


def headline(story: RunHistory, state: RunState) -> str:
    """One sentence: where the run stands and what it has found."""
    method = story.started.method if story.started else "The run"
    if state.word == NEW:
        return "This run has not begun"
    if state.word == STARTING:
        return f"{method} is starting: {state.why}" if not story.done else f"{method} is starting again"
    where = f"after {story.done} of {plural(story.planned, 'round')}" if story.planned else ""
    if state.word in HAS:
        return f"{method} {HAS[state.word]} {where}".rstrip()
    found = found_words(story.findings, len(story.sites)) if story.findings is not None else ""
    if state.word == FINISHED:
        return f"{method} is finished{f': {found}' if found else ''}"
    assert state.word == RUNNING
    at = story.asked.round if story.asked else min(story.done + 1, story.planned)
    base = f"{method} is in round {at} of {story.planned}"
    return f"{base}: {found}" if found else base


def withheld(numbers: dict[str, float]) -> dict[str, Any]:
    """Whole numbers from 1 up to the minimum count say only that they are small: they may count single patients."""
    return {
        name: f"fewer than {MIN_COUNT}" if float(value).is_integer() and 0 < abs(value) < MIN_COUNT else value
        for name, value in numbers.items()
    }


POLL = 0.25
"""Seconds between two looks at the file."""
LOOK_EVERY = 0.5
"""Seconds between two looks at the folder when no event came: has the run stopped without a word?"""
PART = 2_000_000
"""Bytes read in one go, so that a long history does not keep others waiting."""
KEEP_ALIVE = 15.0
SLOWEST = 50
"""Messages that wait for a reader; one that takes none for so long starts over."""


class RunView:
    """A run's history, shared by all viewers; it is read only while there are any."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.story = RunHistory()
        self.tail = EventTail(folder.path)
        self.state = RunState("new")
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._sent: tuple[Any, ...] = ()
        self._looked = 0.0
        self._damage = ""
        """Which file of the folder is not as the run wrote it, and what to do."""

    async def messages(self) -> AsyncIterator[str]:
        """First everything so far, then what is new, until the reader goes away; empty ones keep the line open."""
        await self._catch_up()
        self._damage = await asyncio.to_thread(damage_of, self.folder)
        queue: asyncio.Queue[str] = asyncio.Queue(SLOWEST)
        self._publish()  # those who are here get what is new; who comes now gets it with all the rest
        queue.put_nowait(self._message(self.story.snapshot(time.time())))
        self._listeners.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            while True:
                try:
                    yield await asyncio.wait_for(queue.get(), KEEP_ALIVE)
                except TimeoutError:
                    yield ""
                if queue not in self._listeners:
                    return  # it was too slow: its browser connects again and gets everything
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            await self._catch_up()
            self._publish()

    async def _catch_up(self) -> None:
        before = self.tail.offset
        while moments := self.tail.new(PART):
            if self.tail.offset < before:  # another run took this folder's name
                self.story = RunHistory()
            before = self.tail.offset
            self.story.take(moments)
            await asyncio.sleep(0)

    def _publish(self) -> None:
        now = time.time()
        if now - self._looked >= LOOK_EVERY or self.tail.offset != (self._sent or (-1,))[0]:
            self.state, self._looked = self._state(now), now
        present = (self.tail.offset, self.state, self.story.now(now))
        if present == self._sent:
            return
        self._sent = present
        message = self._message(self.story.news(now))
        for queue in list(self._listeners):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._listeners.discard(queue)

    def _state(self, now: float) -> RunState:
        story = self.story
        if self._damage:
            return RunState(FAILED, self._damage)
        return with_resumed(self.folder, state_of(self.folder, story.started, story.ended, story.last_at, now))

    def _message(self, view: dict[str, Any]) -> str:
        view |= {
            "state": self.state.word,
            "why": self.state.why,
            "active": self.state.active,
            "resumable": self.state.resumable and not self.folder.deployed,
            "deployed": self.folder.deployed,
            "headline": headline(self.story, self.state),
            "strange": self.tail.strange,
        }
        if self.folder.deployed:
            view["own"] = withheld(view["own"])
        try:
            return json.dumps(view, separators=(",", ":"), allow_nan=False)
        except ValueError:  # a foreign file may hold what is no number
            return json.dumps(plain(view), separators=(",", ":"))


def damage_of(folder: RunFolder) -> str:
    """What is wrong with the files of a run that no process is writing; "" when nothing is."""
    if folder.in_use:
        return ""
    try:
        folder.verify()
    except RunError as error:
        return str(error)
    return ""


# One site of a run
# ------------------------------------------------------------------------------


SITE_POLL = 0.5
SHOWN = 300
"""Lines of the log on the page; all are in the file."""
LANE = 2000
"""Answers in the lane."""


class SiteView:
    """Reads the list of all that left the site, and says what is new in it."""

    def __init__(self, name: str, egress: Path, audit: Path) -> None:
        """`egress`: the list. `audit`: where `fedsift flower audit` writes the site's private page."""
        self.name, self.egress, self._audit = name, egress, audit
        self.tail = LineTail(egress)
        self.lines: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.lane: deque[str] = deque(maxlen=LANE)
        self.answered = self.refused = self.bytes = self.strange = 0
        self.runs: list[str] = []

    def page(self, nonce: str) -> str:
        return site_page(self.name, nonce)

    def audit(self) -> bytes | None:
        """The site's audit page, None while there is none."""
        if not self._audit.is_file() or self._audit.is_symlink():
            return None
        return self._audit.read_bytes()

    def take(self) -> bool:
        """Read on; whether there was anything."""
        lines = self.tail.lines()
        for line in lines:
            try:
                self._note(json.loads(line))
            except (ValueError, TypeError, AttributeError):
                self.strange += 1
        return bool(lines)

    def _note(self, line: dict[str, Any]) -> None:
        size = line.get("bytes")
        if not isinstance(size, int) or isinstance(size, bool):
            raise ValueError("no line of ours")
        request = line.get("request")
        if request is None:  # the gateway's own note of what went through it: bytes on the wire
            entry = {"request": f"wire {short(line.get('route', ''), 80)}", "fields": [], "run": ""}
        else:
            refused = bool(line.get("refused"))
            self.answered += not refused
            self.refused += refused
            self.bytes += size
            self.lane.append("4" if refused else "1")
            run = short(line.get("run", ""), 80)
            if run and run not in self.runs:
                self.runs.append(run)
            fields = [short(item, 80) for item in line.get("fields", [])][:40]
            entry = {"request": short(request, 120), "fields": fields, "run": run}
            if refused:
                entry["refused"] = short(line["refused"], 300)
        self.lines.append(
            {"at": short(line.get("at", ""), 40), "bytes": size, "sha256": short(line.get("sha256", ""), 12)} | entry
        )

    def content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "answered": self.answered,
            "refused": self.refused,
            "bytes": self.bytes,
            "runs": self.runs[-20:],
            "lane": "".join(self.lane),
            "lines": list(self.lines),
            "audit": self._audit.is_file(),
            "strange": self.strange,
        }

    async def messages(self) -> AsyncIterator[str]:
        said, quiet = "", 0
        while True:
            self.take()
            now = json.dumps(self.content())
            if now != said:
                said, quiet = now, 0
                yield now
            elif quiet > 30:
                quiet = 0
                yield ""
            await asyncio.sleep(SITE_POLL)
            quiet += 1
