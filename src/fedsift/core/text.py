"""Makes text from elsewhere safe for a terminal, a shell, a spreadsheet, HTML and UTF-8 files.

A site, a class or a file may be called anything: with escape sequences that repaint a terminal, marks that turn the
writing direction, line breaks that fake a line of output, or a `=` that a spreadsheet would compute.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; tab and line feed are below
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # direction marks, joiners, separators of lines
    "\ud800-\udfff]"  # halves of characters: bytes of a file name that are no UTF-8
)
ISOLATES = re.compile("([\u2068\u2069])")
BREAKS = re.compile("[\t\n]")
FORMULA = ("=", "+", "-", "@")
UNSAFE_IN_CELL = re.compile(f"{HIDDEN.pattern}|[\t\n]|;(?=\\s*[=+@＝＋＠-])")
WRITTEN = re.compile(r"\\u\{([0-9a-f]{4,6})\}")
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


def cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet computes and no terminal obeys; `uncell` gives it back exactly.

    Hidden characters, line breaks and tabs are written as `\\u{000a}`, and so is a `;` before what would compute, for
    many spreadsheets begin a cell there. What would compute at the cell's beginning gets an apostrophe in front;
    numbers stay as they are.
    """
    written = UNSAFE_IN_CELL.sub(lambda found: f"\\u{{{ord(found[0]):04x}}}", text.replace("\\u{", "\\u{005c}u{"))
    return f"'{written}" if _computes(written) else written


def uncell(text: str) -> str:
    """What `cell` was given."""
    if text.startswith("'") and _computes(text):
        text = text[1:]
    return WRITTEN.sub(lambda found: chr(int(found[1], 16)), text)


def _computes(text: str) -> bool:
    # apostrophes in front are looked through, so that a text that has one of its own comes back with it
    bare = unicodedata.normalize("NFKC", text.lstrip("'").lstrip()[:1])
    return bare.startswith(FORMULA) and not NUMBER.fullmatch(text)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV table as text: every name and every value that is text is made safe, lists are written as JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([_csv_value(value) for value in row] for row in rows)
    return out.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value)
    return cell(value) if isinstance(value, str) else value


def html_text(value: object) -> str:
    """Text for an HTML page or an attribute in it: marks are escaped and hidden characters are shown.

    The marks that isolate a name's writing direction (`units.isolated`) stay.
    """
    parts = ISOLATES.split(str(value))
    return html.escape("".join(p if ISOLATES.fullmatch(p) else visible(p, breaks=True) for p in parts), quote=True)


def readable(name: str) -> str:
    """A file name that can be written as UTF-8: bytes that are none become escapes, so names stay different."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
