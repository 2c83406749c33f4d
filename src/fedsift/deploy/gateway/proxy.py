"""The door: the only way from the network to the coordinator's SuperLink, and from a site's SuperNode to the network.

Flower serves its control routes on the same port as the routes that sites need: whoever reaches that port can start
code of their own. So the SuperLink listens on loopback alone, and this program stands in front of it. It lets the
twelve fleet routes through and nothing else, for keys of the roster, within limits of size and rate, and writes down
who came. The same program runs at a site, between its SuperNode and the network: there it refuses apps that the site
has not pinned, and counts what leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedsift.core.errors import ConfigError
from fedsift.core.files import append_private
from fedsift.deploy.coordinator.roster import NodeKeys, Roster, fingerprint
from fedsift.deploy.gateway.access_log import AccessLog, RepeatedWarning, ThrottledLog, now
from fedsift.deploy.gateway.limits import (
    LET_IN,
    MOST_CALLERS,
    PUSH,
    SIGNATURE_LIFE,
    IssuedMessages,
    KeyLimits,
    RateLimiter,
    RequestRefused,
    UnknownClients,
    client_of,
)

# What a door reads in the bodies of Flower's calls; Flower itself is imported when the first one
# comes
# ------------------------------------------------------------------------------


def pinned(content: bytes, pins: frozenset[str]) -> bytes:
    """The answer that brings an app, written anew from what was checked."""
    from flwr.proto.fab_pb2 import GetFabResponse

    app = GetFabResponse()
    app.ParseFromString(content)
    found = hashlib.sha256(app.fab.content).hexdigest()
    if found not in pins:
        raise RequestRefused(
            403,
            f"the app sha256:{found} is not pinned in this site's site.toml, so it does not run here. If you read "
            f"and trust it: fedsift flower pin sha256:{found} site.toml",
        )
    return bytes(app.SerializeToString())


def session_of(body: bytes) -> str:
    """The session that a piece says it belongs to; none for what is no piece, which the other side will say."""
    from flwr.proto.message_pb2 import PushObjectRequest

    try:
        return str(PushObjectRequest.FromString(body).session_id)
    except DecodeError:
        return ""


def node_id(content: bytes) -> int:
    from flwr.proto.fleet_pb2 import ActivateNodeResponse

    return int(ActivateNodeResponse.FromString(content).node_id)


def holds_message(content: bytes) -> bool:
    """Whether an answer to a poll brings a message."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    answer = PullMessagesResponse()
    answer.ParseFromString(content)
    return len(answer.messages_list) > 0


# Whose key signed a request, by the three headers that Flower's nodes send with every one
# ------------------------------------------------------------------------------

KEY = "flwr-public-key"


@dataclass(frozen=True)
class VerifiedSignature:
    """A key that signed a moment."""

    public: bytes
    mark: str
    """The key's fingerprint."""
    stamp: str


def signed_by(headers: Mapping[str, str]) -> VerifiedSignature:
    """The key whose signature a request bears, made lately; refused in words otherwise."""
    try:
        public = b64decode(headers[KEY], validate=True)
        signature = b64decode(headers["flwr-signature"], validate=True)
        stamp = headers["flwr-timestamp"]
        age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        key = serialization.load_pem_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("no key of an elliptic curve")
        key.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        mark = fingerprint(public)
    except (KeyError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, ConfigError):
        raise RequestRefused(401, "this request is not signed with a site's key") from None
    if abs(age) > SIGNATURE_LIFE:
        raise RequestRefused(401, f"this request was signed {age:.0f} s ago: set the clocks of both machines right")
    return VerifiedSignature(public, mark, stamp)


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat",
        "pull-messages", "push-messages", "get-run", "get-fab", "push-object", "pull-object",
        "confirm-message-received",
    )
)  # fmt: skip
"""What a node needs of Flower 1.41; control, runtime and documentation routes are not among them."""
PULL, FAB = "/v1/fleet/pull-messages", "/v1/fleet/get-fab"
OBJECT, ACTIVATE = "/v1/fleet/push-object", "/v1/fleet/activate-node"
REGISTER = "/v1/control/register-node"
"""The one control call that a door makes itself, on its own side, for a key that it found on the roster."""
PASSED_ON = ("content-type", "accept", "flwr-public-key", "flwr-signature", "flwr-timestamp")
"""Headers that reach the other side; nothing else does, and none of them is ever logged."""
PLAIN = "identity"
"""The one content encoding: a packed body can be a thousand times larger than its bytes."""
FOR_A_NODE = {408: 503, 413: 403, 415: 403, 429: 503, 500: 503}
"""Answers that end a SuperNode's loop for good, and what it takes instead: 403 drops one message, 503 tries again."""
PIECE = 2**18
"""Bytes of a body that are handed on at one go."""
STILL_THERE = 412
"""Flower's answer to a listed key whose node has not been silent for a minute yet: to it, the node still runs."""


class TooManyRefusals(RequestRefused):
    """The answer to a caller who was refused too often."""

    def __init__(self) -> None:
        super().__init__(429, "too many requests from this address without a key of the roster: slow down")


@dataclass
class Gateway:
    """An ASGI program that forwards to one upstream address."""

    upstream: str
    """Base address of the other side, e.g. https://127.0.0.1:9092."""
    client: httpx.AsyncClient
    roster: Roster | None = None
    """Keys that may come in; None at a site, where only the own SuperNode reaches the door."""
    pins: Callable[[], frozenset[str]] | None = None
    """SHA-256 of the apps that may come through, as they stand now; None at the coordinator."""
    log: Path | None = None
    egress: Path | None = None
    """At a site: one line for every body that leaves."""
    nodes: NodeKeys | None = None
    """At the coordinator: which key each node has; with it, listed keys are made known to the SuperLink."""
    explain: Callable[[BaseException], str] = lambda error: f"the other side does not answer ({type(error).__name__})"
    """Words for a line that does not stand."""
    aloud: Callable[[str], None] = lambda words: None
    """Tells the operator of a refusal: once for each reason and caller, and of a flood in one line."""
    joined: bool = False
    """Whether a node was activated through this door."""
    came: Callable[[int], None] = lambda node: None
    """Told the number of a node that was activated."""
    too_early: bool = False
    """Whether a node was not, because the SuperLink takes its last life to be under way still."""
    closing: bool = False
    """Set when the door is about to close: polls are let go."""
    limits: KeyLimits = field(default_factory=KeyLimits)

    def __post_init__(self) -> None:
        self.visitors, self.callers = RateLimiter(self.limits), UnknownClients(self.limits)
        self.access, self.telling = AccessLog(self.log), ThrottledLog(self.aloud)
        self._reminder, self._handed = RepeatedWarning(), IssuedMessages()
        self._known: set[bytes] = set()
        """Keys that were let in, each with where from."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        started, who = time.perf_counter(), ""
        caller, no_listener, judge = client_of(_address(scope)), False, "beyond the door"
        body, status, answer, kind = b"", 500, b"the door failed", "text/plain"
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_caller(caller, headers)
            self._check_route(scope)
            signed = signed_by(headers)
            who = self._name_of(signed.mark)
            scope[LET_IN] = True
            self._known.add(_key_header(caller, headers))
            self.visitors.visit(signed.mark, signed.stamp)
            body = await self._read(headers, receive, scope["path"], signed.mark)
            status, answer, kind = await self._forward(scope["path"], headers, body, signed)
        except RequestRefused as reason:
            status, answer, judge = reason.status, str(reason).encode(), "at the door"
            no_listener = isinstance(reason, TooManyRefusals)
            if not who and not no_listener:
                self._known.discard(_key_header(caller, headers))
                self.callers.refused(caller)
        except (httpx.HTTPError, OSError) as error:
            status, answer = 502, self.explain(error).encode()
        except DecodeError:
            status, answer = 502, b"the other side's answer is none of Flower's"
        except asyncio.CancelledError:  # the server gives up on what is still open when it ends
            status, answer = 503, b"the door closes; come again"
        if not no_listener or self.callers.first_of_many(caller):
            self._note(scope, who, len(body), status, answer, time.perf_counter() - started, judge)
        if self.egress is not None:
            status = FOR_A_NODE.get(status, status)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": answer})

    def tick(self) -> None:
        """What has to be told or written down though nobody comes; called about once a second."""
        for caller, count in self.callers.counted():
            line = {"from": caller, "who": "", "what": "not looked at", "bytes_in": 0, "bytes_out": 0}
            self.access.write(**line, status=429, seconds=0.0, count=count, reason=str(TooManyRefusals()))
        self.telling.sum_up()
        if self.roster is not None:
            self.roster.refresh()
            self._report_roster_problem(self.roster)

    def _report_roster_problem(self, roster: Roster) -> None:
        """Say that the roster as it stands now is not in force, or that it is again."""
        if not self._reminder.is_due(roster.trouble):
            return
        words = (
            f"{roster.trouble}. The roster as it was read last stays in force, so whoever was revoked since is still "
            "let in: correct the file (true and false are written small)"
            if roster.trouble
            else f"{roster.path} can be read again and is in force"
        )
        self.aloud(words)
        line = {"from": "", "who": "", "what": "the roster", "bytes_in": 0, "bytes_out": 0}
        self.access.write(**line, status=0, seconds=0.0, reason=words)

    # Who and what may pass ------------------------------------------------------------------------------------------

    def _check_route(self, scope: Scope) -> None:
        if scope["method"] != "POST" or scope["path"] not in FLEET or scope.get("query_string"):
            raise RequestRefused(404, "this door leads to the fleet routes of a fedsift federation and nowhere else")

    def _check_caller(self, caller: str, headers: dict[str, str]) -> None:
        """Who was refused too often is not looked at, unless with a key that was let in from there before."""
        if self.callers.spent(caller) and _key_header(caller, headers) not in self._known:
            raise TooManyRefusals
        if len(self._known) > MOST_CALLERS:
            self._known.clear()

    def _name_of(self, mark: str) -> str:
        if self.roster is None:
            return "this site's node"
        entry = self.roster.of(mark)
        self._report_roster_problem(self.roster)
        if entry is None:
            raise RequestRefused(403, f"the key {mark[:23]}... is not on this federation's roster")
        if entry.revoked:
            raise RequestRefused(403, f"the key of site '{entry.name}' was revoked")
        return entry.name

    async def _read(self, headers: dict[str, str], receive: Receive, path: str, mark: str) -> bytes:
        """The body, refused as soon as it is too long or too slow; pieces of one message are counted together."""
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                body = await self._body(headers, receive)
        except TimeoutError:
            raise RequestRefused(408, f"this request did not arrive within {self.limits.read_seconds:.0f} s") from None
        self.visitors.came(mark, len(body))
        if path == OBJECT:
            self.visitors.brings(mark, session_of(body), len(body))
        return body

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        most = self.limits.request_bytes
        packed = headers.get("content-encoding", PLAIN)
        if packed.strip().lower() != PLAIN:
            raise RequestRefused(415, f"a request must not be packed, this one is ({packed[:20]})")
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > most:
            raise RequestRefused(413, f"a request may have {most} bytes, this one says {declared[:20]}")
        parts, size, more = [], 0, True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise RequestRefused(400, "the sender went away")
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise RequestRefused(413, f"a request may have {most} bytes")
            more = event.get("more_body", False)
        return b"".join(parts)

    # The other side -------------------------------------------------------------------------------------------------

    async def _forward(
        self, path: str, headers: dict[str, str], body: bytes, signed: VerifiedSignature
    ) -> tuple[int, bytes, str]:
        passed = {name: headers[name] for name in PASSED_ON if name in headers}
        if path == ACTIVATE and self.nodes is not None:
            await self._make_known(signed.public)
        if self.roster is not None:
            self._handed.check(signed.mark, path, body)
        self._note_egress(path, body)
        until = time.monotonic() + (self.limits.hold_seconds if path == PULL else 0.0)
        pause = self.limits.hold_every
        while True:
            status, content, kind = await self._ask(path, body, passed)
            if self.closing or time.monotonic() >= until or status != 200 or holds_message(content):
                break
            await asyncio.sleep(pause)
            self._name_of(signed.mark)  # who was revoked meanwhile is not held on to
            pause = min(1.5 * pause, self.limits.hold_slowest)
        if status == 200 and path == FAB and self.pins is not None:
            content = pinned(content, self.pins())
        if status == 200 and path == PULL and self.roster is not None:
            self._handed.note(signed.mark, content)
        if status == 200 and path == PUSH:
            self._open_session(signed.mark, content, len(body))
        if path == ACTIVATE:
            self.too_early = status == STILL_THERE
        if status == 200 and path == ACTIVATE:
            self.joined = True
            self.came(node_id(content))
            if self.nodes is not None:
                self.nodes.note(node_id(content), signed.mark)
        return status, content, kind

    async def _ask(self, path: str, body: bytes, passed: dict[str, str]) -> tuple[int, bytes, str]:
        """The other side's answer as its bytes came, refused as soon as it is too long or packed."""
        most, parts, size = self.limits.answer_bytes, [], 0
        asked = {**passed, "accept-encoding": PLAIN, "content-length": str(len(body))}
        async with self.client.stream("POST", f"{self.upstream}{path}", content=_once(body), headers=asked) as response:
            packed = response.headers.get("content-encoding", PLAIN)
            if packed.strip().lower() != PLAIN:
                raise RequestRefused(
                    502, f"the other side packs its answers ({packed[:20]}): nothing between the doors may"
                )
            async for part in response.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise RequestRefused(413, f"an answer may have {most} bytes, this one has more ({path})")
            kind = response.headers.get("content-type", "application/octet-stream")
            return response.status_code, b"".join(parts), kind

    def _open_session(self, mark: str, content: bytes, size: int) -> None:
        """Count the pieces that the SuperLink now waits for; one that takes no message waits for none."""
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        answer = PushMessagesResponse()
        with contextlib.suppress(DecodeError):  # no answer of Flower's opens nothing
            answer.ParseFromString(content)
        if answer.objects_to_push:
            self.visitors.announced(mark, next(iter(answer.results), ""), answer.session_id, size)

    async def _make_known(self, public: bytes) -> None:
        """Flower's own check of keys wants them registered: what is on the roster is, and nothing else ever.

        The key's canonical form is registered, so that one key cannot become two nodes by another spelling.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest

        key = serialization.load_pem_public_key(public)
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        body = RegisterNodeRequest(public_key=pem).SerializeToString()
        # a key that is registered already is refused with an error of no interest: what follows tells
        await self.client.post(f"{self.upstream}{REGISTER}", content=body, headers=headers)

    def _note_egress(self, path: str, body: bytes) -> None:
        """A site that cannot write down what leaves lets nothing leave."""
        if self.egress is None:
            return
        line = {
            "at": now(),
            "route": path,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        try:
            append_private(self.egress, json.dumps(line))
        except OSError as error:
            raise RequestRefused(
                503, f"{self.egress} cannot be written ({error.strerror}): nothing leaves until it can"
            ) from None

    def _note(self, scope: Scope, who: str, size: int, status: int, answer: bytes, seconds: float, judge: str) -> None:
        """One line of JSON a request, and a word to the operator if it was refused.

        `judge`: who refused. What the other side says, with ever new numbers in it, must not use up what this door is
        told of, such as an app that nobody pinned.
        """
        address, words = _address(scope), answer.decode(errors="replace")
        if status >= 400:
            said = "".join(c for c in words[:400] if c.isprintable())
            whom = who or (f"somebody ({address})" if address else "somebody")
            self.telling.tell(f"{status} {judge}", who or client_of(address), f"{whom} was refused: {said}")
        self.access.request(
            **{"from": address, "who": who, "what": f"{scope['method']} {scope['path'][:200]}"},
            **{"bytes_in": size, "bytes_out": len(answer)},
            **{"status": FOR_A_NODE.get(status, status) if self.egress else status},
            **{"seconds": round(seconds, 4), "reason": words},
        )


async def _once(body: bytes) -> AsyncIterator[bytes]:
    """A body that nobody holds when it is sent, and of which nobody makes four copies on the way.

    httpx ties an answer and its request in a circle until the collector of garbage comes, which counts objects and not
    megabytes; and what is sent at one go is copied by each layer as a whole.
    """
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("", 0))[0])


def _key_header(caller: str, headers: dict[str, str]) -> bytes:
    """A key's header as it comes from one caller."""
    return hashlib.sha256(f"{caller} {headers.get(KEY, '')}".encode()).digest()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
