"""The gateway's TLS listener: accepts connections, explains failed handshakes and plain-text requests on both sides.

Uvicorn serves the requests; connections are accepted here, because a library that only writes "handshake failed" to
its debug log leaves both sides without an explanation. The first byte shows whether a client speaks TLS (22: a
handshake record).
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from fedsift.core.errors import ConfigError
from fedsift.deploy.gateway.access_log import ThrottledLog
from fedsift.deploy.gateway.limits import AUTHORIZED, client_of

TLS_HANDSHAKE = 0x16
FIRST_BYTE_WITHIN = 10.0
HANDSHAKE_WITHIN = 15.0
MOST_CONNECTIONS = 512
MAX_OF_ONE_CLIENT = 64
AUTHORIZED_WITHIN = 30.0
PLAIN_TEXT_HINT = "this port speaks TLS only: use https, with the federation's ca.crt (a site: --ca ca.crt --key node)"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    listener.listen(128)
    listener.setblocking(False)
    return listener


class GatewayServer(uvicorn.Server):
    """Serves an ASGI program on a socket over TLS for as long as the program behind it runs."""

    def __init__(
        self,
        program: Any,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        alive: Callable[[], bool] = lambda: True,
        notify: Callable[[str], None] = lambda words: None,
    ) -> None:
        """`alive`: whether the program behind the gateway still runs. `notify`: reports to the operator."""
        super().__init__(
            uvicorn.Config(
                program,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=3,
                limit_concurrency=MOST_CONNECTIONS,
            )
        )
        self.servers = []
        self._listener, self._context = listener, context
        self._alive = alive
        self._accepting: asyncio.Task[None] | None = None
        self._operator_log = ThrottledLog(notify)
        self._handshaking: dict[asyncio.Task[None], tuple[str, int]] = {}
        """Connections that are not encrypted yet, by address and port, the oldest first."""
        self._unauthorized: dict[Any, float] = {}
        """Encrypted connections without an authorized request, and since when, the oldest first."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self._accepting = asyncio.create_task(self._accept())
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        self._close_unknown_connections()
        if counter % 10 == 0:  # of ten a second
            self._operator_log.summarise()
            if hasattr(self.config.app, "tick"):
                self.config.app.tick()
        return await super().on_tick(counter) or not self._alive()

    def _close_unknown_connections(self) -> None:
        """Close connections without an authorized request: uvicorn itself has no timeout for a first request, nor for
        the rest of one that has begun."""
        now = time.monotonic()
        for protocol, since in list(self._unauthorized.items()):
            if protocol not in self.server_state.connections or (protocol.scope or {}).get(AUTHORIZED):
                del self._unauthorized[protocol]
            elif now - since > AUTHORIZED_WITHIN:
                self._close_connection(protocol)

    def _close_connection(self, protocol: Any) -> None:
        del self._unauthorized[protocol]
        protocol.transport.abort()  # closing TLS properly would wait for the client

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in (self._accepting, *self._handshaking):
            if task is not None:
                task.cancel()
        if hasattr(self.config.app, "closing"):
            self.config.app.closing = True
        self._listener.close()
        await super().shutdown(sockets)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                line, address = await loop.sock_accept(self._listener)
            except OSError:  # e.g. too many open files: those that are open will close
                await asyncio.sleep(0.1)
                continue
            caller = client_of(str(address[0]))
            if self._at_capacity(caller):
                line.close()
                continue
            task = asyncio.create_task(self._handle(line, caller))
            self._handshaking[task] = (str(address[0]), int(address[1]))
            task.add_done_callback(lambda task: self._handshaking.pop(task, None))

    def _at_capacity(self, caller: str) -> bool:
        """Whether there are too many connections, in all or of this client, to accept another one.

        Connections that are not encrypted yet count like others. When all are taken, the oldest of these is closed, or
        else the oldest unauthorized one: a site's handshake and its first request take a moment only.
        """
        served = {each.client for each in self.server_state.connections if each.client is not None}
        here = served | set(self._handshaking.values())  # a connection that was just encrypted is in both
        if sum(client_of(host) == caller for host, _ in here) >= MAX_OF_ONE_CLIENT:
            return True
        if len(here) < MOST_CONNECTIONS:
            return False
        if self._handshaking:
            oldest = next(iter(self._handshaking))
            del self._handshaking[oldest]
            oldest.cancel()
            return False
        self._close_unknown_connections()
        if not self._unauthorized:
            return True
        self._close_connection(next(iter(self._unauthorized)))
        return False

    async def _handle(self, line: socket.socket, caller: str) -> None:
        try:
            await self._handshake(line, caller)
        except asyncio.CancelledError:
            line.close()
            raise

    async def _handshake(self, line: socket.socket, caller: str) -> None:
        line.setblocking(False)
        first = await _peek(line, FIRST_BYTE_WITHIN)
        if not first:
            line.close()
            return
        if first[0] != TLS_HANDSHAKE:
            await self._refuse_plain_text(line, caller)
            return
        try:
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, line, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_WITHIN
            )
            self._unauthorized[protocol] = time.monotonic()
        except OSError as error:
            line.close()
            self._operator_log.report("handshake", caller, _handshake_words(caller, error))

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def _refuse_plain_text(self, line: socket.socket, caller: str) -> None:
        words = f"{caller} connected without encryption and was refused: {PLAIN_TEXT_HINT}"
        self._operator_log.report("plain text", caller, words)
        body = PLAIN_TEXT_HINT.encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(loop.sock_sendall(line, head.encode() + body), 5.0)
            line.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(loop.sock_recv(line, 65536), 1.0)  # unread bytes would reset the answer away
        line.close()


async def _peek(line: socket.socket, seconds: float) -> bytes:
    """The first byte, left in the buffer; empty if none comes in time."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(line, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), seconds)
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(line)
    if not select.select([line], [], [], 0)[0]:
        return b""
    try:
        return line.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""


def _handshake_words(caller: str, error: BaseException) -> str:
    """Why a handshake failed, for the gateway's operator."""
    reason = str(getattr(error, "reason", "") or error or type(error).__name__)
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "CERTIFICATE_UNKNOWN" in reason:
        return f"{caller} does not trust this gateway's certificate: does that site have the ca.crt that signed it?"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"{caller} says that this gateway's certificate has expired: make a new one, or the clock there is wrong"
    return f"no encrypted connection with {caller}: {reason}"
