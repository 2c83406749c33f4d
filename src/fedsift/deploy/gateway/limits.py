"""The gateway's limits: rates for each key, refusals of unknown clients, and which messages a key may answer."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

SIGNATURE_LIFE = 305.0
"""Seconds for which Flower accepts a signed timestamp, for any route and body; here each is accepted once."""
CLOCK_AHEAD = 5.0
"""Seconds by which it may lie ahead of the clock of the one who checks it."""
MESSAGES_REMEMBERED = 256
"""For each key; the SuperLink takes one answer to each of its own messages, so few are under way at a site."""


@dataclass(frozen=True)
class KeyLimits:
    """Limits for each key, and for each address without a key."""

    request_bytes: int = 16 * 2**20
    """Of one request; Flower sends arrays in pieces of 5 MB."""
    message_bytes: int = 256 * 2**20
    """Of all pieces of one message: two models of ResNet-50."""
    answer_bytes: int = 16 * 2**20
    """Of one answer from the other side: again a piece, or an app."""
    bytes_a_second: float = 64 * 2**20
    """Of all that a key sends, after a burst of four of the largest messages; a faster client waits."""
    requests_a_second: float = 50.0
    burst: int = 400
    """Requests at once before the rate counts: a model arrives in many pieces."""
    refusals: int = 100
    """Requests of one address without a key of the roster that are examined and refused before the rate counts."""
    refusals_a_second: float = 1.0
    hold_seconds: float = 15.0
    """How long a poll without a message is kept open, so that a node need not sleep between polls; 0: not at all."""
    hold_every: float = 0.1
    """Seconds between two checks for its message, at first; they grow, since many sites wait long and each check
    costs."""
    hold_slowest: float = 0.5
    read_seconds: float = 120.0
    """How long a body may take to arrive."""


class RequestRefused(Exception):
    """A refused request: an HTTP status and a reason that its sender may read."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class TokenBucket:
    """A token bucket: a burst of `most`, then `a_second` tokens a second."""

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
    """What the gateway remembers of one key."""

    requests: TokenBucket
    volume: TokenBucket
    stamps: dict[str, float] = field(default_factory=dict)
    message_of: dict[str, str] = field(default_factory=dict)
    """The message whose pieces are pushed in a session of Flower's, by session."""
    bytes_of: dict[str, int] = field(default_factory=dict)
    """Bytes by message, over all its sessions; under the empty name, those of pieces that belong to none."""


class RateLimiter:
    """Limits the requests, bytes and message sizes of each authorized key.

    A site first announces a message (`push-messages`) and gets a session and the list of wanted pieces; then it pushes
    them (`push-object`). An announcement that the SuperLink does not accept opens no session, and a repeated one
    continues the message's count.
    """

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._known: dict[str, KeyState] = {}

    def check_request(self, mark: str, stamp: str) -> None:
        """Refuse a signature that was used before, and more requests or bytes than the rates allow."""
        now, state = self._clock(), self._of(mark)
        if state.requests.left(now) < 1:
            raise RequestRefused(429, "too many requests: slow down")
        state.requests.spend(1)
        if stamp in state.stamps:
            raise RequestRefused(401, "this signature was used before")
        state.stamps[stamp] = now
        if len(state.stamps) > 4096:
            fresh = {old: at for old, at in state.stamps.items() if now - at < 2 * SIGNATURE_LIFE}
            state.stamps = fresh
        if state.volume.left(now) <= 0:
            raise RequestRefused(429, "too many bytes in a short time: slow down")

    def count_bytes(self, mark: str, size: int) -> None:
        """Count the bytes of a body that has arrived."""
        self._of(mark).volume.spend(size)

    def check_piece(self, mark: str, session: str, size: int) -> None:
        """Count a piece; refused if its message becomes too large."""
        state = self._of(mark)
        self._add(state, state.message_of.get(session, ""), size)

    def open_session(self, mark: str, message: str, session: str, size: int) -> None:
        """Note a session that the SuperLink has opened for a message's pieces."""
        state = self._of(mark)
        state.message_of[session] = message
        state.bytes_of[message] = state.bytes_of.pop(message, 0) + size  # the latest stands last
        for oldest in [name for name in state.bytes_of if name][:-MESSAGES_REMEMBERED]:
            del state.bytes_of[oldest]
        known = state.bytes_of.keys()
        state.message_of = {each: of for each, of in state.message_of.items() if of in known}

    def _add(self, state: KeyState, message: str, size: int) -> None:
        total = state.bytes_of.get(message, 0) + size
        if total > self._limits.message_bytes:
            raise RequestRefused(413, f"a message may have {self._limits.message_bytes} bytes in all its pieces")
        state.bytes_of[message] = total

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


MAX_CLIENTS = 4096
"""Addresses that are counted separately; further ones share one count, so that none of them costs memory."""
ELSEWHERE = "other addresses"
AUTHORIZED = "authorized"
"""Key in a request's scope that says that a listed key signed it. A connection counts as unknown until one of its
requests has it."""
WRITTEN_EVERY = 60.0
"""Seconds for which ignored requests of one client are only counted."""


def client_of(address: str) -> str:
    """The client of an address: for IPv6 its network of 64 bits, since its addresses cost an attacker nothing."""
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
    """Ignored requests of one client."""

    since: float
    count: int = 0


class UnknownClients:
    """Counts the refusals of clients without a listed key. A listed key behind the same address is not affected."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._allowances: dict[str, TokenBucket] = {}
        self._ignored: dict[str, RefusalCount] = {}
        self._cleaned_at = clock()

    def is_over_limit(self, caller: str) -> bool:
        """Whether this client was refused so often that its next request is ignored."""
        return self._of(caller).left(self._clock()) < 1

    def count_refusal(self, caller: str) -> None:
        self._of(caller).spend(1)

    def should_log(self, caller: str) -> bool:
        """Count an ignored request; returns whether this one is to be logged."""
        if caller not in self._ignored and len(self._ignored) >= MAX_CLIENTS:
            caller = ELSEWHERE
        if caller in self._ignored:
            self._ignored[caller].count += 1
            return False
        self._ignored[caller] = RefusalCount(self._clock())
        return True

    def ignored_counts(self) -> Iterator[tuple[str, int]]:
        """Clients whose counting interval is over, the oldest first, with their number of ignored requests in it."""
        while self._ignored:
            caller, kept = next(iter(self._ignored.items()))
            if self._clock() - kept.since < WRITTEN_EVERY:
                return
            del self._ignored[caller]
            if kept.count:
                self._ignored[caller] = RefusalCount(self._clock())  # counted on, at the end of the queue
                yield caller, kept.count

    def _of(self, caller: str) -> TokenBucket:
        if caller not in self._allowances and len(self._allowances) >= MAX_CLIENTS:
            self._drop_recovered()
            if len(self._allowances) >= MAX_CLIENTS:
                caller = ELSEWHERE
        if caller not in self._allowances:
            most, rate = self._limits.refusals, self._limits.refusals_a_second
            self._allowances[caller] = TokenBucket(most, rate, self._clock())
        return self._allowances[caller]

    def _drop_recovered(self) -> None:
        """Forget clients whose bucket is full again; at most once a second, since it goes through all of them."""
        now = self._clock()
        if now - self._cleaned_at >= 1.0:
            self._cleaned_at = now
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
    """A message that the SuperLink issued to a key."""

    pieces: frozenset[str]
    announced: int = 0


@dataclass
class IssuedMessages:
    """The messages that the SuperLink issued to each key, the latest last; a key may answer and fetch these alone."""

    _of: dict[str, dict[str, IssuedMessage]] = field(default_factory=dict)

    def note(self, mark: str, content: bytes) -> None:
        """Remember the messages in the SuperLink's answer to this key's poll."""
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        answer = PullMessagesResponse.FromString(content)
        known = self._of.setdefault(mark, {})
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=False):
            known[message.metadata.message_id] = IssuedMessage(frozenset(_pieces(tree)))
        for oldest in list(known)[:-MESSAGES_REMEMBERED]:
            del known[oldest]

    def check(self, mark: str, path: str, body: bytes) -> None:
        """Refuse answers, confirmations and fetches of messages that were not issued to this key."""
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
        issued = self._of.get(mark, {}).get(about.reply_to_message_id)
        if issued is None:
            raise RequestRefused(403, "a site answers messages that were issued to it, and sends none of its own")
        if about.src_node_id != asked.node.node_id or about.dst_node_id != SUPERLINK_NODE_ID:
            raise RequestRefused(403, "a site answers in its own name, and only to the coordinator")
        if tree.object_id != about.message_id:
            raise RequestRefused(403, "the pieces that a site announces must be those of its answer")
        if sum(1 for _ in _pieces(tree)) > MOST_PIECES:
            raise RequestRefused(413, f"an answer may have {MOST_PIECES} pieces")
        issued.announced += 1
        if issued.announced > MOST_ANNOUNCEMENTS:
            raise RequestRefused(403, f"this answer was announced {MOST_ANNOUNCEMENTS} times already")

    def _check_confirmed(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        if ConfirmMessageReceivedRequest.FromString(body).message_object_id not in self._of.get(mark, {}):
            raise RequestRefused(403, "a site confirms messages that were issued to it")

    def _check_fetched(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import PullObjectRequest

        wanted = PullObjectRequest.FromString(body).object_id
        if not any(wanted in issued.pieces for issued in reversed(self._of.get(mark, {}).values())):
            raise RequestRefused(403, "a site fetches pieces of messages that were issued to it")


def _pieces(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node.object_id
        waiting.extend(node.children)
