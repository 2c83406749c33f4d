"""`fedsift watch`: follows a run on a screen in a terminal, or as lines in a pipe or log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fedsift.core.numbers import duration, number, plural, size
from fedsift.core.text import argument, visible
from fedsift.runs.events import FAILED, STOPPED, EventTail
from fedsift.runs.folder import RunFolder
from fedsift.runs.history import (
    ABSENT,
    ANSWERED,
    IDLE,
    LATE,
    REFUSED,
    WORKING,
    RunHistory,
    found_words,
    left_words,
)
from fedsift.runs.reading import CURVES, INTERRUPTED, NEW, RunState, state_of

# A run in a terminal while it runs, from its folder alone: the live page's view in 60 to 200 columns
# ------------------------------------------------------------------------------

NARROWEST, WIDEST = 60, 200
NAME_WIDTH = 24
SPARK = 24
LOG_SHOWN = 6
WORDS = {ANSWERED: "answered", WORKING: "at work", LATE: "late", ABSENT: "absent", REFUSED: "refused"}
STYLES = {ANSWERED: "green", WORKING: "cyan", LATE: "yellow", ABSENT: "yellow", REFUSED: "red", IDLE: ""}
STATE_STYLES = {"running": "green", "finished": "green", "failed": "red", "interrupted": "red"}


@dataclass(frozen=True)
class TerminalSymbols:
    """The characters of a terminal: blocks where it has them."""

    sites: dict[int, str]
    full: str
    rest: str
    heights: str
    dot: str
    rule: str


BLOCKS = TerminalSymbols(
    {IDLE: "·", ANSWERED: "■", WORKING: "□", LATE: "◷", ABSENT: "–", REFUSED: "×"},
    "█", "░", "▁▂▃▄▅▆▇█", " · ", "›",
)  # fmt: skip
PLAIN = TerminalSymbols(
    {IDLE: ".", ANSWERED: "#", WORKING: "o", LATE: "!", ABSENT: "-", REFUSED: "x"}, "#", "-", "", " | ", ">"
)


def signs_of(console: Console) -> TerminalSymbols:
    encoding = (console.encoding or "").lower().replace("-", "")
    return BLOCKS if encoding.startswith("utf") else PLAIN


class RunScreen:
    """Reads on in a run's events and draws what they add up to."""

    def __init__(self, folder: Path, title: str = "run") -> None:
        """title: what to call the run until its events say it."""
        self.folder, self.title = RunFolder.open(folder), title
        self.story, self._tail = RunHistory(), EventTail(folder)
        self.state = RunState("new")
        self.at = 0.0
        self.look()

    def look(self, at: float | None = None) -> RunState:
        self.at = time.time() if at is None else at
        self.story.take(self._tail.new())
        story = self.story
        self.state = state_of(self.folder, story.started, story.ended, story.last_at, self.at)
        return self.state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        yield from self.lines(options.max_width, height, signs_of(console))

    def lines(self, width: int, height: int, signs: TerminalSymbols = BLOCKS) -> list[Text]:
        """The whole screen, no line wider than `width`; lanes and log take what room is left."""
        width = max(20, min(width, WIDEST))
        top = [*self.short(width, signs), *self._findings(width), self._traffic(signs)]
        room = max(0, height - len(top) - 2)
        log = [Text(f"{signs.rule} {visible(words)}", style="dim") for _, _, words in self.story.log[-LOG_SHOWN:]]
        log = log[len(log) - min(len(log), max(1, room // 3)) :]
        lanes = self._lanes(width, max(0, room - len(log)), signs)
        return [fitted(line, width) for line in [*top, *lanes, *log]]

    def short(self, width: int, signs: TerminalSymbols = BLOCKS) -> list[Text]:
        """Head, bar, stages, scores and sites, a line each: what a progress display shows."""
        parts = [self._head(width, signs), self._bar(width, signs), self._stages(width, signs)]
        parts += [line for line in (self._scores(width, signs), self._ask(width, signs)) if line is not None]
        return [fitted(line, width) for line in parts]

    # One line each -------------------------------------------------------------------------------------------------

    def _head(self, width: int, signs: TerminalSymbols) -> Text:
        story = self.story
        method = story.started.method if story.started else self.title
        left = Text(visible(method), style="bold")
        left.append(f"{signs.dot}{visible(self.folder.id)}{signs.dot}", style="not bold")
        left.append(self.state.word, style=f"bold {STATE_STYLES.get(self.state.word, 'yellow')}")
        if self.state.why:
            left.append(f": {visible(self.state.why)}", style="not bold")
        right = f"round {story.done} of {story.planned}" if story.planned else ""
        left.truncate(max(1, width - len(right) - 1), overflow="ellipsis")
        return Text.assemble(left, " " * max(1, width - left.cell_len - len(right)), right)

    def _bar(self, width: int, signs: TerminalSymbols) -> Text:
        story = self.story
        share = story.done / story.planned if story.planned else 0.0
        end = self.at if self.state.active else story.last_at
        spent = duration(max(0.0, end - story.begun_at)) if story.begun_at else ""
        left = left_words(story.seconds_left()) if self.state.active else ""
        words = signs.dot.join(part for part in (f"{100 * share:.0f} %", spent, left) if part)
        room = max(10, width - len(words) - 1)
        full = round(share * room)
        return Text.assemble((signs.full * full, "green"), (signs.rest * (room - full), "dim"), f" {words}")

    def _stages(self, width: int, signs: TerminalSymbols) -> Text:
        started = self.story.started
        stages = [] if started is None else list(started.stages)
        line, before = Text(), 0
        for place, stage in enumerate(stages):
            rounds = int(stage.get("rounds", 0))
            done = min(rounds, max(0, self.story.done - before))
            words = f"{visible(stage.get('name', ''))} {done}/{rounds}"
            current = self.story.done < before + rounds and (done > 0 or self.story.done >= before)
            if place:
                line.append(f" {signs.rule} ", style="dim")
            line.append(words, style="bold" if current and self.state.active else "" if done else "dim")
            before += rounds
            if current and line.cell_len > width - 4:  # the stage that runs is never the one that is cut
                place_of = f"stage {place + 1} of {len(stages)}: "
                return Text.assemble(place_of, (words, "bold"))
        return line

    def _scores(self, width: int, signs: TerminalSymbols) -> Text | None:
        line = Text()
        for name in CURVES:
            curve = self.story.curves.get(name)
            if not curve:
                continue
            words = f"{name.replace('_', ' ')} {100 * curve[-1][1]:.1f} %"
            spark = sparkline([value for _, value in curve], SPARK, signs.heights)
            part = f"{words} {spark}" if spark else words
            if line and line.cell_len + len(part) + 3 > width:
                break
            line.append(f"{'   ' if line else ''}{words} ")
            line.append(spark, style="cyan")
        return line if line else None

    def _ask(self, width: int, signs: TerminalSymbols) -> Text | None:
        """What is asked and who has answered, and a sign for each site where they fit."""
        story = self.story
        if not story.sites:
            return None
        codes = [int(figure) for figure in story.now(self.at)]
        if not self.state.active:
            return Text(plural(len(story.sites), "site"))
        counts = [(code, codes.count(code)) for code in (ANSWERED, WORKING, LATE, ABSENT, REFUSED)]
        words = ", ".join(f"{count} {WORDS[code]}" for code, count in counts if count)
        asked = f"{story.asked.request}: " if story.asked else ""
        line = Text(f"{plural(len(story.sites), 'site')}{signs.dot}{asked}{words or 'waiting'}  ")
        if line.cell_len + len(codes) <= width:
            for code in codes:
                line.append(signs.sites[code], style=STYLES[code])
        return line

    def _findings(self, width: int) -> list[Text]:
        found = self.story.findings
        if found is None:
            return []
        words = Text(visible(found_words(found, len(self.story.sites))), style="bold yellow" if found.noisy else "")
        lines = words.wrap(Console(width=width), width)
        return [*lines[:2]]

    def _traffic(self, signs: TerminalSymbols) -> Text:
        totals = self.story.totals
        parts = [
            f"{size(totals['bytes_up'])} from the sites",
            f"{size(totals['bytes_down'])} to them",
            f"{number(totals['refused'])} refused",
            f"{number(totals['absent'])} absent",
        ]
        return Text(signs.dot.join(parts), style="dim")

    # Lanes ---------------------------------------------------------------------------------------------------------

    def _lanes(self, width: int, room: int, signs: TerminalSymbols) -> list[Text]:
        """A line a site with its last rounds; where they are too many, those that one should look at come first."""
        story = self.story
        if not story.sites or room < 2:
            return []
        now = [int(figure) for figure in story.now(self.at)]
        places = list(range(len(story.sites)))
        rows = room - 1
        if len(places) > rows:
            places = sorted(sorted(places, key=lambda place: self._needs_no_attention(place, now))[: rows - 1])
        names = min(NAME_WIDTH, max(len(visible(story.sites[place])) for place in places))
        notes = {place: self._note(place) for place in places}
        longest = min(max((len(words) for words in notes.values()), default=0), width // 3)
        columns = sorted(story.columns)[-max(1, width - names - longest - 4) :]
        legend = "  ".join(f"{signs.sites[code]} {WORDS[code]}" for code in WORDS)
        lines = [Text(f"{'last rounds':<{names}}  {legend}", style="dim")]
        for place in places:
            name = visible(story.sites[place])
            name = name if len(name) <= names else f"{name[: names - 1]}…"
            line = Text(f"{name:<{names}}  ")
            for column in columns:
                current = story.asked is not None and column == story.asked.round
                code = now[place] if current else int(story.columns[column][place])
                line.append(signs.sites[code], style=STYLES[code])
            line.append(f"  {notes[place]}", style="yellow")
            lines.append(line)
        if len(places) < len(story.sites):
            lines.append(Text(f"and {plural(len(story.sites) - len(places), 'site')} more", style="dim"))
        return lines

    def _needs_no_attention(self, place: int, now: Sequence[int]) -> tuple[int, int, int]:
        """Small for a site that needs attention: in trouble now, looking noisy, in trouble before."""
        noisy = self.story.findings is not None and self.story.sites[place] in self.story.findings.noisy
        return (-(now[place] if now[place] > WORKING else 0), -int(noisy), -self.story.troubles.get(place, 0))

    def _note(self, place: int) -> str:
        site, found = self.story.sites[place], self.story.findings
        words = []
        if found is not None and site in found.noisy:
            chance = found.probability.get(site)
            words.append("looks noisy" if chance is None else f"looks noisy ({100 * chance:.0f} %)")
        if place in self.story.reasons:
            words.append(visible(self.story.reasons[place]))
        return "; ".join(words)


class ShortDisplay:
    """The few lines of a progress display; each time it is drawn it looks anew."""

    def __init__(self, folder: Path, title: str) -> None:
        self.view = RunScreen(folder, title)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.view.look()
        yield from self.view.short(min(options.max_width, WIDEST), signs_of(console))


def fitted(line: Text, width: int) -> Text:
    """The line on one row: what is too long ends in a sign of that."""
    line.no_wrap, line.overflow = True, "ellipsis"
    line.truncate(width, overflow="ellipsis")
    return line


def sparkline(values: Sequence[float], most: int, heights: str) -> str:
    """A curve in a few characters, each the last value of its stretch, between its lowest and highest."""
    if not heights or len(values) < 2:
        return ""
    stretch = -(-len(values) // most)
    shown = [values[min(start + stretch, len(values)) - 1] for start in range(0, len(values), stretch)]
    low, high = min(shown), max(shown)
    steps = len(heights) - 1
    return "".join(heights[round(steps * (v - low) / (high - low)) if high > low else 0] for v in shown)


TICK = 0.5
"""Seconds between two looks."""
SAID_EVERY = 10.0
"""Without a terminal, say where a run stands every so many seconds."""


def follow(view: RunScreen, console: Console, pause: Callable[[float], None] = time.sleep) -> None:
    """Until the run ends or the person stops looking."""
    try:
        if console.is_terminal:
            _on_a_screen(view, console, pause)
        else:
            _line_by_line(view, console, pause)
    except KeyboardInterrupt:
        console.print(Text(f"the run itself goes on; look again with: fedsift watch {argument(view.folder.path)}"))


def _on_a_screen(view: RunScreen, console: Console, pause: Callable[[float], None]) -> None:
    from rich.live import Live

    with Live(view, console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while view.look().active or view.state.word == "silent":
            live.refresh()
            pause(TICK)
        live.refresh()
    _closing_line(view, console)


def _line_by_line(view: RunScreen, console: Console, pause: Callable[[float], None]) -> None:
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
    _closing_line(view, console)


def standing(view: RunScreen) -> str:
    """Where a run stands, in one line."""
    story = view.story
    scores = [f"{name} {100 * curve[-1][1]:.1f} %" for name, curve in story.curves.items() if "loss" not in name]
    parts = [view.state.word, f"round {story.done} of {story.planned}" if story.planned else "", story.stage]
    return ", ".join(part for part in (*parts, *scores) if part)


def _closing_line(view: RunScreen, console: Console) -> None:
    if view.state.word in (STOPPED, FAILED, INTERRUPTED, NEW):
        if view.state.why:
            _say(console, view.state.why)
        _say(console, f"go on with: fedsift resume {argument(view.folder.path)}")
    elif (view.folder.path / "report.html").is_file():
        _say(console, f"report: {view.folder.path / 'report.html'}")


def _say(console: Console, words: str) -> None:
    console.print(visible(words), markup=False, highlight=False, soft_wrap=True)
