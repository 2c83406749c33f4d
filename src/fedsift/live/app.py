"""Routes of the live server: the page of all runs, of one run, or of a site; checks each request's token and host."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from fedsift.core.errors import FedsiftError
from fedsift.live import actions
from fedsift.live.access import AccessGuard
from fedsift.live.overview import RunList
from fedsift.live.page import message_page, run_page, runs_page
from fedsift.live.run_view import KEEP_ALIVE, RunView, SiteView
from fedsift.runs.folder import SUMMARY, RunFolder

REPORT = "report.html"
LIST_EVERY = 2.0
LONGEST_HEADERS = 32_768
PAGE_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
    "frame-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
FILE_POLICY = (
    "sandbox allow-scripts allow-downloads allow-popups allow-modals; default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
)
"""For pages that a folder holds: they may be anybody's, so they are shown without the rights of ours."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[Request], Awaitable[Response]]


class LiveApp:
    """What the server answers, from a place of runs or from a site's own files."""

    def __init__(self, guard: AccessGuard, runs: RunList | None = None, site: SiteView | None = None) -> None:
        self.guard, self.runs, self.site = guard, runs, site
        self.closing = asyncio.Event()
        self._watches: dict[Path, RunView] = {}
        self._reports: dict[Path, tuple[int, bytes]] = {}
        self._writing = asyncio.Lock()
        routes = [Route("/token", self._guarded(self._token, act=True, free=True), methods=["POST"])]
        if runs is not None:
            routes += [
                Route("/", self._guarded(self._all)),
                Route("/events", self._guarded(self._all_events)),
                Route("/runs/{name}/", self._guarded(self._run)),
                Route("/runs/{name}/events", self._guarded(self._run_events)),
                Route(f"/runs/{{name}}/{REPORT}", self._guarded(self._report)),
                Route("/runs/{name}/stop", self._guarded(self._stop, act=True), methods=["POST"]),
                Route("/runs/{name}/resume", self._guarded(self._resume, act=True), methods=["POST"]),
            ]
        if site is not None:
            routes += [
                Route("/", self._guarded(self._site)),
                Route("/events", self._guarded(self._site_events)),
                Route("/audit.html", self._guarded(self._site_audit)),
            ]
        self.starlette = Starlette(routes=routes, exception_handlers={HTTPException: self._refused})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.starlette(scope, receive, send)

    # Who may ------------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler, *, act: bool = False, free: bool = False) -> Handler:
        async def answer(request: Request) -> Response:
            guard = self.guard
            if sum(len(name) + len(value) for name, value in request.headers.raw) > LONGEST_HEADERS:
                raise HTTPException(431, "these headers are too long")
            if request.scope["http_version"] not in ("1.0", "1.1"):
                raise HTTPException(400, "this is no version of HTTP that is spoken here")
            if not guard.knows_host(request.headers.get("host", "")):
                raise HTTPException(421, "this server has another address")
            if act and not guard.from_our_page(request.headers):
                raise HTTPException(403, "actions come from this server's own page")
            given = request.query_params.get("token")
            if given is not None and request.method == "GET":
                return self._with_cookie(given, request)
            if not free and not guard.may_look(request.cookies):
                raise HTTPException(401, "open the address with the token that was printed at the start")
            if act and not free and not guard.has_token(request.cookies):
                raise HTTPException(401, "this needs the token that was printed at the start")
            response = await handler(request)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer

    def _with_cookie(self, given: str, request: Request) -> Response:
        """The token goes from the address into a cookie, so that it stays in no history."""
        if not self.guard.is_token(given):
            raise HTTPException(401, "this is not the token that was printed at the start")
        response = RedirectResponse(request.url.path or "/", 303, headers=HEADERS)
        self._set_cookie(response)
        return response

    def _set_cookie(self, response: Response) -> None:
        response.set_cookie(self.guard.cookie, self.guard.token, httponly=True, samesite="strict", path="/")

    async def _token(self, request: Request) -> Response:
        try:
            given = json.loads((await request.body())[:1000])["token"]
            known = isinstance(given, str) and self.guard.is_token(given.strip())
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise HTTPException(401, "this is not the token that was printed at the start")
        response = JSONResponse({"ok": True})
        self._set_cookie(response)
        return response

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if "application/json" in request.headers.get("accept", "") or request.method != "GET":
            return JSONResponse({"error": error.detail}, error.status_code, headers=HEADERS)
        return self._page(lambda nonce: message_page(error.status_code, error.detail, nonce), error.status_code)

    def _page(self, made: Callable[[str], str], status: int = 200) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = {"Content-Security-Policy": PAGE_POLICY.format(nonce=nonce)}
        return Response(made(nonce), status, headers={**HEADERS, **policy}, media_type="text/html")

    # All runs -----------------------------------------------------------------------------------------------------

    async def _all(self, request: Request) -> Response:
        assert self.runs is not None
        if self.runs.single:
            return RedirectResponse(f"/runs/{quote(self.runs.names()[0], safe='')}/", 303)
        place = self.runs.place.name
        return self._page(lambda nonce: runs_page(place, nonce))

    async def _all_events(self, request: Request) -> Response:
        return self._stream(self._lists())

    async def _lists(self) -> AsyncIterator[str]:
        assert self.runs is not None
        sent, quiet = "", 0.0
        while True:
            said = json.dumps(await asyncio.to_thread(self.runs.glances))
            if said != sent or quiet >= KEEP_ALIVE:
                yield said if said != sent else ""
                sent, quiet = said, 0.0
            await asyncio.sleep(LIST_EVERY)
            quiet += LIST_EVERY

    # One run ------------------------------------------------------------------------------------------------------

    def _folder(self, request: Request) -> RunFolder:
        assert self.runs is not None
        folder = self.runs.folder(request.path_params["name"])
        if folder is None:
            raise HTTPException(404, "there is no such run here")
        return folder

    async def _run(self, request: Request) -> Response:
        folder = self._folder(request)
        alone = self.runs is not None and self.runs.single
        return self._page(lambda nonce: run_page(folder, nonce, alone=alone))

    async def _run_events(self, request: Request) -> Response:
        folder = self._folder(request)
        watch = self._watches.setdefault(folder.path, RunView(folder))
        return self._stream(watch.messages())

    async def _report(self, request: Request) -> Response:
        """The run's report.html: the file itself, or made anew where it is missing or older than the result."""
        folder = self._folder(request)
        if not folder.finished:
            raise HTTPException(404, "the report comes when the run has ended")
        async with self._writing:
            content = await self._report_of(folder)
        return Response(content, headers={"Content-Security-Policy": FILE_POLICY}, media_type="text/html")

    async def _report_of(self, folder: RunFolder) -> bytes:
        written, result = folder.path / REPORT, (folder.path / SUMMARY).stat().st_mtime_ns
        if written.is_file() and not written.is_symlink() and written.stat().st_mtime_ns >= result:
            return written.read_bytes()
        kept = self._reports.get(folder.path)
        if kept is None or kept[0] != result:
            kept = self._reports[folder.path] = (result, await _made_report(folder.path))
        return kept[1]

    async def _stop(self, request: Request) -> Response:
        return await self._act(actions.stop, self._folder(request))

    async def _resume(self, request: Request) -> Response:
        return await self._act(actions.resume, self._folder(request))

    async def _act(self, action: Callable[[RunFolder], Any], folder: RunFolder) -> Response:
        try:
            await asyncio.to_thread(action, folder)
        except FedsiftError as error:
            raise HTTPException(409, str(error)) from None
        except OSError as error:
            raise HTTPException(409, f"the run's folder cannot be written: {error.strerror}") from None
        return JSONResponse({"ok": True})

    # A site's own page ----------------------------------------------------------------------------------------------

    async def _site(self, request: Request) -> Response:
        assert self.site is not None
        site = self.site
        return self._page(site.page)

    async def _site_events(self, request: Request) -> Response:
        assert self.site is not None
        return self._stream(self.site.messages())

    async def _site_audit(self, request: Request) -> Response:
        assert self.site is not None
        content = await asyncio.to_thread(self.site.audit)
        if content is None:
            raise HTTPException(404, "no audit was written yet: fedsift flower audit")
        return Response(content, headers={"Content-Security-Policy": FILE_POLICY}, media_type="text/html")

    # Streams ------------------------------------------------------------------------------------------------------

    def _stream(self, messages: AsyncIterator[str]) -> Response:
        async def lines() -> AsyncIterator[str]:
            yield "retry: 1000\n\n"
            async for message in _until(self.closing, messages):
                yield f"data: {message}\n\n" if message else ": still here\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")


async def _until(closing: asyncio.Event, messages: AsyncIterator[str]) -> AsyncIterator[str]:
    """Messages until the server ends."""
    end = asyncio.ensure_future(closing.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(messages))
            await asyncio.wait({coming, end}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        end.cancel()


async def _made_report(run: Path) -> bytes:
    """In a process of its own: the report knows the methods and so needs torch, which this server does without."""
    with tempfile.TemporaryDirectory(prefix="fedsift-report-") as place:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fedsift", "report", str(run), "--out", f"{place}/{REPORT}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=actions.environment(),
        )  # fmt: skip
        _, said = await process.communicate()
        if process.returncode:
            words = said.decode(errors="replace").strip().splitlines()
            raise HTTPException(409, f"the report could not be made: {words[-1] if words else ''}")
        return (Path(place) / REPORT).read_bytes()
