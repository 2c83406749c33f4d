"""The gateway lets the fleet routes through for signed keys of the roster, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsift.deploy.gateway import proxy
from fedsift.deploy.gateway.proxy import HEARTBEAT_LATE

pytest.importorskip("flwr")
import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from fedsift.core.errors import ConfigError
from fedsift.deploy.coordinator.roster import NodeKeys, Roster, RosterEntry, entries_of, fingerprint, roster_text
from fedsift.deploy.gateway.access_log import RepeatedWarning
from fedsift.deploy.gateway.limits import (
    CONFIRM,
    MESSAGES_REMEMBERED,
    PULL_OBJECT,
    PUSH,
    KeyLimits,
    RateLimiter,
    RequestRefused,
)
from fedsift.deploy.gateway.proxy import FLEET, Gateway

PULL = "/v1/fleet/pull-messages"
OBJECT = "/v1/fleet/push-object"
ACTIVATE = "/v1/fleet/activate-node"


class Key:
    """A site's key pair, and requests signed with it."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP384R1())
        public = self._private.public_key()
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        self.pem = public.public_bytes(serialization.Encoding.PEM, spki)
        self.ssh = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        self.mark = fingerprint(self.pem)
        self._ticks = 0

    def headers(self, age: float = 0.0, stamp: str | None = None, claims: bytes | None = None) -> dict[str, str]:
        self._ticks += 1  # no two signatures alike, however coarse the clock
        stamp = stamp or (datetime.now(UTC) - timedelta(seconds=age, microseconds=self._ticks)).isoformat()
        signature = self._private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "flwr-public-key": b64encode(claims or self.pem).decode(),
            "flwr-signature": b64encode(signature).decode(),
            "flwr-timestamp": stamp,
        }


class Upstream:
    """A SuperLink that writes down what reaches it."""

    def __init__(self, answer: Callable[[str], bytes] = lambda path: b"") -> None:
        self.answer, self.status = answer, 200
        self.headers: list[tuple[bytes, bytes]] = []
        self.calls: list[tuple[str, dict[str, str], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.calls.append((scope["path"], headers, body))
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.answer(scope["path"])})


class Setting:
    """A gateway before an upstream, with one listed key."""

    def __init__(self, folder: Path, answer: Callable[[str], bytes] = lambda path: b"", **options: Any) -> None:
        self.key = Key()
        self.upstream = Upstream(answer)
        self.file = folder / "federation.toml"
        self.list(RosterEntry("north", self.key.mark, 100))
        self.log = folder / "access.jsonl"
        client = httpx.AsyncClient(transport=httpx.ASGITransport(self.upstream))
        options.setdefault("limits", KeyLimits(hold_seconds=0.0))
        options.setdefault("roster", Roster(self.file))
        self.gateway = Gateway("http://superlink", client, log=self.log, **options)

    def list(self, *entries: RosterEntry) -> None:
        self.file.write_text(roster_text(entries), "utf-8")

    def post(self, path: str, headers: dict[str, str] | None = None, body: bytes = b"x") -> httpx.Response:
        return self.request("POST", path, headers=self.key.headers() if headers is None else headers, content=body)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.gateway)) as client:
                return await client.request(method, f"http://gateway{path}", **options)

        return run(ask())

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]


def run(work: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    return asyncio.run(work)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize("path", sorted(FLEET - {PUSH, PULL_OBJECT, CONFIRM}))
def test_a_listed_key_reaches_every_fleet_route(setting: Setting, path: str) -> None:
    assert setting.post(path, body=b"hello").status_code == 200
    [(reached, _, body)] = setting.upstream.calls
    assert (reached, body) == (path, b"hello")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/control/list-nodes", "/v1/control/register-node", "/v1/runtime/acquire-task",
        "/docs", "/openapi.json", "/health", "/", "/v1/fleet", "/v1/fleet/", "/v1/fleet/pull-messages/",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/fleet/pull-messages",
        "/V1/fleet/pull-messages", "/v1/fleet/pull-messages?x=1", "/v1/fleet/unknown",
    ],
)  # fmt: skip
def test_no_other_route_exists_whatever_key_comes(setting: Setting, path: str) -> None:
    assert setting.post(path).status_code == 404
    assert setting.upstream.calls == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_no_other_method_exists(setting: Setting, method: str) -> None:
    assert setting.request(method, PULL, headers=setting.key.headers()).status_code == 404
    assert setting.upstream.calls == []


def test_who_holds_only_the_certificate_does_not_get_in(setting: Setting) -> None:
    assert setting.post(PULL, headers={}).status_code == 401
    stranger = Key()
    answer = setting.post(PULL, headers=stranger.headers())
    assert answer.status_code == 403
    assert "not on this federation's roster" in answer.text
    stolen = stranger.headers(claims=setting.key.pem)  # a listed key's name under a stranger's signature
    assert setting.post(PULL, headers=stolen).status_code == 401
    assert setting.upstream.calls == []


@pytest.mark.parametrize(
    "broken",
    [
        {"flwr-public-key": "!!"}, {"flwr-signature": "AAAA"}, {"flwr-timestamp": "yesterday"},
        {"flwr-timestamp": "2020-01-01T00:00:00"}, {"flwr-public-key": b64encode(b"no key").decode()},
    ],
)  # fmt: skip
def test_a_broken_signature_is_refused_in_words(setting: Setting, broken: dict[str, str]) -> None:
    answer = setting.post(PULL, headers={**setting.key.headers(), **broken})
    assert answer.status_code == 401
    assert setting.upstream.calls == []


def test_an_old_signature_and_a_repeated_one_are_refused(setting: Setting) -> None:
    assert "clocks" in setting.post(PULL, headers=setting.key.headers(age=4000)).text
    assert "clocks" in setting.post(PULL, headers=setting.key.headers(age=-4000)).text
    for age in (-4.0, 300.0):  # what Flower itself accepts
        assert setting.post(PULL, headers=setting.key.headers(age=age)).status_code == 200
    ahead = setting.post(PULL, headers=setting.key.headers(age=-8.0))
    assert (ahead.status_code, ahead.text) == (
        401, "the site's clock is 8 s ahead of this one, 5 s are accepted: set the clocks of both machines right",
    )  # fmt: skip
    behind = setting.post(PULL, headers=setting.key.headers(age=306.0))
    assert "signed 306 s ago by the site's clock, 305 s are accepted" in behind.text
    setting.upstream.calls.clear()
    once = setting.key.headers()
    assert setting.post(PULL, headers=once).status_code == 200
    assert setting.post(PUSH, headers=once).text == "this signature was used before"
    assert len(setting.upstream.calls) == 1


def test_revoking_takes_effect_on_the_next_message(setting: Setting) -> None:
    assert setting.post(PULL).status_code == 200
    setting.list(RosterEntry("north", setting.key.mark, 100, revoked=True))
    answer = setting.post(PULL)
    assert (answer.status_code, answer.text) == (403, "the key of site 'north' was revoked")
    setting.list(RosterEntry("an unknown client else", "sha256:" + "0" * 64, 100))
    assert setting.post(PULL).status_code == 403


def test_a_roster_that_cannot_be_read_for_a_moment_changes_nothing(setting: Setting) -> None:
    setting.file.write_text("[[site]\nname =", "utf-8")
    assert setting.post(PULL).status_code == 200
    assert setting.gateway.roster is not None
    assert "cannot be read" in setting.gateway.roster.trouble


BROKEN = '[[site]]\nname = "north"\nkey = "{key}"\nsamples = 100\nrevoked = True\n'


def test_a_roster_with_a_mistake_is_reported_repeatedly_but_not_for_ever(tmp_path: Path) -> None:
    told: list[str] = []
    now = [0.0]
    setting = Setting(tmp_path, notify=told.append)
    setting.gateway._reminder = RepeatedWarning(clock=lambda: now[0])
    setting.gateway.tick()
    assert told == []
    setting.file.write_text(BROKEN.format(key=setting.key.mark), "utf-8")  # True is Python's
    assert setting.post(PULL).status_code == 200  # the last that could be read stays in force
    assert len(told) == 1
    assert "federation.toml cannot be read: Invalid value (at line 5" in told[0]
    assert "a site revoked since then is still let in" in told[0]
    assert setting.lines()[0]["reason"] == told[0]
    for seconds in (1, 58, 1):  # a minute in all, with and without anybody who comes
        now[0] += seconds
        setting.gateway.tick()
        setting.post(PULL)
    assert told == told[:1] * 2
    for _ in range(100):
        now[0] += 86400.0
        setting.gateway.tick()
    assert len(told) == 10
    setting.file.write_text("[[site]]\nname = 5\n", "utf-8")  # another mistake is told at once
    setting.gateway.tick()
    assert "site 1 has no name" in told[-1]
    setting.list(RosterEntry("north", setting.key.mark, 100, revoked=True))
    setting.gateway.tick()
    assert told[-1].endswith("federation.toml can be read again and is in force")
    assert setting.post(PULL).status_code == 403
    assert len(told) == 13


def test_revoking_takes_effect_on_a_poll_that_is_held(tmp_path: Path) -> None:
    looks = 0

    def answer(path: str) -> bytes:
        nonlocal looks
        looks += 1
        if looks == 3:
            setting.list(RosterEntry("north", setting.key.mark, 100, revoked=True))
        return b""

    setting = Setting(tmp_path, answer, limits=KeyLimits(hold_seconds=3600.0, hold_every=0.001))
    found = setting.post(PULL)
    assert (found.status_code, found.text) == (403, "the key of site 'north' was revoked")
    assert looks == 3


def test_sizes_are_refused_before_anything_is_passed_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=KeyLimits(request_bytes=100, message_bytes=250, hold_seconds=0.0))
    assert setting.post(OBJECT, body=b"x" * 101).status_code == 413
    assert setting.post(OBJECT, headers={**setting.key.headers(), "content-length": "9" * 30}).status_code == 413
    assert setting.upstream.calls == []
    assert [setting.post(OBJECT, body=b"x" * 100).status_code for _ in range(3)] == [200, 200, 413]


class Superlink:
    """Answers an announcement as Flower does: with a session, and the pieces that it wants if it takes the message."""

    def __init__(self) -> None:
        self.message, self.wants, self.sessions = "first", ["piece"], 0

    def __call__(self, path: str) -> bytes:
        if path == PULL:
            return handing("question")
        if path != PUSH:
            return b""
        self.sessions += 1
        answer = PushMessagesResponse(
            results={self.message: 0}, objects_to_push=self.wants, session_id=f"session {self.sessions}"
        )
        return bytes(answer.SerializeToString())


def handing(message: str, *pieces: str) -> bytes:
    """The SuperLink's answer to a poll, with one message."""
    tree = ObjectTree(object_id=message, children=[ObjectTree(object_id=piece) for piece in pieces])
    answer = PullMessagesResponse(
        messages_list=[Message(metadata=Metadata(message_id=message))], message_object_trees=[tree]
    )
    return bytes(answer.SerializeToString())


def an_answer(message: str, **about: Any) -> bytes:
    """What node 7 announces as its answer to a message."""
    told = {"src_node_id": 7, "dst_node_id": 1, "reply_to_message_id": "question", **about}
    asked = PushMessagesRequest(
        node=Node(node_id=7),
        messages_list=[Message(metadata=Metadata(message_id=message, **told))],
        message_object_trees=[ObjectTree(object_id=message)],
    )
    return bytes(asked.SerializeToString())


def a_piece(session: str) -> bytes:
    """A hundred bytes and one."""
    piece = PushObjectRequest(object_content=b"x" * 88, session_id=session).SerializeToString()
    assert len(piece) == 101
    return bytes(piece)


def test_all_pieces_of_a_message_count_together_however_often_it_is_announced(tmp_path: Path) -> None:
    superlink = Superlink()
    limits = KeyLimits(request_bytes=200, message_bytes=390, hold_seconds=0.0)  # three pieces, announced twice
    setting = Setting(tmp_path, superlink, limits=limits)

    def bring() -> int:
        return setting.post(OBJECT, body=a_piece(f"session {superlink.sessions}")).status_code

    def announce() -> None:
        assert setting.post(PUSH, body=an_answer(superlink.message)).status_code == 200

    setting.post(PULL)
    announce()
    assert [bring() for _ in range(2)] == [200, 200]
    announce()  # the same message again: a new session, and the same count
    assert [bring() for _ in range(2)] == [200, 413]
    superlink.wants = []  # a message that the SuperLink does not take opens nothing
    for superlink.message in ("made up", "and again"):
        announce()
        assert bring() == 200  # pieces of no message have one count for all
    assert [bring(), bring()] == [200, 413]
    superlink.message, superlink.wants = "second", ["piece"]  # the next message that it does take
    announce()
    assert [bring() for _ in range(4)] == [200, 200, 200, 413]
    assert setting.lines()[-1]["reason"] == "a message may have 390 bytes in all its pieces"


def test_the_largest_models_pass_piece_by_piece() -> None:
    """Two models of ResNet-50 in pieces of 5 MB, round after round, and a piece that is sent twice."""
    now = [0.0]
    limiter = RateLimiter(KeyLimits(), clock=lambda: now[0])
    for number in range(20):
        limiter.open_session("north", f"message {number}", f"session {number}", 4000)
        for count in range(42):
            now[0] += 0.1
            limiter.check_request("north", f"{number}.{count}")
            limiter.count_bytes("north", 5 * 10**6)
            limiter.check_piece("north", f"session {number}", 5 * 10**6)


def test_who_brings_more_than_the_rate_waits_and_loses_nothing() -> None:
    now = [0.0]
    limiter = RateLimiter(KeyLimits(message_bytes=100, bytes_a_second=10.0), clock=lambda: now[0])
    limiter.count_bytes("north", 420)  # four messages are free
    with pytest.raises(RequestRefused, match="too many bytes") as refused:
        limiter.check_request("north", "1")
    assert refused.value.status == 429  # a site's gateway makes a 503 of it, after which its node tries again
    now[0] += 2.1
    limiter.check_request("north", "2")


def test_messages_of_a_key_are_forgotten_in_their_turn() -> None:
    limiter = RateLimiter(KeyLimits(message_bytes=100))
    for number in range(MESSAGES_REMEMBERED + 1):
        limiter.open_session("north", f"message {number}", f"session {number}", 60)
    with pytest.raises(RequestRefused):
        limiter.check_piece("north", "session 1", 60)
    limiter.check_piece("north", "session 0", 60)  # one of no message now


def test_a_compressed_answer_is_neither_unpacked_nor_forwarded(tmp_path: Path) -> None:
    """110 bytes that would become 100 000."""
    setting = Setting(tmp_path, lambda path: gzip.compress(b"x" * 100_000), roster=None)
    setting.upstream.headers = [(b"content-encoding", b"gzip")]
    answer = setting.post("/v1/fleet/get-run")
    assert (answer.status_code, len(answer.content) < 200) == (502, True)
    assert "compresses its answers (gzip)" in answer.text
    [(_, passed, _)] = setting.upstream.calls
    assert passed["accept-encoding"] == "identity"
    setting.upstream.headers = [(b"content-encoding", b"identity")]
    assert len(setting.post("/v1/fleet/get-run").content) < 200


def test_an_answer_is_cut_off_where_it_becomes_too_long(tmp_path: Path) -> None:
    sent: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1000):
            sent.append(60)
            yield b"x" * 60

    setting = Setting(tmp_path, roster=None, egress=tmp_path / "e", limits=KeyLimits(answer_bytes=100))
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=pieces()))
    setting.gateway.client = httpx.AsyncClient(transport=transport)
    answer = setting.post("/v1/fleet/pull-object")
    assert (answer.status_code, answer.text) == (
        403,  # which drops one message; another answer would end the node
        "an answer may have 100 bytes, this one has more (/v1/fleet/pull-object)",
    )
    assert len(sent) == 2


def test_a_compressed_request_is_refused(setting: Setting) -> None:
    answer = setting.post(OBJECT, headers={**setting.key.headers(), "content-encoding": "gzip"})
    assert (answer.status_code, setting.upstream.calls) == (415, [])
    plain = {**setting.key.headers(), "content-encoding": "identity"}
    assert setting.post(OBJECT, headers=plain).status_code == 200


def test_a_body_longer_than_it_says_is_cut_off(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=KeyLimits(request_bytes=100, hold_seconds=0.0))
    sent: list[int] = []

    async def receive() -> dict[str, Any]:
        sent.append(60)
        return {"type": "http.request", "body": b"x" * 60, "more_body": True}

    answers: list[Any] = []

    async def send(event: Any) -> None:
        answers.append(event)

    headers = [(name.encode(), value.encode()) for name, value in setting.key.headers().items()]
    scope = {"type": "http", "method": "POST", "path": OBJECT, "headers": headers, "query_string": b""}
    asyncio.run(setting.gateway(scope, receive, send))
    assert answers[0]["status"] == 413
    assert len(sent) == 2  # it did not read on for ever


def test_a_body_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=KeyLimits(read_seconds=0.01))
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(event: Any) -> None:
        answers.append(event)

    headers = [(name.encode(), value.encode()) for name, value in setting.key.headers().items()]
    scope = {"type": "http", "method": "POST", "path": OBJECT, "headers": headers, "query_string": b""}
    asyncio.run(setting.gateway(scope, receive, send))
    assert answers[0]["status"] == 408


def test_too_many_requests_wait(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=KeyLimits(requests_a_second=0.001, burst=3, hold_seconds=0.0))
    assert [setting.post(PULL).status_code for _ in range(5)] == [200, 200, 200, 429, 429]


def test_a_poll_is_held_until_a_message_comes(tmp_path: Path) -> None:
    polls = 0

    def answer(path: str) -> bytes:
        nonlocal polls
        polls += 1
        return PullMessagesResponse(messages_list=[Message()] if polls == 4 else []).SerializeToString()

    setting = Setting(tmp_path, answer, limits=KeyLimits(hold_seconds=60.0, hold_every=0.001))
    found = PullMessagesResponse.FromString(setting.post(PULL).content)
    assert len(found.messages_list) == 1
    assert polls == 4


def test_looks_for_a_message_become_rarer_while_a_poll_is_held(tmp_path: Path) -> None:
    empty = PullMessagesResponse().SerializeToString()
    limits = KeyLimits(hold_seconds=0.3, hold_every=0.01, hold_slowest=0.04)
    setting = Setting(tmp_path, lambda path: empty, limits=limits)
    assert setting.post(PULL).status_code == 200
    # pauses of 10, 15, 22.5, 33.75 and then 40 ms fill 300 ms: eleven looks, thirty if none grew
    assert 2 <= len(setting.upstream.calls) <= 12


def test_a_site_takes_only_apps_that_it_pinned(tmp_path: Path) -> None:
    app = b"the app that the site has read"

    def fab(content: bytes) -> Callable[[str], bytes]:
        return lambda path: GetFabResponse(fab=Fab(hash_str="whatever", content=content)).SerializeToString()

    pins = {hashlib.sha256(app).hexdigest()}

    def pinned() -> frozenset[str]:
        return frozenset(pins)

    honest = Setting(tmp_path, fab(app), roster=None, pins=pinned)
    assert honest.post("/v1/fleet/get-fab").status_code == 200
    hostile = Setting(tmp_path, fab(b"another app"), roster=None, pins=pinned)
    answer = hostile.post("/v1/fleet/get-fab")
    assert answer.status_code == 403
    assert "not pinned" in answer.text
    pins.clear()  # as the file stands now, not as it was at the start
    assert honest.post("/v1/fleet/get-fab").status_code == 403


def test_only_what_flower_needs_is_passed_on_and_nothing_secret_is_logged(setting: Setting) -> None:
    headers = {
        **setting.key.headers(),
        "cookie": "a=b",
        "x-forwarded-for": "1.2.3.4",
        "authorization": "Bearer t",
    }
    setting.post(PULL, headers=headers, body=b"12345")
    setting.post("/v1/control/start-run")
    [(_, passed, _)] = setting.upstream.calls
    assert not {"cookie", "x-forwarded-for", "authorization"} & set(passed)
    good, bad = setting.lines()
    assert (good["who"], good["bytes_in"], good["status"]) == ("north", 5, 200)
    assert (bad["status"], bad["what"]) == (404, "POST /v1/control/start-run")
    text = setting.log.read_text("utf-8")
    assert headers["flwr-signature"] not in text
    assert "Bearer" not in text


def test_an_upstream_that_is_gone_is_said_so(tmp_path: Path) -> None:
    setting = Setting(tmp_path)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    setting.gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(gone))
    answer = setting.post(PULL)
    assert (answer.status_code, answer.text) == (502, "the other side does not answer (ConnectError)")


# What a gateway writes down and tells ---------------------------------------------------------------------------------


def test_a_node_that_comes_back_before_it_was_missed_is_told_apart_from_one_that_may_not_come(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path)
    setting.upstream.status = 412
    assert setting.post(ACTIVATE).status_code == 412
    assert (setting.gateway.joined, setting.gateway.too_early) == (False, True)
    setting.post(PULL)
    assert setting.gateway.too_early
    setting.upstream.status = 403
    setting.post(ACTIVATE)
    assert not setting.gateway.too_early


def test_a_listed_key_is_made_known_and_its_node_written_down(tmp_path: Path) -> None:
    book = NodeKeys(tmp_path / "nodes.json")
    numbers = ActivateNodeResponse(node_id=17).SerializeToString()
    setting = Setting(tmp_path, lambda path: numbers, nodes=book)
    assert setting.post(ACTIVATE).status_code == 200
    [(first, passed, body), (second, _, _)] = setting.upstream.calls
    assert (first, second) == ("/v1/control/register-node", ACTIVATE)
    assert RegisterNodeRequest.FromString(body).public_key == setting.key.pem
    assert "flwr-signature" not in passed
    assert book.key_of(17) == setting.key.mark
    assert book.arrivals(17) == 1
    assert setting.post(ACTIVATE, headers=Key().headers()).status_code == 403
    assert len(setting.upstream.calls) == 2  # nobody else is ever made known
    spelled = setting.key.headers(claims=setting.key.pem + b"\n")
    setting.post(ACTIVATE, headers=spelled)
    assert RegisterNodeRequest.FromString(setting.upstream.calls[2][2]).public_key == setting.key.pem


def test_a_site_writes_down_every_body_before_it_leaves(tmp_path: Path) -> None:
    setting = Setting(tmp_path, roster=None, egress=tmp_path / "egress.jsonl")
    setting.post(OBJECT, body=b"weights")
    [line] = [json.loads(text) for text in (tmp_path / "egress.jsonl").read_text("utf-8").splitlines()]
    assert (line["route"], line["bytes"]) == (OBJECT, 7)
    assert line["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert (tmp_path / "egress.jsonl").stat().st_mode & 0o777 == 0o600
    full = Setting(tmp_path, roster=None, egress=tmp_path / "no such folder" / "egress.jsonl")
    answer = full.post(OBJECT, body=b"weights")
    assert answer.status_code == 503
    assert "nothing leaves until it can" in answer.text
    assert full.upstream.calls == []


def test_the_operator_is_told_once_for_each_reason(tmp_path: Path) -> None:
    told: list[str] = []
    setting = Setting(tmp_path, notify=told.append)
    for _ in range(3):
        setting.post("/v1/control/start-run")
        setting.post(PULL, headers={})
    assert len(told) == 2
    assert "no others" in told[0]


def test_what_the_other_side_refuses_does_not_silence_what_this_gateway_refuses(tmp_path: Path) -> None:
    """A SuperLink that ends a run refuses with ever new numbers in its words; an unpinned app must be told all the
    same."""
    told: list[str] = []
    app = GetFabResponse(fab=Fab(hash_str="whatever", content=b"another app")).SerializeToString()
    setting = Setting(tmp_path, roster=None, pins=frozenset, notify=told.append)
    setting.upstream.status = 403
    for number in range(8):
        setting.upstream.answer = lambda path, number=number: f"run {number} has ended".encode()
        setting.post(PULL)
    setting.upstream.status, setting.upstream.answer = 200, lambda path: app
    setting.post("/v1/fleet/get-fab")
    assert ["not pinned" in words for words in told] == [False, False, False, True]


@pytest.mark.parametrize(("status", "taken"), [(413, 403), (429, 503), (500, 503), (403, 403), (200, 200)])
def test_a_node_is_never_answered_what_would_end_it_for_good(tmp_path: Path, status: int, taken: int) -> None:
    setting = Setting(tmp_path, roster=None, egress=tmp_path / "egress.jsonl")
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text="words"))
    setting.gateway.client = httpx.AsyncClient(transport=transport)
    answer = setting.post(PUSH)
    assert (answer.status_code, answer.text) == (taken, "words")


@pytest.mark.parametrize("status", [401, 403, 412, 500])
def test_a_refused_heartbeat_is_to_be_tried_again(tmp_path: Path, status: int) -> None:
    """Flower's thread for them ends at any other refusal, and a site that is let in again would stay absent."""
    setting = Setting(tmp_path, roster=None, egress=tmp_path / "egress.jsonl")
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text="revoked"))
    setting.gateway.client = httpx.AsyncClient(transport=transport)
    assert setting.post("/v1/fleet/send-node-heartbeat").status_code == 503


def test_a_node_whose_heartbeats_stopped_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, now = Setting(tmp_path, roster=None, egress=tmp_path / "egress.jsonl"), [1000.0]
    monkeypatch.setattr(proxy, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    now[0] += 1000
    assert not setting.gateway.heartbeat_stopped  # it has not been let in yet
    setting.gateway.joined = True
    setting.post("/v1/fleet/send-node-heartbeat")
    now[0] += HEARTBEAT_LATE - 1
    assert not setting.gateway.heartbeat_stopped
    now[0] += 2
    assert setting.gateway.heartbeat_stopped


def test_a_site_knows_that_its_clock_is_why_it_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path, roster=None, egress=tmp_path / "egress.jsonl")
    words = "the site's clock is 8 s ahead of this one, 5 s are accepted: set the clocks of both machines right"
    transport = httpx.MockTransport(lambda request: httpx.Response(401, text=words))
    setting.gateway.client = httpx.AsyncClient(transport=transport)
    assert setting.gateway.clock_trouble == ""
    setting.post("/v1/fleet/activate-node")
    assert setting.gateway.clock_trouble == words


def test_a_closing_gateway_lets_its_polls_go(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=KeyLimits(hold_seconds=3600.0, hold_every=0.001))
    setting.gateway.closing = True
    assert setting.post(PULL).status_code == 200
    assert len(setting.upstream.calls) == 1


# The roster ----------------------------------------------------------------------------------------------------------


def test_a_key_has_one_fingerprint_in_either_form() -> None:
    key = Key()
    assert fingerprint(key.ssh) == fingerprint(key.pem) == key.mark
    with pytest.raises(ConfigError, match="no public key"):
        fingerprint(b"-----BEGIN NONSENSE-----")


GOOD = {"name": "north", "key": "sha256:" + "a" * 64, "samples": 10}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**GOOD, "name": " "}], "site 1 has no name"),
        ([{**GOOD, "key": "abc"}], "must be the fingerprint"),
        ([{**GOOD, "samples": 0}], "whole number above 0"),
        ([{**GOOD, "samples": True}], "whole number above 0"),
        ([{**GOOD, "sample": 3}], "unknown key 'sample'"),
        ([{**GOOD, "revoked": "yes"}], "must be true or false"),
        ([{**GOOD, "share": 0}], "'share' = 0, the most that it may count for, must be above 0"),
        ([{**GOOD, "share": 1.5}], "must be above 0 and at most 1"),
        ([{**GOOD, "share": True}], "must be above 0 and at most 1"),
        ([GOOD, {**GOOD, "key": "sha256:" + "b" * 64}], "name 'north' stands there twice"),
        ([GOOD, {**GOOD, "name": "south"}], "key 'sha256:a"),
    ],
)
def test_a_wrong_roster_is_refused_by_name(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        entries_of({"site": rows})


def test_a_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    entries = (
        RosterEntry('north, "of" ü', "sha256:" + "a" * 64, 5),
        RosterEntry("b", "sha256:" + "b" * 64, 6, True),
    )
    file.write_text(roster_text(entries), "utf-8")
    roster = Roster(file)
    assert roster.of("sha256:" + "a" * 64) == entries[0]
    assert roster.of("sha256:" + "c" * 64) is None
    with pytest.raises(ConfigError, match="cannot be read"):
        Roster(tmp_path / "missing.toml")


def test_a_body_is_let_go_as_soon_as_it_has_passed(setting: Setting) -> None:
    """Not only when the collector of garbage comes: bodies have megabytes, and it counts objects."""
    body, sent = bytes(range(256)) * 64, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(event: Any) -> None:
        sent.append(event)

    async def post() -> int:
        headers = [(name.encode(), value.encode()) for name, value in setting.key.headers().items()]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/fleet/get-run",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }
        await setting.gateway(scope, receive, send)
        setting.upstream.calls.clear()
        return sys.getrefcount(body)

    async def posts() -> list[int]:
        return [await post() for _ in range(5)]

    gc.collect()
    gc.disable()
    try:
        held = asyncio.run(posts())
    finally:
        gc.enable()
    assert sent[0]["status"] == 200
    assert len(set(held)) == 1, f"after each of five requests the body was held {held} times"
