"""What the live page says on top, and which numbers it keeps to itself."""

from __future__ import annotations

from typing import Any

from fedsift.runs.events import FAILED, FINISHED, STOPPED
from fedsift.runs.state import INTERRUPTED, NEW, RUNNING, SILENT, STARTING, STOPPING, State
from fedsift.runs.story import Story, found_words
from fedsift.runs.units import plural

FLOOR = 10
"""Counts below this are withheld across real sites, as in what leaves a site by default."""
HAS = {
    STOPPING: "is stopping",
    STOPPED: "was stopped",
    FAILED: "failed",
    INTERRUPTED: "was interrupted",
    SILENT: "has gone silent",
}


def headline(story: Story, state: State) -> str:
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
