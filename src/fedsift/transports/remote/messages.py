"""An encoded message between coordinator and site: a JSON tree, the bytes of all tensors, and a few named texts.

The tensors of a request are the same for every site, the tree is not (it names the site), so a transport can send a
model to a hundred sites once. This module imports neither torch nor a transport: a process that only passes messages
on needs no more than this. `encoding` turns values into these messages and back.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

MOST_CHARACTERS = 2**20
"""Characters of a message's tree, and of its tensors' list. A tree has about 2,000 and 50 for each tensor, the list
some 130 for each: twenty models of the 320 tensors of a ResNet-50 fit."""
MOST_PARTS = 100_000
"""Brackets and commas in a text: each may become an object of a hundred bytes. A list has 8 for each tensor."""
DEEPEST = 64
"""Brackets in brackets; the deepest request of the methods has 18."""
MOST_NOTE_CHARACTERS = 4000
"""Characters of all texts beside a tree: a network's name, a session, a federation."""


@dataclass(frozen=True)
class EncodedMessage:
    """A value as text and bytes, see `encoding.encode`."""

    tree: str
    tensors: bytes = b""
    note: dict[str, str] = field(default_factory=dict)
    """Texts beside the value, by name."""

    def with_note(self, **texts: str) -> EncodedMessage:
        return replace(self, note={**self.note, **texts})


def checked_text(value: object, most: int) -> str:
    """The value, if it is a text of at most so many characters; anything but a text would grow when made one."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} stands where a text belongs")
    if len(value) > most:
        raise ValueError(f"a text has {len(value)} characters, {most} are the most")
    return value


_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parsed(text: str) -> Any:
    """What a JSON text says. One of too many parts, or too deep, raises ValueError before anything is built of it."""
    bare = _QUOTED.sub("", checked_text(text, MOST_CHARACTERS))
    parts = sum(bare.count(mark) for mark in "[{,")
    if parts > MOST_PARTS:
        raise ValueError(f"a text has {parts} parts, {MOST_PARTS} are the most")
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"a text is nested more than {DEEPEST} levels deep")
    return json.loads(text)
