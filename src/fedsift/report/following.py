"""Following a run: a screen that changes in a terminal, lines as they come in a pipe or a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from fedsift.contract.plaintext import argument, visible
from fedsift.report.watching import Watch
from fedsift.runs.events import FAILED, STOPPED
from fedsift.runs.state import INTERRUPTED, NEW

TICK = 0.5
"""Seconds between two looks."""
SAID_EVERY = 10.0
"""Without a terminal, say where a run stands every so many seconds."""


def follow(view: Watch, console: Console, pause: Callable[[float], None] = time.sleep) -> None:
    """Until the run ends or the person stops looking."""
    try:
        if console.is_terminal:
            _on_a_screen(view, console, pause)
        else:
            _line_by_line(view, console, pause)
    except KeyboardInterrupt:
        console.print(
            Text(f"the run itself goes on; look again with: fedsift watch {argument(view.folder.path)}")
        )


def _on_a_screen(view: Watch, console: Console, pause: Callable[[float], None]) -> None:
    from rich.live import Live

    with Live(view, console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while view.look().active or view.state.word == "silent":
            live.refresh()
            pause(TICK)
        live.refresh()
    _farewell(view, console)


def _line_by_line(view: Watch, console: Console, pause: Callable[[float], None]) -> None:
    """What happened so far in a few lines, then each new thing as it comes."""
    said, last = 0, float("-inf")
    while True:
        state = view.look()
        log = view.story.log
        for _, _, words in log[said:]:
            _say(console, words)
        said = len(log)
        if view.at - last >= SAID_EVERY:
            last = view.at
            _say(console, standing(view))
        if not (state.active or state.word == "silent"):
            break
        pause(TICK)
    _say(console, standing(view))
    _farewell(view, console)


def standing(view: Watch) -> str:
    """Where a run stands, in one line."""
    story = view.story
    scores = [
        f"{name} {100 * curve[-1][1]:.1f} %" for name, curve in story.curves.items() if "loss" not in name
    ]
    parts = [view.state.word, f"round {story.done} of {story.planned}" if story.planned else "", story.stage]
    return ", ".join(part for part in (*parts, *scores) if part)


def _farewell(view: Watch, console: Console) -> None:
    if view.state.word in (STOPPED, FAILED, INTERRUPTED, NEW):
        if view.state.why:
            _say(console, view.state.why)
        _say(console, f"go on with: fedsift resume {argument(view.folder.path)}")
    elif (view.folder.path / "report.html").is_file():
        _say(console, f"report: {view.folder.path / 'report.html'}")


def _say(console: Console, words: str) -> None:
    console.print(visible(words), markup=False, highlight=False, soft_wrap=True)
