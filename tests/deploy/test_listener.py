"""The gateway's line: TLS or a sentence that says so, certificates in plain words, one life with its companion."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedsift.core.errors import ConfigError
from fedsift.deploy.certificates import (
    CertificatePair,
    client_context,
    greet,
    server_context,
    temporary_certificate,
    words_of,
)
from fedsift.deploy.coordinator.roster import Roster, RosterEntry, roster_text
from fedsift.deploy.gateway import listener as listening
from fedsift.deploy.gateway.limits import KeyLimits
from fedsift.deploy.gateway.listener import PLAIN_TEXT_HINT, GatewayServer, bind
from fedsift.deploy.gateway.proxy import FLEET, Gateway
from tests.deploy.keys import Authority
from tests.deploy.processes import wait_until
from tests.deploy.test_gateway import Key, Upstream


@contextmanager
def opened(
    pair: CertificatePair, program: Any, alive: Any = lambda: True
) -> Iterator[tuple[str, list[str], GatewayServer]]:
    """A gateway's server on loopback: its address, what the operator is told, and itself."""
    told: list[str] = []
    listener = bind("127.0.0.1", 0)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    server = GatewayServer(program, listener, server_context(pair), alive=alive, notify=told.append)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started, 20, "the gateway")
        yield address, told, server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def a_gateway(folder: Path, key: Key) -> tuple[Gateway, Upstream]:
    file = folder / "federation.toml"
    file.write_text(roster_text([RosterEntry("north", key.mark, 100)]), "utf-8")
    upstream = Upstream()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(upstream))
    return Gateway("http://superlink", client, roster=Roster(file), limits=KeyLimits(hold_seconds=0.0)), upstream


def test_with_the_certificate_alone_no_route_but_the_fleets_exists(authority: Authority, tmp_path: Path) -> None:
    key = Key()
    gateway, upstream = a_gateway(tmp_path, key)
    with opened(authority.server(), gateway) as (address, _, _):
        trusted = client_context(authority.ca)
        with httpx.Client(base_url=f"https://{address}", verify=trusted, trust_env=False) as attacker:
            for path in (
                "/v1/control/list-nodes",
                "/v1/control/start-run",
                "/v1/runtime/acquire-task",
                "/docs",
            ):
                assert attacker.post(path).status_code == 404
                assert attacker.post(path, headers=key.headers()).status_code == 404
            for path in FLEET:
                assert attacker.post(path).status_code == 401
                assert attacker.post(path, headers=Key().headers()).status_code == 403
            assert upstream.calls == []
            good = attacker.post("/v1/fleet/send-node-heartbeat", headers=key.headers())
            assert good.status_code == 200
    assert len(upstream.calls) == 1


def test_plain_text_is_refused_with_a_hint_on_both_sides(authority: Authority, tmp_path: Path) -> None:
    gateway, upstream = a_gateway(tmp_path, Key())
    with opened(authority.server(), gateway) as (address, told, _):
        answer = httpx.post(f"http://{address}/v1/fleet/pull-messages", content=b"x" * 5000, trust_env=False)
        assert (answer.status_code, answer.text) == (400, PLAIN_TEXT_HINT)
        assert any("without encryption" in line for line in told)
        silent = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        silent.close()  # who hangs up at once costs nothing
    assert upstream.calls == []


def test_a_foreign_authority_is_told_in_words_on_both_sides(authority: Authority, tmp_path: Path) -> None:
    gateway, _ = a_gateway(tmp_path, Key())
    with opened(authority.server(), gateway) as (address, told, _):
        assert greet(address, authority.ca) is None
        foreign = Authority(tmp_path / "foreign", "another federation")
        with pytest.raises(ConfigError, match=r"was not signed by ca\.crt.*another coordinator"):
            greet(address, foreign.ca)
        wait_until(lambda: told, 10, "the operator's line")
        assert "does not trust this gateway's certificate" in told[0]


def test_an_expired_certificate_is_refused_at_its_own_side_first(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="expired on .* make a new one"):
        server_context(authority.server(days=(-60, -30)))
    with pytest.raises(ConfigError, match="clock"):
        server_context(authority.server(days=(30, 60)))
    good, other = authority.server(), authority.server()
    with pytest.raises(ConfigError, match="is not the private key of"):
        server_context(CertificatePair(good.certificate, other.key))
    with pytest.raises(ConfigError, match="does not exist"):
        server_context(CertificatePair(good.certificate, good.key.with_name("none")))
    with pytest.raises(ConfigError, match="no certificate"):
        server_context(CertificatePair(good.key, good.key))


def test_a_site_tells_an_expired_certificate_and_another_name(authority: Authority, tmp_path: Path) -> None:
    gateway, _ = a_gateway(tmp_path, Key())
    expired = authority.server(days=(-60, -30))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(expired.certificate, expired.key)
    with opened(authority.server(address="127.0.0.2"), gateway) as (address, _, server):
        with pytest.raises(ConfigError, match="is for another name"):
            greet(address, authority.ca)
        server._context = context
        with pytest.raises(ConfigError, match="has expired"):
            greet(address, authority.ca)


def test_a_site_that_trusts_two_authorities_outlives_a_new_certificate(authority: Authority, tmp_path: Path) -> None:
    """As docs/deployment.md renews one: the same authority's is no news, another's is trusted beside it."""
    gateway, _ = a_gateway(tmp_path, Key())
    later = Authority(tmp_path / "later", "our federation, anew")
    both = tmp_path / "both.crt"
    both.write_bytes(authority.ca.read_bytes() + later.ca.read_bytes())
    for signer in (authority, authority, later):
        with opened(signer.server(), gateway) as (address, _, _):
            assert greet(address, both) is None
            if signer is later:
                with pytest.raises(ConfigError, match="was not signed by"):
                    greet(address, authority.ca)


def test_nobody_there_is_no_reason_to_give_up_but_plain_text_is(authority: Authority) -> None:
    with bind("127.0.0.1", 0) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert "nobody answers" in (greet(address, authority.ca) or "")

    def speak_plainly(listener: socket.socket) -> None:
        listener.setblocking(True)
        line, _ = listener.accept()
        with line:
            line.recv(4096)
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=speak_plainly, args=(listener,))
        thread.start()
        with pytest.raises(ConfigError, match="does not speak TLS"):
            greet(f"127.0.0.1:{listener.getsockname()[1]}", authority.ca)
        thread.join()


def test_the_words_of_an_error_wrapped_by_the_client(tmp_path: Path) -> None:
    error = httpx.ConnectError("failed")
    error.__cause__ = ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED: certificate has expired")
    assert "has expired" in words_of(error, "fed:1", tmp_path / "ca.crt")


def test_a_gateway_ends_with_its_companion(authority: Authority, tmp_path: Path) -> None:
    gateway, _ = a_gateway(tmp_path, Key())
    lives = [True]
    with opened(authority.server(), gateway, alive=lambda: lives[0]) as (address, _, server):
        lives.clear()
        lives.append(False)
        wait_until(lambda: server._listener.fileno() == -1, 20, "the gateway's end")
        assert gateway.closing
        assert "nobody answers" in (greet(address, authority.ca) or "")


def test_a_caller_who_says_nothing_is_let_go_and_one_cannot_take_all_lines(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "MAX_OF_ONE_CLIENT", 2)
    gateway, _ = a_gateway(tmp_path, Key())
    trusted = client_context(authority.ca)

    def connect(address: str) -> ssl.SSLSocket:
        line = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)
        return trusted.wrap_socket(line, server_hostname="127.0.0.1")

    with opened(authority.server(), gateway) as (address, _, server):
        lines = [connect(address) for _ in range(2)]
        wait_until(lambda: len(server.server_state.connections) == 2, 20, "two lines")
        with pytest.raises(OSError):  # reset or end, as the kernel likes
            connect(address)
        monkeypatch.setattr(listening, "AUTHORIZED_WITHIN", 0.0)
        wait_until(lambda: not server.server_state.connections, 20, "the silent ones to be let go")
        for line in lines:
            line.close()
        assert greet(address, authority.ca) is None


UNFINISHED = {
    "the next request's head": b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: a\r\n",
    "a body that nobody reads": b"x",
}


@pytest.mark.parametrize("rest", list(UNFINISHED))
def test_a_refusal_is_no_ticket_and_a_stranger_makes_room_for_a_site(
    rest: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uvicorn waits for ever for the rest of what has begun: 512 such lines would keep every site out."""
    key = Key()
    gateway, _ = a_gateway(tmp_path, key)
    trusted = client_context(authority.ca)
    length = b"999999" if rest == "a body that nobody reads" else b"0"

    def asked(line: ssl.SSLSocket, headers: dict[str, str]) -> bytes:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        line.sendall(
            b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: a\r\ncontent-length: " + length + b"\r\n" + head + b"\r\n"
        )
        return line.recv(4096)[9:12] if not headers else b""

    def connect(address: str) -> ssl.SSLSocket:
        line = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)
        return trusted.wrap_socket(line, server_hostname="127.0.0.1")

    with opened(authority.server(), gateway) as (address, _, server):
        strangers = [connect(address) for _ in range(2)]
        site = connect(address)
        for line in strangers:
            assert asked(line, {}) == b"401"
            line.sendall(UNFINISHED[rest])
        asked(site, key.headers())
        wait_until(lambda: len(server._unauthorized) == 2, 20, "the site to be no stranger")
        monkeypatch.setattr(listening, "MOST_CONNECTIONS", 3)
        assert greet(address, authority.ca) is None  # though all places are taken
        monkeypatch.setattr(listening, "AUTHORIZED_WITHIN", 0.0)
        wait_until(lambda: len(server.server_state.connections) == 1, 20, "the strangers to be let go")
        for line in (*strangers, site):
            line.close()


def test_a_taken_port_is_one_line() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="choose another --port"):
        bind("127.0.0.1", listener.getsockname()[1])


def test_a_throw_away_certificate_is_for_this_machine_and_this_user(tmp_path: Path) -> None:
    pair = temporary_certificate(tmp_path / "own")
    assert pair.key.stat().st_mode & 0o777 == 0o600
    assert pair.key.parent.stat().st_mode & 0o777 == 0o700
    gateway, _ = a_gateway(tmp_path, Key())
    with opened(pair, gateway) as (address, _, _):
        assert greet(address, pair.certificate) is None
    old = temporary_certificate(tmp_path / "old", now=datetime.now(UTC) - timedelta(days=4000))
    with pytest.raises(ConfigError, match="expired"):
        server_context(old)


def test_lines_that_are_not_encrypted_yet_count_by_caller_and_the_oldest_makes_room(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "MAX_OF_ONE_CLIENT", 3)
    gateway, _ = a_gateway(tmp_path, Key())

    def silent(address: str, own: str) -> socket.socket:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        # less than FIRST_BYTE_WITHIN, after which the gateway lets everyone go
        return socket.create_connection(place, timeout=5, source_address=(own, 0))

    def let_go(line: socket.socket) -> bool:
        try:
            return line.recv(1) == b""
        except ConnectionResetError:
            return True

    with opened(authority.server(), gateway) as (address, _, server):
        lines = [silent(address, "127.0.0.2") for _ in range(3)]
        wait_until(lambda: len(server._handshaking) == 3, 20, "three who say nothing")
        with silent(address, "127.0.0.2") as fourth:
            assert let_go(fourth)
        assert greet(address, authority.ca) is None  # another caller has its own places
        monkeypatch.setattr(listening, "MOST_CONNECTIONS", 3)
        assert greet(address, authority.ca) is None  # though all are taken
        assert let_go(lines[0])
        for line in lines:
            line.close()


def test_plain_text_and_failed_handshakes_are_told_once_for_each_caller(authority: Authority, tmp_path: Path) -> None:
    gateway, _ = a_gateway(tmp_path, Key())
    foreign = Authority(tmp_path / "foreign", "another federation")
    with opened(authority.server(), gateway) as (address, told, server):
        for _ in range(3):
            httpx.post(f"http://{address}/", trust_env=False)
            with pytest.raises(ConfigError):
                greet(address, foreign.ca)
        wait_until(lambda: not server._handshaking, 20, "the last handshake")
    assert len(told) == 2


def test_a_gateway_is_called_about_once_a_second_though_nobody_comes(authority: Authority, tmp_path: Path) -> None:
    gateway, _ = a_gateway(tmp_path, Key())
    calls: list[int] = []
    gateway.tick = lambda: calls.append(1)  # type: ignore[method-assign]
    with opened(authority.server(), gateway):
        wait_until(lambda: calls, 20, "the gateway's turn")
