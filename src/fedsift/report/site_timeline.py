"""What each site did in each round, as the live page showed it: a lane a site, from the run's events."""

from __future__ import annotations

from collections.abc import Mapping

from fedsift.drawing.svg import FULL, Markup, clipped, empty, figure, join, label, picture, tag
from fedsift.runs.events import read_events
from fedsift.runs.history import ABSENT, ANSWERED, REFUSED, RunHistory
from fedsift.runs.reading import RunData

LEFT, RIGHT, ROW, FOOT = 170, 12, 15, 20
SHAPES = {ANSWERED: ("answered", 5.0, 5.0), REFUSED: ("refused", 1.0, 13.0), ABSENT: ("absent", 11.0, 3.0)}
"""By what a site did: its style, and where the mark lies in the row. Shape tells as much as colour."""
WORDS = {ANSWERED: "answered", REFUSED: "set aside", ABSENT: "absent"}


def lanes(run: RunData) -> Markup | None:
    """A lane for each site of a run that told its events; None for an older one."""
    story = RunHistory()
    story.take(read_events(run.path))
    if not story.columns or not story.sites:
        return None
    rounds = max(story.planned, max(story.columns))
    width = FULL - LEFT - RIGHT
    pixels = min(rounds, width)
    step = width / pixels
    parts = []
    for place, site in enumerate(story.sites):
        y = place * ROW
        parts.append(label(LEFT - 8, y + 11, clipped(site, 24), "end"))
        parts.append(empty("rect", x=LEFT, y=y + 1, width=width, height=ROW - 2, class_="lane"))
        parts += _marks(_codes(story.columns, place, rounds, pixels), y, step)
    bottom = len(story.sites) * ROW
    parts += [
        label(LEFT, bottom + 14, "round 1"),
        label(FULL - RIGHT, bottom + 14, f"round {rounds}", "end"),
    ]
    drawn = tag("div", picture(FULL, bottom + FOOT, "What each site did in each round", *parts), class_="plot")
    keys = [tag("span", tag("i", class_=f"key {SHAPES[code][0]}"), words) for code, words in WORDS.items()]
    return join(
        [
            tag("p", *keys, class_="legend keys"),
            tag("div", figure(drawn, "Answers by round"), class_="wide"),
        ]
    )


def _codes(columns: Mapping[int, bytearray], place: int, rounds: int, pixels: int) -> list[int]:
    """What is shown at each pixel: of the rounds that share it, the most notable."""
    found = [0] * pixels
    for number, column in columns.items():
        at = min(pixels - 1, (number - 1) * pixels // rounds)
        if number > 0 and column[place] > found[at]:
            found[at] = column[place]
    return found


def _marks(codes: list[int], y: float, step: float) -> list[Markup]:
    """A rectangle for each stretch of equal codes."""
    marks, start = [], 0
    for end in range(1, len(codes) + 1):
        if end < len(codes) and codes[end] == codes[start]:
            continue
        if codes[start] in SHAPES:
            kind, top, height = SHAPES[codes[start]]
            marks.append(
                empty(
                    "rect",
                    x=LEFT + start * step,
                    y=y + top,
                    width=(end - start) * step,
                    height=height,
                    class_=f"did {kind}",
                )
            )
        start = end
    return marks
