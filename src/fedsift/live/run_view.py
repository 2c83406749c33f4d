"""One run that somebody looks at: its events are read as they come, and everybody who looks is told the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fedsift.core.json_values import plain
from fedsift.core.units import plural
from fedsift.live.actions import with_resumed
from fedsift.runs.events import FAILED, FINISHED, STOPPED, EventTail
from fedsift.runs.folder import RunFolder
from fedsift.runs.history import RunHistory, found_words
from fedsift.runs.state import INTERRUPTED, NEW, RUNNING, SILENT, STARTING, STOPPING, RunState, state_of

# What the live page says on top, and which numbers it keeps to itself
# ------------------------------------------------------------------------------

FLOOR = 10
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
    """Whole numbers from 1 up to the floor say only that they are small: they may count single patients."""
    return {
        name: f"fewer than {FLOOR}" if float(value).is_integer() and 0 < abs(value) < FLOOR else value
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
    """A run's story, shared by all who look on; it is read only while somebody does."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.story = RunHistory()
        self.tail = EventTail(folder.path)
        self.state = RunState("new")
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._told: tuple[Any, ...] = ()
        self._looked = 0.0

    async def messages(self) -> AsyncIterator[str]:
        """First everything so far, then what is new, until the reader goes away; empty ones keep the line open."""
        await self._catch_up()
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
        if now - self._looked >= LOOK_EVERY or self.tail.offset != (self._told or (-1,))[0]:
            self.state, self._looked = self._state(now), now
        present = (self.tail.offset, self.state, self.story.now(now))
        if present == self._told:
            return
        self._told = present
        message = self._message(self.story.news(now))
        for queue in list(self._listeners):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._listeners.discard(queue)

    def _state(self, now: float) -> RunState:
        story = self.story
        return with_resumed(self.folder, state_of(self.folder, story.started, story.ended, story.last_at, now))

    def _message(self, told: dict[str, Any]) -> str:
        told |= {
            "state": self.state.word,
            "why": self.state.why,
            "active": self.state.active,
            "resumable": self.state.resumable and not self.folder.deployed,
            "deployed": self.folder.deployed,
            "headline": headline(self.story, self.state),
            "strange": self.tail.strange,
        }
        if self.folder.deployed:
            told["own"] = withheld(told["own"])
        try:
            return json.dumps(told, separators=(",", ":"), allow_nan=False)
        except ValueError:  # a foreign file may hold what is no number
            return json.dumps(plain(told), separators=(",", ":"))
