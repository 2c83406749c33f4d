"""Following a deployed run by its folder: finished rounds as they come, and in between whom it waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsift.deploy.waiting import StatusLine
from fedsift.runs.folder import FAILURE, WAITING, RunFolder
from fedsift.runtime.loop import Listener

POLL = 0.25


class NewRounds:
    """The lines of rounds.jsonl that were not told yet; the file is read on from where it was read to."""

    def __init__(self, file: Path, told: int = 0) -> None:
        self._file, self._told, self._at = file, told, 0

    def new(self) -> list[dict[str, Any]]:
        try:
            if self._file.stat().st_size < self._at:
                self._at = 0  # a run that goes on has dropped the lines after its checkpoint
            with self._file.open("rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        fresh = [row for row in rows if row["round"] > self._told]
        self._told = max([self._told, *(row["round"] for row in fresh)])
        return fresh


def waiting_words(folder: RunFolder) -> str:
    """Whom the run's own program waits for; "" before it has said anything."""
    try:
        now = folder.read_json(WAITING)
    except ValueError:
        return ""
    if not now:
        return ""
    who = ", ".join(f"{site} ({words})" for site, words in list(now["waiting"].items())[:8])
    more = len(now["waiting"]) - 8
    tail = f" and {more} more" if more > 0 else ""
    here = f"; here: {', '.join(now['here'])}" if now.get("here") else ""
    others = "".join(f"; {name}: {why}" for name, why in now.get("refused", {}).items() if name not in now["waiting"])
    return f"{now['what']}, waiting for {who}{tail}{here}{others}" if who else str(now["what"])


def follow(
    folder: RunFolder,
    alive: Callable[[], bool],
    before: Callable[[], str],
    listen: Listener | None,
    status: StatusLine,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Tell of rounds and of waiting until the run has ended, one way or the other.

    `alive`: whether anybody works on it. `before`: where the start stands, while the program has not said anything.
    """
    header = folder.checkpointed()
    rounds = NewRounds(folder.rounds_file, 0 if header is None else header.rounds_done)
    while True:
        ended = not alive()
        for row in rounds.new():
            if listen is not None:
                listen(row)
        stopped = folder.asked_to_stop and not folder.in_use
        if ended or stopped or folder.finished or (folder.path / FAILURE).is_file():
            return
        status.now(waiting_words(folder) or before())
        rest(POLL)
