"""Terminal consoles that print text from elsewhere without interpreting its control codes."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedsift.core.text import HIDDEN, visible


class PlainConsole(Console):
    """A console that writes escape sequences and direction marks in names as escapes; its own colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and HIDDEN.search(segment.text):
                yield Segment(visible(segment.text, breaks=True), segment.style)
            else:
                yield segment
