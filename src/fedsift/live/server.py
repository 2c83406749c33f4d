"""Starts the live page with uvicorn on one address, with a URL and a token to print."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.core.errors import ConfigError
from fedsift.core.process import when_parent_ends
from fedsift.live.access import AccessGuard
from fedsift.live.overview import RunList

if TYPE_CHECKING:
    from fedsift.live.app import LiveApp

PORT = 8700
MOST_CONNECTIONS = 200
REQUEST_WITHIN = 10.0
"""Seconds in which a client must have sent a whole request."""
READ_WITHIN = 30.0
"""Seconds after which a client that does not read what is sent to it is cut off."""
TRIED = 50
"""Ports tried from the usual one on, when none is named."""


@dataclass(frozen=True)
class Address:
    """Where the page is. `url` holds the token: its holder may stop and resume runs."""

    url: str
    plain: str
    token: str


def require_server() -> None:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(f"the live page needs {name}: pip install 'fedsift[live]'")


def serve_runs(
    place: Path,
    *,
    host: str,
    port: int | None,
    token: str | None,
    ready: Callable[[Address], None],
    parent: int = 0,
) -> None:
    """Show the runs of a folder until a signal comes, or until the process `parent` has ended."""
    require_server()
    from fedsift.live.app import LiveApp

    runs = RunList(place)
    _show(lambda guard: LiveApp(guard, runs=runs), host, port, token, ready, parent)


def serve_site(
    egress: Path,
    audit: Path,
    name: str,
    *,
    port: int | None,
    token: str | None,
    ready: Callable[[Address], None],
    parent: int = 0,
) -> None:
    """Show a site what left it, on this machine's own address always."""
    require_server()
    from fedsift.live.app import LiveApp
    from fedsift.live.run_view import SiteView

    view = SiteView(name, egress, audit)
    _show(lambda guard: LiveApp(guard, site=view), "127.0.0.1", port, token, ready, parent)


def _show(
    app_of: Callable[[AccessGuard], LiveApp],
    host: str,
    port: int | None,
    token: str | None,
    ready: Callable[[Address], None],
    parent: int,
) -> None:
    """Listen, and serve what is made for the guard of that address."""
    with _listening(host, port) as listener:
        number = listener.getsockname()[1]
        guard = AccessGuard(host, number) if token is None else AccessGuard(host, number, token)
        _serve(app_of(guard), listener, lambda: ready(_address(guard)), parent)


def _address(guard: AccessGuard) -> Address:
    host = f"[{guard.host}]" if ":" in guard.host else guard.host
    plain = f"http://{host}:{guard.port}/"
    return Address(f"{plain}?token={guard.token}", plain, guard.token)


@contextmanager
def _listening(host: str, port: int | None) -> Iterator[socket.socket]:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error}") from None
    wanted = range(PORT, PORT + TRIED) if port is None else (port,)
    trouble: OSError | None = None
    for number in wanted:
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], number))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            trouble = error if isinstance(error, OSError) else None
            continue
        try:
            yield listener
        finally:
            listener.close()
        return
    words = trouble.strerror if trouble is not None else "no such port"
    raise ConfigError(f"nothing can listen on {host}:{wanted[0]} ({words}): name another --port, 0 for a free one")


def _connections() -> Any:
    """Uvicorn's connection to one client, with limits: it has none of its own for a request that never ends.

    A request that is not whole in time, and a client that does not read, is cut off. When there is no room for another
    client, the one that has been silent or incomplete for longest makes room: a browser's request takes a moment only.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedConnection(H11Protocol):
        begun: float | None = None
        """Since when the client has not sent its whole request; None once it has."""
        stuck: float | None = None
        """Since when it has not read what was sent to it."""

        def connection_made(self, transport: Any) -> None:
            others: set[Any] = self.connections
            waiting = [each for each in others if each.begun is not None]
            if len(self.connections) >= MOST_CONNECTIONS and not waiting:
                transport.abort()
                return
            if len(self.connections) >= MOST_CONNECTIONS:
                min(waiting, key=lambda each: each.begun).cut()
            super().connection_made(transport)
            self.begun = time.monotonic()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.flow is not None:  # else it was refused at once
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.begun is None:
                self.begun = time.monotonic()
            super().data_received(data)
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self.begun = None

        def pause_writing(self) -> None:
            self.stuck = time.monotonic()
            super().pause_writing()

        def resume_writing(self) -> None:
            self.stuck = None
            super().resume_writing()

        def check(self, now: float) -> None:
            late = self.begun is not None and now - self.begun > REQUEST_WITHIN
            if late or (self.stuck is not None and now - self.stuck > READ_WITHIN):
                self.cut()

        def cut(self) -> None:
            self.begun = self.stuck = None
            self.connections.discard(self)
            self.transport.abort()

    return LimitedConnection


def _serve(app: Any, listener: socket.socket, ready: Callable[[], None], parent: int) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def on_tick(self, counter: int) -> bool:
            if counter % 10 == 0:  # of ten a second
                now = time.monotonic()
                connections: list[Any] = list(self.server_state.connections)
                for each in connections:
                    each.check(now)
            return await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.closing.set()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.closing.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        http=_connections(),
        loop="asyncio",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=32_768,
    )
    server = Server(config)
    if parent:
        when_parent_ends(lambda: setattr(server, "should_exit", True), parent)
    server.run(sockets=[listener])
