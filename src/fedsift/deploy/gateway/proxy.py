"""The gateway: an authenticating reverse proxy in front of the coordinator's SuperLink and of each site's SuperNode.

Flower serves its control routes on the same port as the routes that sites need, so a client that reaches the port can
start code of its own. Therefore the SuperLink listens on loopback alone, and this program forwards requests to it: the
twelve fleet routes and nothing else, for keys on the roster, within limits of size and rate, with an access log. The
same program runs at a site, between its SuperNode and the network: there it refuses apps that the site has not pinned,
and logs what leaves.
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
from fedsift.core.text import short
from fedsift.deploy.coordinator.roster import NodeKeys, Roster, fingerprint
from fedsift.deploy.gateway.access_log import AccessLog, RepeatedWarning, ThrottledLog, now
from fedsift.deploy.gateway.limits import (
    AUTHORIZED,
    CLOCK_AHEAD,
    MAX_CLIENTS,
    PUSH,
    SIGNATURE_LIFE,
    IssuedMessages,
    KeyLimits,
    RateLimiter,
    RequestRefused,
    UnknownClients,
    client_of,
)

# Reading the bodies of Flower's calls; Flower itself is imported with the first call
# ------------------------------------------------------------------------------


def pinned(content: bytes, pins: frozenset[str]) -> bytes:
    """The answer that carries an app, built again from the parts that were checked."""
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
    """The session that a piece belongs to; empty if the body is not a piece, which the upstream will refuse."""
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


# Verifying a request's signature, from the three headers that Flower's nodes send with every request
# ------------------------------------------------------------------------------

KEY = "flwr-public-key"


@dataclass(frozen=True)
class VerifiedSignature:
    """The key and time of a request whose signature was verified."""

    public: bytes
    mark: str
    """The key's fingerprint."""
    stamp: str


def signed_by(headers: Mapping[str, str]) -> VerifiedSignature:
    """Verify a request's signature and its age; raises RequestRefused with a reason."""
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
    if age <= -CLOCK_AHEAD:
        words = f"the site's clock is {-age:.0f} s ahead of this one, {CLOCK_AHEAD:.0f} s are accepted"
        raise RequestRefused(401, f"{words}: {SET_THE_CLOCKS}")
    if age >= SIGNATURE_LIFE:
        words = f"this request was signed {age:.0f} s ago by the site's clock, {SIGNATURE_LIFE:.0f} s are accepted"
        raise RequestRefused(401, f"{words}: {SET_THE_CLOCKS}")
    return VerifiedSignature(public, mark, stamp)


SET_THE_CLOCKS = "set the clocks of both machines right"
"""By these words a site knows that no further try will help."""
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
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
HEARTBEAT_LATE = 90.0
"""Seconds without a heartbeat of a node, which Flower sends every 18 to 23, after which it has stopped for good."""
OBJECT, ACTIVATE = "/v1/fleet/push-object", "/v1/fleet/activate-node"
REGISTER = "/v1/control/register-node"
"""The only control call that a gateway makes: to register a key that is on the roster."""
FORWARDED_HEADERS = ("content-type", "accept", "flwr-public-key", "flwr-signature", "flwr-timestamp")
"""Headers that are forwarded; no other header is, and none is ever logged."""
IDENTITY = "identity"
"""The only content encoding: a compressed body can be a thousand times larger than its bytes."""
STATUS_FOR_NODE = {408: 503, 413: 403, 415: 403, 429: 503, 500: 503}
"""Answers that end a SuperNode's loop for good, and what it takes instead: 403 drops one message, 503 tries again."""
CHUNK = 2**18
"""Bytes of a body that are forwarded at a time."""
NODE_STILL_ONLINE = 412
"""Flower's answer to a listed key whose node was heard of within the last minute: it takes the node for online."""


class TooManyRefusals(RequestRefused):
    """The answer to a client that was refused too often."""

    def __init__(self) -> None:
        super().__init__(429, "too many requests from this address without a key of the roster: slow down")


@dataclass
class Gateway:
    """An ASGI program that forwards to one upstream address."""

    upstream: str
    """Base address of the other side, e.g. https://127.0.0.1:9092."""
    client: httpx.AsyncClient
    roster: Roster | None = None
    """Keys that are allowed; None at a site, where only its own SuperNode reaches the gateway."""
    pins: Callable[[], frozenset[str]] | None = None
    """Returns the SHA-256 of each app that is allowed at this moment; None at the coordinator."""
    log: Path | None = None
    egress: Path | None = None
    """At a site: one line for every body that leaves."""
    nodes: NodeKeys | None = None
    """At the coordinator: which key each node has; if given, keys on the roster are registered with the SuperLink."""
    explain: Callable[[BaseException], str] = lambda error: f"the other side does not answer ({type(error).__name__})"
    """Describes why the upstream cannot be reached."""
    notify: Callable[[str], None] = lambda words: None
    """Reports refusals to the operator: each reason once for each client, many of them as one line."""
    joined: bool = False
    """Whether a node was activated through this gateway."""
    on_activated: Callable[[int], None] = lambda node: None
    """Called with the number of a node that was activated."""
    too_early: bool = False
    """Whether a node was refused because the SuperLink still takes its last session for online."""
    clock_trouble: str = ""
    """At a site: the coordinator's words when it refused this machine's clock."""
    last_heartbeat: float | None = None
    """At a site: when its node last sent a heartbeat, whatever came of it."""
    closing: bool = False
    """Set when the gateway is about to close: polls that are held open are answered."""
    limits: KeyLimits = field(default_factory=KeyLimits)

    def __post_init__(self) -> None:
        self.rate_limiter, self.unknown_clients = RateLimiter(self.limits), UnknownClients(self.limits)
        self.access, self.operator_log = AccessLog(self.log), ThrottledLog(self.notify)
        self._reminder, self._issued = RepeatedWarning(), IssuedMessages()
        self._known: set[bytes] = set()
        """Digests of each authorized key together with the address that it came from."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        started, who = time.perf_counter(), ""
        caller, ignored, refused_by = client_of(_address(scope)), False, "upstream"
        body, status, answer, kind = b"", 500, b"the gateway failed", "text/plain"
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_caller(caller, headers)
            self._check_route(scope)
            signed = signed_by(headers)
            who = self._name_of(signed.mark)
            scope[AUTHORIZED] = True
            self._known.add(_key_header(caller, headers))
            self.rate_limiter.check_request(signed.mark, signed.stamp)
            body = await self._read(headers, receive, scope["path"], signed.mark)
            status, answer, kind = await self._forward(scope["path"], headers, body, signed)
        except RequestRefused as reason:
            status, answer, refused_by = reason.status, str(reason).encode(), "gateway"
            ignored = isinstance(reason, TooManyRefusals)
            if not who and not ignored:
                self._known.discard(_key_header(caller, headers))
                self.unknown_clients.count_refusal(caller)
        except (httpx.HTTPError, OSError) as error:
            status, answer = 502, self.explain(error).encode()
        except DecodeError:
            status, answer = 502, b"the other side's answer is none of Flower's"
        except asyncio.CancelledError:  # the server cancels open requests when it stops
            status, answer = 503, b"the gateway is closing; try again"
        if not ignored or self.unknown_clients.should_log(caller):
            self._note(scope, who, len(body), status, answer, time.perf_counter() - started, refused_by)
        if self.egress is not None:
            status = self._status_for_node(scope["path"], status, answer)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": answer})

    def _status_for_node(self, path: str, status: int, answer: bytes) -> int:
        """What a site's own SuperNode is told. A refused heartbeat would end the thread that sends them, and the site
        would stay silent when it is let in again: it is told to try once more."""
        if path == HEARTBEAT:
            self.last_heartbeat = time.monotonic()
            return 503 if status >= 400 else status
        if status == 401 and SET_THE_CLOCKS.encode() in answer:
            self.clock_trouble = short(answer.decode(errors="replace"), 300)
        return STATUS_FOR_NODE.get(status, status)

    @property
    def heartbeat_stopped(self) -> bool:
        """Whether a node that was let in sends no heartbeats any more."""
        return (
            self.joined and self.last_heartbeat is not None and time.monotonic() - self.last_heartbeat > HEARTBEAT_LATE
        )

    def tick(self) -> None:
        """Write the log lines and warnings that are due; called about once a second."""
        for caller, count in self.unknown_clients.ignored_counts():
            line = {"from": caller, "who": "", "what": "not examined", "bytes_in": 0, "bytes_out": 0}
            self.access.write(**line, status=429, seconds=0.0, count=count, reason=str(TooManyRefusals()))
        self.operator_log.summarise()
        if self.roster is not None:
            self.roster.refresh()
            self._report_roster_problem(self.roster)

    def _report_roster_problem(self, roster: Roster) -> None:
        """Warn that the roster file cannot be read and the last good one is in force, or that it can be read again."""
        if not self._reminder.is_due(roster.trouble):
            return
        words = (
            f"{roster.trouble}. The roster as it was read last stays in force, so a site revoked since then is "
            "still let in: correct the file (true and false are written in lower case)"
            if roster.trouble
            else f"{roster.path} can be read again and is in force"
        )
        self.notify(words)
        line = {"from": "", "who": "", "what": "the roster", "bytes_in": 0, "bytes_out": 0}
        self.access.write(**line, status=0, seconds=0.0, reason=words)

    # Authorization ---------------------------------------------------------------------------------------------------

    def _check_route(self, scope: Scope) -> None:
        if scope["method"] != "POST" or scope["path"] not in FLEET or scope.get("query_string"):
            raise RequestRefused(404, "this gateway serves the fleet routes of a fedsift federation and no others")

    def _check_caller(self, caller: str, headers: dict[str, str]) -> None:
        """Refuse a client that was refused too often, unless its key was authorized from this address before."""
        if self.unknown_clients.is_over_limit(caller) and _key_header(caller, headers) not in self._known:
            raise TooManyRefusals
        if len(self._known) > MAX_CLIENTS:
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
        """Read the body; refused as soon as it is too long or too slow. Pieces of one message are counted together."""
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                body = await self._body(headers, receive)
        except TimeoutError:
            raise RequestRefused(408, f"this request did not arrive within {self.limits.read_seconds:.0f} s") from None
        self.rate_limiter.count_bytes(mark, len(body))
        if path == OBJECT:
            self.rate_limiter.check_piece(mark, session_of(body), len(body))
        return body

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        most = self.limits.request_bytes
        packed = headers.get("content-encoding", IDENTITY)
        if packed.strip().lower() != IDENTITY:
            raise RequestRefused(415, f"a request must not be compressed, this one is ({packed[:20]})")
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > most:
            raise RequestRefused(413, f"a request may have {most} bytes, this one says {declared[:20]}")
        parts, size, more = [], 0, True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise RequestRefused(400, "the client disconnected")
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise RequestRefused(413, f"a request may have {most} bytes")
            more = event.get("more_body", False)
        return b"".join(parts)

    # The upstream ---------------------------------------------------------------------------------------------------

    async def _forward(
        self, path: str, headers: dict[str, str], body: bytes, signed: VerifiedSignature
    ) -> tuple[int, bytes, str]:
        passed = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
        if path == ACTIVATE and self.nodes is not None:
            await self._register_key(signed.public)
        if self.roster is not None:
            self._issued.check(signed.mark, path, body)
        self._note_egress(path, body)
        until = time.monotonic() + (self.limits.hold_seconds if path == PULL else 0.0)
        pause = self.limits.hold_every
        while True:
            status, content, kind = await self._ask(path, body, passed)
            if self.closing or time.monotonic() >= until or status != 200 or holds_message(content):
                break
            await asyncio.sleep(pause)
            self._name_of(signed.mark)  # a key revoked meanwhile is refused
            pause = min(1.5 * pause, self.limits.hold_slowest)
        if status == 200 and path == FAB and self.pins is not None:
            content = pinned(content, self.pins())
        if status == 200 and path == PULL and self.roster is not None:
            self._issued.note(signed.mark, content)
        if status == 200 and path == PUSH:
            self._open_session(signed.mark, content, len(body))
        if path == ACTIVATE:
            self.too_early = status == NODE_STILL_ONLINE
        if status == 200 and path == ACTIVATE:
            self.joined = True
            self.on_activated(node_id(content))
            if self.nodes is not None:
                self.nodes.note(node_id(content), signed.mark)
        return status, content, kind

    async def _ask(self, path: str, body: bytes, passed: dict[str, str]) -> tuple[int, bytes, str]:
        """The upstream's answer, byte for byte; refused as soon as it is too long or compressed."""
        most, parts, size = self.limits.answer_bytes, [], 0
        asked = {**passed, "accept-encoding": IDENTITY, "content-length": str(len(body))}
        async with self.client.stream("POST", f"{self.upstream}{path}", content=_once(body), headers=asked) as response:
            packed = response.headers.get("content-encoding", IDENTITY)
            if packed.strip().lower() != IDENTITY:
                raise RequestRefused(
                    502, f"the upstream compresses its answers ({packed[:20]}): nothing between the gateways may"
                )
            async for part in response.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise RequestRefused(413, f"an answer may have {most} bytes, this one has more ({path})")
            kind = response.headers.get("content-type", "application/octet-stream")
            return response.status_code, b"".join(parts), kind

    def _open_session(self, mark: str, content: bytes, size: int) -> None:
        """Note the session in which the SuperLink waits for a message's pieces; a refused message opens none."""
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        answer = PushMessagesResponse()
        with contextlib.suppress(DecodeError):  # what is not an answer of Flower's opens no session
            answer.ParseFromString(content)
        if answer.objects_to_push:
            self.rate_limiter.open_session(mark, next(iter(answer.results), ""), answer.session_id, size)

    async def _register_key(self, public: bytes) -> None:
        """Register a key of the roster with the SuperLink, which Flower's own check requires; no other key ever is.

        The key's canonical form is registered, so that one key cannot become two nodes by another encoding.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest

        key = serialization.load_pem_public_key(public)
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        body = RegisterNodeRequest(public_key=pem).SerializeToString()
        # the error for a key that is registered already is ignored: the activation that follows fails if there is one
        await self.client.post(f"{self.upstream}{REGISTER}", content=body, headers=headers)

    def _note_egress(self, path: str, body: bytes) -> None:
        """Log what leaves; if that cannot be written, nothing leaves."""
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

    def _note(
        self, scope: Scope, who: str, size: int, status: int, answer: bytes, seconds: float, refused_by: str
    ) -> None:
        """Write a request's line in the access log, and report it to the operator if it was refused.

        `refused_by`: the gateway or the upstream. They are throttled apart, so that refusals of the upstream, which
        contain ever new numbers, cannot hide those of the gateway, such as an app that is not pinned.
        """
        address, words = _address(scope), answer.decode(errors="replace")
        if status >= 400:
            said = "".join(c for c in words[:400] if c.isprintable())
            whom = who or (f"an unknown client ({address})" if address else "an unknown client")
            self.operator_log.report(f"{status} {refused_by}", who or client_of(address), f"{whom} was refused: {said}")
        self.access.request(
            **{"from": address, "who": who, "what": f"{scope['method']} {scope['path'][:200]}"},
            **{"bytes_in": size, "bytes_out": len(answer)},
            **{"status": STATUS_FOR_NODE.get(status, status) if self.egress else status},
            **{"seconds": round(seconds, 4), "reason": words},
        )


async def _once(body: bytes) -> AsyncIterator[bytes]:
    """A body as a stream of chunks, so that it is neither kept after sending nor copied as a whole.

    httpx keeps a request and its response in a reference cycle until the garbage collector runs, which counts objects
    and not megabytes; and each layer copies what is sent in one piece.
    """
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("", 0))[0])


def _key_header(caller: str, headers: dict[str, str]) -> bytes:
    """Digest of a key's header together with the client's address."""
    return hashlib.sha256(f"{caller} {headers.get(KEY, '')}".encode()).digest()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
