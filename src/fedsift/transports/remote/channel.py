"""The interface that a network transport implements: nodes to which a value is sent, and their answers.

A transport implements `Channel`; which node is which site, who is waited for, repeated sending and refusals are the
same for all of them (`site_directory`, `federation`, `engine`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_REPLY = 16 * 2**20
"""Bytes that any answer may have; one with models may have four times the request's besides."""


def most_bytes(asked: int) -> int:
    """How many bytes the answer to a request of so many bytes may have; a larger one is not decoded."""
    return LARGEST_REPLY + 4 * asked


@dataclass(frozen=True)
class ReceivedAnswer:
    """What came back for one message: a value, or why there is none."""

    value: Any = None
    failure: str = ""
    lost: bool = False
    """Whether asking again may help: the message or its node was lost, rather than that it failed."""


class Channel(ABC):
    """Carries values to nodes and brings back what they answer. It never waits: `collect` takes what has arrived."""

    @abstractmethod
    def nodes(self) -> Iterable[int]:
        """The nodes that are connected now."""

    @abstractmethod
    def send(self, messages: Sequence[tuple[int, Any]], lifetime: float = 0.0) -> list[str | None]:
        """Send each node its value; the id of each message, or None where it was not taken.

        lifetime: seconds after which nobody waits for an answer. The values of one call may share tensors.
        """

    @abstractmethod
    def collect(self, ids: set[str]) -> list[tuple[str, ReceivedAnswer]]:
        """Answers that have come to any of these messages, with the message's id."""

    def arriving(self, ids: Iterable[str]) -> set[str]:
        """Those of these messages whose answer is on its way and not here in full."""
        return set()

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody waits for the answers to these messages any more."""
        return
