"""Names that other people chose, made harmless: for a terminal, a shell, a spreadsheet, a file in UTF-8.

A site, a class or a file may be called anything: with escape sequences that repaint a terminal, marks that turn the
writing direction, line breaks that fake a line of output, or a `=` that a spreadsheet would compute.
"""

from __future__ import annotations

import re
import shlex

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; tab and line feed are below
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # direction marks, joiners, separators of lines
    "\ud800-\udfff]"  # halves of characters: bytes of a file name that are no UTF-8
)
BREAKS = re.compile("[\t\n]")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def visible(text: object, *, breaks: bool = False) -> str:
    """Text for a terminal: what would act instead of show is written as an escape, such as `\\x1b` or `\\u202e`.

    breaks: whether tabs and line feeds are the writer's own and stay.
    """
    shown = HIDDEN.sub(_escape, str(text))
    return shown if breaks else BREAKS.sub(_escape, shown)


def short(text: object, most: int = 1000) -> str:
    """Text from outside on one line and of a length that can be stored: what is over `most` characters is cut."""
    line = visible(" ".join(str(text)[: 2 * most].split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def argument(value: object) -> str:
    """A name or a path as one word of a command that a person may paste into a shell, and nothing more than a word."""
    text = str(value)
    if visible(text) == text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{visible(escaped)}'"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}
    return named.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def cell(value: str) -> str:
    """Text for a CSV cell: a leading apostrophe keeps a spreadsheet from computing it; numbers stay as they are.

    An apostrophe that was there already gets another, so that `uncell` gives back what was written.
    """
    shown = HIDDEN.sub(_escape, value)
    starts = shown.lstrip("'")
    acts = starts.startswith(FORMULA) or (shown != starts and starts == "")
    if acts and not NUMBER.fullmatch(shown):
        return f"'{shown}"
    return shown


def uncell(text: str) -> str:
    """What `cell` was given (hidden characters stay written as escapes)."""
    starts = text.lstrip("'")
    return text[1:] if text != starts and (starts.startswith(FORMULA) or starts == "") else text


def readable(name: str) -> str:
    """A file name that can be written as UTF-8: bytes that are none become escapes, so names stay different."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
