"""Downloads from a server on this machine: whole, resumed, damaged, absent."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from typing import ClassVar

import pytest

from fedsift.core.errors import ConfigError, DataError
from fedsift.data import download as d

CONTENT = bytes(range(256)) * 4000


class Server(http.server.BaseHTTPRequestHandler):
    ranges: ClassVar[list[str | None]] = []
    content = CONTENT

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        if self.path == "/gone":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = self.content[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def address():
    Server.ranges = []
    Server.content = CONTENT
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def remote(monkeypatch, address, content=CONTENT, *, path="file", unpack=False):
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    file = d.RemoteFile(f"{address}/{path}", md5, "file.bin", unpack)
    monkeypatch.setitem(d.REMOTES, "toy", d.RemoteDataset("toy", (file,), "none"))


def test_a_file_is_fetched_once(monkeypatch, address, tmp_path):
    remote(monkeypatch, address)
    seen = []
    folder = d.fetch("toy", tmp_path, progress=lambda name, have, total: seen.append((name, have, total)))
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    d.fetch("toy", tmp_path)
    assert len(Server.ranges) == 1


def test_a_broken_off_download_is_continued(monkeypatch, address, tmp_path):
    remote(monkeypatch, address)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "file.bin.part").write_bytes(CONTENT[:1000])
    folder = d.fetch("toy", tmp_path)
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert Server.ranges == ["bytes=1000-"]


def test_a_damaged_part_is_thrown_away_and_fetched_anew(monkeypatch, address, tmp_path):
    remote(monkeypatch, address)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "file.bin.part").write_bytes(b"x" * 1000)
    assert (d.fetch("toy", tmp_path) / "file.bin").read_bytes() == CONTENT
    assert Server.ranges == ["bytes=1000-", None]


def test_a_wrong_hash_keeps_nothing(monkeypatch, address, tmp_path):
    remote(monkeypatch, address, content=b"something else")
    with pytest.raises(DataError, match="wrong MD5: nothing is kept"):
        d.fetch("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_an_archive_is_unpacked_flat(monkeypatch, address, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo("../../deep/data.bin")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    Server.content = stream.getvalue()
    remote(monkeypatch, address, content=stream.getvalue(), unpack=True)
    folder = d.fetch("toy", tmp_path)
    assert (folder / "data.bin").read_bytes() == b"hello"
    assert not (folder / "file.bin").exists()
    d.fetch("toy", tmp_path)
    assert len(Server.ranges) == 1


def test_words_when_it_cannot_be_had(monkeypatch, address, tmp_path):
    remote(monkeypatch, address, path="gone")
    with pytest.raises(DataError, match="answers 404"):
        d.fetch("toy", tmp_path)
    remote(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"no connection to .* as file\.bin"):
        d.fetch("toy", tmp_path)
    # What a person fetched elsewhere and put there is accepted.
    (tmp_path / "toy" / "file.bin").write_bytes(CONTENT)
    assert d.fetch("toy", tmp_path) == tmp_path / "toy"
    with pytest.raises(DataError, match="by hand: https://doi.org"):
        d.fetch("ham10000")
    with pytest.raises(ConfigError, match="Did you mean 'cifar10'"):
        d.fetch("cifar-10")
