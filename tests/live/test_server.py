"""The server: who may see and do what, and that nothing else can be had from it. A real server on loopback."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app as cli
from fedsift.live.server import REQUEST_WITHIN
from tests.live.made import Made

pytest.importorskip("starlette", reason="the live page needs starlette: pip install 'fedsift[live]'")
pytest.importorskip("uvicorn", reason="the live page needs uvicorn: pip install 'fedsift[live]'")

from fedsift.core.errors import ConfigError
from fedsift.live.access import AccessGuard
from fedsift.live.companion import run_page_beside, site_page_beside
from fedsift.live.run_view import withheld
from fedsift.live.server import Address

SECRET = "the contents of a file that is none of the server's business"
OFFLINE = """
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto") and "127.0.0.1" not in arguments:
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(refuse)
from fedsift.live.__main__ import main
import json
main(json.loads(sys.argv[1]))
"""


@dataclass
class Server:
    address: Address
    port: int
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": f"127.0.0.1:{self.port}", **self.headers}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        line.request(method, path, None if body is None else json.dumps(body), sent)
        answer = line.getresponse()
        content = b"" if "event-stream" in (answer.getheader("content-type") or "") else answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        line.close()
        return answer.status, found, content

    def act(self, path: str, **headers: str) -> int:
        own = {"Origin": f"http://127.0.0.1:{self.port}", "X-Fedsift": "1"}
        return self.ask(path, "POST", {}, **{**own, **headers})[0]

    def raw(self, text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as line:
            line.sendall(text)
            line.shutdown(socket.SHUT_WR)
            found = b""
            while part := line.recv(65536):
                found += part
                if b"event-stream" in found:
                    break
            return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("place")
    (root / "secret.txt").write_text(SECRET)
    (root / "study.toml").write_text("seed = 1")
    made = Made(root / "runs", "one run")
    made.start()
    made.round(1)
    made.end("stopped", "on request")
    done = Made(root / "runs", "done")
    done.start()
    done.end()
    (done.folder.path / "report.html").write_text("<p>the report</p>")
    (root / "runs" / "out").symlink_to(root)
    return root


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    """With every way out of the machine refused: a server that tried one would be gone."""
    process = subprocess.Popen(
        [sys.executable, "-c", OFFLINE, json.dumps({"runs": str(place / "runs"), "port": 0})],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    address = Address(**json.loads(process.stdout.readline()))
    found = Server(address, int(address.plain.rstrip("/").rpartition(":")[2]))
    status, headers, _ = found.ask(f"/?token={address.token}")
    assert (status, headers["location"]) == (303, "/")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    found.cookie = headers["set-cookie"].partition(";")[0]
    yield found
    assert process.poll() is None, "the server has ended"
    process.terminate()
    process.wait()
    process.stdout.close()


def test_half_sent_requests_do_not_silence_the_page(server: Server) -> None:
    """Before, 200 of them made every answer a 503 for as long as they were kept."""
    halves = [b"", b"GET / HT", b"POST /token HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf"]
    lines = []
    try:
        for number in range(260):
            line = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            line.sendall(halves[number % len(halves)])
            lines.append(line)
        for _ in range(20):
            assert server.ask("/")[0] == 200
        lines[-1].settimeout(REQUEST_WITHIN + 10)
        began = time.monotonic()
        with suppress(ConnectionError):
            assert lines[-1].recv(1000) in (b"", b"never")  # cut off
        assert time.monotonic() - began < REQUEST_WITHIN + 5
        for line in lines:
            line.settimeout(5)
            with suppress(ConnectionError):
                line.recv(1000)
    finally:
        for line in lines:
            line.close()
    assert server.ask("/")[0] == 200


def test_a_page_that_is_open_survives_half_sent_requests(server: Server) -> None:
    stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    stream.request("GET", "/runs/one%20run/events", headers={"Cookie": server.cookie})
    answer = stream.getresponse()
    assert answer.status == 200
    assert answer.readline().startswith(b"retry:")
    lines = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(300)]
    assert server.ask("/")[0] == 200
    assert any(answer.readline().startswith(b"data:") for _ in range(4))
    for line in lines:
        line.close()
    stream.close()


def test_pages_are_whole_and_load_nothing(server: Server) -> None:
    for path in ("/", "/runs/one%20run/"):
        status, headers, content = server.ask(path)
        assert status == 200
        page = content.decode()
        assert "src=" not in page.replace("frame.src", "")
        assert "url(" not in page.replace("url(#hatch)", "")
        assert [word for word in page.split('"') if word.startswith("http")] == ["http://www.w3.org/2000/svg"] * (
            path != "/"
        )
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'nonce-")
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_the_stream_begins_with_everything(server: Server) -> None:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    line.request("GET", "/runs/one%20run/events")
    answer = line.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    while not (text := answer.readline()).startswith(b"data: "):
        pass
    told = json.loads(text[6:])
    assert (told["whole"], told["round"], told["of"], told["state"]) == (True, 1, 6, "stopped")
    assert told["headline"] == "FedAvg was stopped after 1 of 6 rounds"
    line.close()


def test_a_finished_runs_page_shows_the_report_itself(server: Server) -> None:
    status, headers, content = server.ask("/runs/done/report.html")
    assert (status, content) == (200, b"<p>the report</p>")
    assert headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in headers["content-security-policy"]
    assert server.ask("/runs/one%20run/report.html")[0] == 404


PATHS = [
    "/nothing", "/runs/", "/runs/nobody/", "/runs/../secret.txt", "/runs/%2e%2e/", "/runs/..%2fsecret.txt/",
    "/runs/out/",
    "/runs/one%20run", "/runs/one%20run/study.toml", "/runs/one%20run/../../secret.txt",
    "/runs/one%20run/%2e%2e%2fstudy.toml",
    "/secret.txt", "//etc/passwd", "/runs/%00/", "/runs/%ff%fe/", "/runs/one%20run%00/", "/runs/%F0%9F%92%A9/",
    "/runs/.hidden/",
    "/runs/" + "a" * 5000 + "/", "/%", "/runs/%5c..%5c/", "/runs/one%20run/report.html/../../../secret.txt",
    "/audit.html",
    "/runs/one run/", "/?token=", "/?token=" + "x" * 300, "/?token=%ff", "/events/x", "/runs/done/stop", "/token",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_whatever_else_is_asked_for_gets_a_plain_no(server: Server, path: str) -> None:
    for text in (
        f"GET {path} HTTP/1.1",
        f"POST {path} HTTP/1.1",
        f"PUT {path} HTTP/1.1",
        f"GET {path} HTTP/1.0",
    ):
        answer = server.raw(f"{text}\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode())
        status = int(answer.split(b" ", 2)[1])
        assert 300 < status < 500 or (status == 200 and b"/study.toml" not in path.encode()), answer[:200]
        assert SECRET.encode() not in answer
        assert b"Traceback" not in answer
        if status < 400:  # only a way to write a path that is one of ours
            assert b"location: http://127.0.0.1" in answer.lower(), answer[:300]


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:PORT\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /token HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: -5\r\n\r\n",
        b"POST /token HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)  # fmt: skip
def test_odd_requests_get_a_plain_no(server: Server, request_text: bytes) -> None:
    answer = server.raw(request_text.replace(b"PORT", str(server.port).encode()))
    assert answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert b"Traceback" not in answer


def test_another_name_for_this_address_is_not_served(server: Server) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1"):
        assert server.ask("/", Host=host)[0] == 421
    assert server.ask("/", Host=f"localhost:{server.port}")[0] == 200


def test_an_action_needs_the_token_and_our_own_page(server: Server, place: Path) -> None:
    cookie, path = server.cookie, "/runs/done/stop"
    assert server.act(path) == 401
    assert server.act(path, Cookie=f"{cookie}x") == 401
    assert server.act(path, Cookie=cookie, Origin="http://evil.example") == 403
    assert server.act(path, Cookie=cookie, Origin="null") == 403
    assert server.act(path, Cookie=cookie, Sec_Fetch_Site="cross-site") == 403
    assert server.ask(path, "POST", {}, Cookie=cookie)[0] == 403
    assert server.ask(path, "GET", Cookie=cookie)[0] == 405
    assert server.act(path, Cookie=cookie) == 409  # it is finished: there is nothing to stop
    assert server.act("/runs/done/resume", Cookie=cookie) == 409
    assert server.act("/runs/nobody/stop", Cookie=cookie) == 404
    assert not (place / "runs" / "done" / "stop").exists()


def test_the_token_can_be_given_on_the_page(server: Server) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.port}", "X_Fedsift": "1"}
    assert server.ask("/token", "POST", {"token": "wrong"}, **own)[0] == 401
    assert server.ask("/token", "POST", ["token"], **own)[0] == 401
    status, headers, _ = server.ask("/token", "POST", {"token": server.address.token}, **own)
    assert status == 200
    assert headers["set-cookie"].startswith(server.cookie)
    assert server.ask("/?token=wrong-token-of-some-length")[0] == 401


def test_off_loopback_nothing_is_shown_without_the_token() -> None:
    guard = AccessGuard("192.0.2.1", 8700)
    assert guard.knows_host("any.name:8700")
    assert not guard.may_look({})
    assert not guard.may_look({guard.cookie: "wrong"})
    assert guard.may_look({guard.cookie: guard.token})
    local = AccessGuard("127.0.0.1", 8700)
    assert local.may_look({})
    assert not local.has_token({})
    assert local.token != guard.token
    assert guard.token not in repr(guard)


def test_off_loopback_every_route_asks_for_the_token(place: Path) -> None:
    from starlette.testclient import TestClient

    from fedsift.live.app import LiveApp
    from fedsift.live.overview import RunList

    guard = AccessGuard("192.0.2.1", 8700)
    live = LiveApp(guard, runs=RunList(place / "runs"))
    with TestClient(live, base_url="http://192.0.2.1:8700", follow_redirects=False) as client:
        routes = [route.path.format(name="done") for route in live.starlette.routes if route.path != "/token"]  # type: ignore[attr-defined]
        assert len(routes) == 7
        for path in routes:
            own = {"origin": "http://192.0.2.1:8700", "x-fedsift": "1"}
            answer = client.post(path, headers=own) if path.endswith(("stop", "resume")) else client.get(path)
            assert answer.status_code == 401, path
        assert "Token" in client.get("/").text
        assert client.get(f"/?token={guard.token}").status_code == 303
        assert client.get("/").status_code == 200
        assert client.get("/runs/done/report.html").text == "<p>the report</p>"


def test_a_weak_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        AccessGuard("127.0.0.1", 8700, "short")


def test_counts_of_few_are_withheld_across_sites() -> None:
    assert withheld({"relabelled_samples": 3.0, "changed": 0.0, "flagged": 10.0, "beta": 2.5}) == {
        "relabelled_samples": "fewer than 10",
        "changed": 0.0,
        "flagged": 10.0,
        "beta": 2.5,
    }


def test_the_page_ends_with_the_command_beside_it(place: Path) -> None:
    # a port of its own: another test's page could begin on the usual one as soon as this one is gone
    with run_page_beside(place / "runs" / "done", 0) as address:
        port = int(address.plain.rstrip("/").rpartition(":")[2])
        found = Server(address, port)
        status, headers, _ = found.ask("/")
        assert (status, headers["location"]) == (303, "/runs/done/")
        assert found.ask("/runs/done/")[0] == 200
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_site_sees_what_left_it(tmp_path: Path) -> None:
    egress, audit = tmp_path / "egress.jsonl", tmp_path / "audit" / "report.html"
    lines = [
        {"at": "2026-01-01T00:00:00+00:00", "run": "r", "request": "Train", "fields": ["Trained.weights"],
         "bytes": 1000, "sha256": "ab" * 32},
        {"at": "2026-01-01T00:00:01+00:00", "route": "/api", "bytes": 7, "sha256": "cd" * 32},
        {"at": "2026-01-01T00:00:02+00:00", "run": "r", "request": "Audit", "fields": [], "bytes": 10,
         "sha256": "ef" * 32, "refused": "policy"},
    ]  # fmt: skip
    egress.write_text("".join(json.dumps(line) + "\n" for line in lines) + "nonsense\n" + '{"at": "cut')
    with site_page_beside("clinic <b>", egress, audit) as address:
        found = Server(address, int(address.plain.rstrip("/").rpartition(":")[2]))
        assert b"clinic &lt;b&gt;" in found.ask("/")[2]
        assert found.ask("/audit.html")[0] == 404
        audit.parent.mkdir()
        audit.write_text("<p>private</p>")
        assert found.ask("/audit.html")[2] == b"<p>private</p>"
        line = http.client.HTTPConnection("127.0.0.1", found.port, timeout=30)
        line.request("GET", "/events")
        answer = line.getresponse()
        while not (text := answer.readline()).startswith(b"data: "):
            pass
        told = json.loads(text[6:])
        line.close()
    assert (told["answered"], told["refused"], told["bytes"], told["lane"]) == (1, 1, 1010, "14")
    assert [entry["request"] for entry in told["lines"]] == ["Train", "wire /api", "Audit"]
    assert told["strange"] == 1


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsift.live import server as serving

    asked = CliRunner().invoke(cli, ["serve", str(tmp_path / "nowhere")])
    assert "is no folder" in str(asked.exception)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asked = CliRunner().invoke(cli, ["serve", str(tmp_path), "--port", str(taken.getsockname()[1])])
        assert "name another --port" in str(asked.exception)
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    asked = CliRunner().invoke(cli, ["serve", str(tmp_path)])
    assert str(asked.exception) == "the live page needs starlette: pip install 'fedsift[live]'"


def test_the_server_needs_no_torch_and_little_memory(server: Server) -> None:
    code = "import sys, fedsift.live.app, fedsift.live.server; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
