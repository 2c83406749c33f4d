"""What one key may do at a door: how often it comes, how much it brings, and how much of one message."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

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


# Clients without a key of the roster
# ------------------------------------------------------------------------------


MOST_CALLERS = 4096
"""Addresses told apart; those beyond share one place, so that none of them costs memory."""
ELSEWHERE = "other addresses"
LET_IN = "let in"
"""In a request's scope: that a listed key signed it. Until one of its requests has that, a line is a stranger's,
however many were answered with a refusal."""
WRITTEN_EVERY = 60.0
"""Seconds for which the requests of a caller who is turned away are only counted."""


def client_of(address: str) -> str:
    """The one behind an address: for IPv6 its network of 64 bits, within which addresses cost nothing."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


@dataclass
class RefusalCount:
    """Requests of one caller that were not looked at."""

    since: float
    count: int = 0


class UnknownClients:
    """Counts refusals of those who named no listed key. A listed one behind the same address is let in all the same."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._allowances: dict[str, TokenBucket] = {}
        self._turned_away: dict[str, RefusalCount] = {}
        self._looked_through = clock()

    def spent(self, caller: str) -> bool:
        """Whether this caller was refused so often that the next request is not looked at."""
        return self._of(caller).left(self._clock()) < 1

    def refused(self, caller: str) -> None:
        self._of(caller).spend(1)

    def first_of_many(self, caller: str) -> bool:
        """Note a request that was not looked at; whether it is the one that is written down."""
        if caller not in self._turned_away and len(self._turned_away) >= MOST_CALLERS:
            caller = ELSEWHERE
        if caller in self._turned_away:
            self._turned_away[caller].count += 1
            return False
        self._turned_away[caller] = RefusalCount(self._clock())
        return True

    def counted(self) -> Iterator[tuple[str, int]]:
        """Callers whose time of being counted is over, the longest ago first, with how many more came in it."""
        while self._turned_away:
            caller, kept = next(iter(self._turned_away.items()))
            if self._clock() - kept.since < WRITTEN_EVERY:
                return
            del self._turned_away[caller]
            if kept.count:
                self._turned_away[caller] = RefusalCount(self._clock())  # goes on being counted, at the end of the row
                yield caller, kept.count

    def _of(self, caller: str) -> TokenBucket:
        if caller not in self._allowances and len(self._allowances) >= MOST_CALLERS:
            self._drop_recovered()
            if len(self._allowances) >= MOST_CALLERS:
                caller = ELSEWHERE
        if caller not in self._allowances:
            most, rate = self._limits.refusals, self._limits.refusals_a_second
            self._allowances[caller] = TokenBucket(most, rate, self._clock())
        return self._allowances[caller]

    def _drop_recovered(self) -> None:
        """Forget those who have earned all back, no more than once a second: that looks at everyone."""
        now = self._clock()
        if now - self._looked_through >= 1.0:
            self._looked_through = now
            self._allowances = {name: each for name, each in self._allowances.items() if each.left(now) < each.most}


# Messages issued to a key
# ------------------------------------------------------------------------------


MOST_PIECES = 2000
"""Of one answer: the largest message has some fifty pieces of 5 MB, and six more that hold them together."""
LARGEST_ANNOUNCEMENT = 2**20
"""Bytes of an announcement, which names pieces and holds none: each takes some seventy."""
MOST_ANNOUNCEMENTS = 50
"""Of the answer to one message: a node that does not hear of its success announces it again."""
PULL_OBJECT, CONFIRM = "/v1/fleet/pull-object", "/v1/fleet/confirm-message-received"
PUSH = "/v1/fleet/push-messages"


@dataclass
class IssuedMessage:
    """A message that was handed out."""

    pieces: frozenset[str]
    announced: int = 0


@dataclass
class IssuedMessages:
    """Messages by key, the latest last."""

    _of: dict[str, dict[str, IssuedMessage]] = field(default_factory=dict)

    def note(self, mark: str, content: bytes) -> None:
        """Remember what the SuperLink's answer to a poll hands to this key."""
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        answer = PullMessagesResponse.FromString(content)
        known = self._of.setdefault(mark, {})
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=False):
            known[message.metadata.message_id] = IssuedMessage(frozenset(_pieces(tree)))
        for oldest in list(known)[:-MESSAGES_REMEMBERED]:
            del known[oldest]

    def check(self, mark: str, path: str, body: bytes) -> None:
        """Refuse what this key has no business with; other calls than these are Flower's to judge."""
        try:
            if path == PUSH:
                self._check_answer(mark, body)
            elif path == CONFIRM:
                self._check_confirmed(mark, body)
            elif path == PULL_OBJECT:
                self._check_fetched(mark, body)
        except DecodeError:
            raise RequestRefused(400, "this is none of Flower's requests") from None

    def _check_answer(self, mark: str, body: bytes) -> None:
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        if len(body) > LARGEST_ANNOUNCEMENT:
            raise RequestRefused(413, f"an announcement may have {LARGEST_ANNOUNCEMENT} bytes")
        asked = PushMessagesRequest.FromString(body)
        if len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
            raise RequestRefused(403, "a site pushes one answer at a time, with one list of its pieces")
        about, tree = asked.messages_list[0].metadata, asked.message_object_trees[0]
        parcel = self._of.get(mark, {}).get(about.reply_to_message_id)
        if parcel is None:
            raise RequestRefused(403, "a site answers messages that it was handed, and sends none of its own")
        if about.src_node_id != asked.node.node_id or about.dst_node_id != SUPERLINK_NODE_ID:
            raise RequestRefused(403, "a site answers in its own name, and the coordinator alone")
        if tree.object_id != about.message_id:
            raise RequestRefused(403, "the pieces that a site announces must be those of its answer")
        if sum(1 for _ in _pieces(tree)) > MOST_PIECES:
            raise RequestRefused(413, f"an answer may have {MOST_PIECES} pieces")
        parcel.announced += 1
        if parcel.announced > MOST_ANNOUNCEMENTS:
            raise RequestRefused(403, f"this answer was announced {MOST_ANNOUNCEMENTS} times already")

    def _check_confirmed(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        if ConfirmMessageReceivedRequest.FromString(body).message_object_id not in self._of.get(mark, {}):
            raise RequestRefused(403, "a site confirms messages that it was handed")

    def _check_fetched(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import PullObjectRequest

        wanted = PullObjectRequest.FromString(body).object_id
        if not any(wanted in parcel.pieces for parcel in reversed(self._of.get(mark, {}).values())):
            raise RequestRefused(403, "a site fetches pieces of messages that it was handed")


def _pieces(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node.object_id
        waiting.extend(node.children)
