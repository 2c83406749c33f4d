"""What one key may do at a door: how often it comes, how much it brings, and how much of one message."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SIGNATURE_LIFE = 310.0
"""Seconds for which Flower takes a signed timestamp, for any route and body: within them each is let in once."""
MESSAGES_REMEMBERED = 256
"""Of one key; the SuperLink takes one answer to each of its own messages, so a site has few under way."""


@dataclass(frozen=True)
class KeyLimits:
    """What one key may do, and one address without any."""

    request_bytes: int = 16 * 2**20
    """Of one request; Flower sends arrays in pieces of 5 MB."""
    message_bytes: int = 256 * 2**20
    """Of all pieces of one message: two models of ResNet-50."""
    answer_bytes: int = 16 * 2**20
    """Of one answer from the other side: again a piece, or an app."""
    bytes_a_second: float = 64 * 2**20
    """Of all that a key sends, once it has sent four of the largest messages at once; who is faster waits."""
    requests_a_second: float = 50.0
    burst: int = 400
    """Requests at once before the rate counts: a model arrives in many pieces."""
    refusals: int = 100
    """Requests of one address, without a key of the roster, that are looked at and refused before the rate counts."""
    refusals_a_second: float = 1.0
    hold_seconds: float = 15.0
    """How long a poll without a message is kept open, so that a node need not sleep between polls; 0: not at all."""
    hold_every: float = 0.1
    """Seconds between two looks for its message, at first; they grow, for many sites wait long and each look costs."""
    hold_slowest: float = 0.5
    read_seconds: float = 120.0
    """How long a body may take to arrive."""


class RequestRefused(Exception):
    """A request that does not pass: a status and a sentence that its sender may read."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class TokenBucket:
    """So much at once, and so much a second from then on."""

    def __init__(self, most: float, a_second: float, now: float) -> None:
        self.most, self._a_second = most, a_second
        self._left, self._seen = most, now

    def left(self, now: float) -> float:
        self._left = min(self.most, self._left + (now - self._seen) * self._a_second)
        self._seen = now
        return self._left

    def spend(self, amount: float) -> None:
        self._left -= amount


@dataclass
class KeyState:
    """What the door remembers of a key."""

    requests: TokenBucket
    volume: TokenBucket
    stamps: dict[str, float] = field(default_factory=dict)
    message_of: dict[str, str] = field(default_factory=dict)
    """The message that a session of Flower's brings pieces of."""
    brought: dict[str, int] = field(default_factory=dict)
    """Bytes by message, over all its sessions; under no name, those of pieces that belong to none."""


class RateLimiter:
    """The keys that were let in, each within its limits.

    A site first announces a message (`push-messages`) and is told a session and which pieces are wanted; then it brings
    them (`push-object`). What is announced is only words: an announcement that the SuperLink does not take opens
    nothing, and one that is repeated goes on with the message's count.
    """

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._known: dict[str, KeyState] = {}

    def visit(self, mark: str, stamp: str) -> None:
        """Each signature once, and no more requests and bytes than the rates allow."""
        now, visitor = self._clock(), self._of(mark)
        if visitor.requests.left(now) < 1:
            raise RequestRefused(429, "too many requests: slow down")
        visitor.requests.spend(1)
        if stamp in visitor.stamps:
            raise RequestRefused(401, "this signature was used before")
        visitor.stamps[stamp] = now
        if len(visitor.stamps) > 4096:
            fresh = {old: at for old, at in visitor.stamps.items() if now - at < 2 * SIGNATURE_LIFE}
            visitor.stamps = fresh
        if visitor.volume.left(now) <= 0:
            raise RequestRefused(429, "too many bytes in a short time: slow down")

    def came(self, mark: str, size: int) -> None:
        """A body has arrived."""
        self._of(mark).volume.spend(size)

    def brings(self, mark: str, session: str, size: int) -> None:
        """A piece is about to pass; refused when its message becomes too large."""
        visitor = self._of(mark)
        self._add(visitor, visitor.message_of.get(session, ""), size)

    def announced(self, mark: str, message: str, session: str, size: int) -> None:
        """The SuperLink has taken an announcement and wants pieces."""
        visitor = self._of(mark)
        visitor.message_of[session] = message
        visitor.brought[message] = visitor.brought.pop(message, 0) + size  # the latest stands last
        for oldest in [name for name in visitor.brought if name][:-MESSAGES_REMEMBERED]:
            del visitor.brought[oldest]
        known = visitor.brought.keys()
        visitor.message_of = {each: of for each, of in visitor.message_of.items() if of in known}

    def _add(self, visitor: KeyState, message: str, size: int) -> None:
        total = visitor.brought.get(message, 0) + size
        if total > self._limits.message_bytes:
            raise RequestRefused(413, f"a message may have {self._limits.message_bytes} bytes in all its pieces")
        visitor.brought[message] = total

    def _of(self, mark: str) -> KeyState:
        if mark not in self._known:
            now, limits = self._clock(), self._limits
            self._known[mark] = KeyState(
                TokenBucket(limits.burst, limits.requests_a_second, now),
                TokenBucket(4 * limits.message_bytes, limits.bytes_a_second, now),
            )
        return self._known[mark]
