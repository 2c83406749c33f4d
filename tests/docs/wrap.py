"""Fills the prose of Markdown pages at one width: `python -m tests.docs.wrap PAGE ...` (or `make wrap`, for all).

Code, tables, headings, displayed equations and lines that end in a forced break stay as they are. A link, a code
span and a formula between dollar signs are never broken: Markdown formatters that do not know formulas corrupt them,
hence this file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 118
ITEM = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+)(?=\S)")
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
VERBATIM = re.compile(r"\s*(\||#|<|\$\$|>|!\[|\[[^\]]+\]:|-{3,}$|={3,}$)|    ")
WHOLE = re.compile(r"(`+)(?:.(?!\1))*.\1(?!`)|\$[^$\s](?:[^$]*[^$\s])?\$(?!\d)|!?\[[^\]]*\]\([^)]*\)")
OPENS_A_BLOCK = re.compile(r"([-+*>|#=].{0,5}|\d+[.)])$")


def filled(text: str, first: str, rest: str) -> list[str]:
    """Words in lines of at most WIDTH characters; no line starts with what would open a list or a heading."""
    words = [word.replace("\0", " ") for word in WHOLE.sub(lambda m: m[0].replace(" ", "\0"), text).split(" ")]
    lines: list[list[str]] = [[]]
    for word in filter(None, words):
        indent = first if len(lines) == 1 else rest
        if lines[-1] and len(indent + " ".join([*lines[-1], word])) > WIDTH:
            carried = [lines[-1].pop()] if OPENS_A_BLOCK.match(word) and len(lines[-1]) > 1 else []
            lines.append(carried)
        lines[-1].append(word)
    return [(rest if number else first) + " ".join(line) for number, line in enumerate(lines)]


def wrapped(lines: list[str]) -> Iterator[str]:
    place = 0
    while place < len(lines):
        line = lines[place]
        if fence := FENCE.match(line):
            end = next((k for k in range(place + 1, len(lines)) if lines[k].strip() == fence[1]), len(lines) - 1)
        elif line.strip().startswith("$$"):
            closed = line.strip()[2:].endswith("$$")
            end = place if closed else next(k for k in range(place + 1, len(lines)) if lines[k].rstrip().endswith("$$"))
        elif not line.strip() or (VERBATIM.match(line) and not ITEM.match(line)):
            end = place
        else:
            part = paragraph(lines, place)
            if any(text.endswith(("  ", "\\")) for text in part[:-1]):
                yield from part
            else:
                item = ITEM.match(line)
                first = item[1] if item else line[: len(line) - len(line.lstrip())]
                text = " ".join([line[len(first) :].strip(), *(text.strip() for text in part[1:])])
                yield from filled(text, first, " " * len(first))
            place += len(part)
            continue
        yield from lines[place : end + 1]
        place = end + 1


def paragraph(lines: list[str], place: int) -> list[str]:
    """A list item or paragraph: its line and those that go on with it."""
    part = [lines[place]]
    for line in lines[place + 1 :]:
        other = ITEM.match(line) or FENCE.match(line) or line.strip().startswith(("|", "#", "$$", "<", ">"))
        if not line.strip() or other:
            break
        part.append(line)
    return part


def main(pages: list[str]) -> None:
    for name in pages:
        page = Path(name)
        page.write_text("\n".join(wrapped(page.read_text("utf-8").splitlines())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
