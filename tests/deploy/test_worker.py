"""The process that stays at a site: same answers, gone with its node, and nothing lost without it."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.core.codec import digest_of
from fedsift.core.errors import RunError
from fedsift.deploy import flower_commands as commands
from fedsift.deploy.site import worker
from fedsift.deploy.site.data import open_site
from fedsift.deploy.site.local_socket import call_worker, receive_message, send_message
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from fedsift.transports.remote.answering import answer, answer_message
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Acknowledged, Introduction, IntroductionRequest, SiteNotice
from fedsift.transports.remote.messages import EncodedMessage
from tests.deploy.processes import wait_until
from tests.deploy.test_site_data import train, write_site
from tests.promises.fuzz import changed


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: sockets allow about a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "sock"


def serve(site_file: Path, place: Path) -> None:
    threading.Thread(target=worker.serve, args=(site_file, place), daemon=True).start()
    wait_until(place.exists, 20, "the site's socket")


def test_the_worker_answers_as_the_site_itself_would(tmp_path: Path, place: Path) -> None:
    serve(write_site(tmp_path / "a"), place)
    for asked in (IntroductionRequest(), train()):
        encoded = encode(asked).with_note(model="mlp", session="1")
        reply = call_worker(place, encoded)
        path = write_site(tmp_path / f"b-{type(asked).__name__}")
        direct = answer_message(encoded, lambda model, path=path: open_site(path, model), "1", expose_errors=False)  # type: ignore[misc]
        assert digest_of(decode(reply)) == digest_of(decode(direct))
    assert (tmp_path / "a" / "notebook" / "north" / "runs" / "run" / "0.0.answer").is_file()


def test_the_answer_does_not_depend_on_the_callers_threads(tmp_path: Path) -> None:
    # the worker's thread had one and the test's two: whether the digests above agreed hung on which tests ran before
    before, digests = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            path = write_site(tmp_path / str(count))
            answered = answer(train(), lambda path=path: open_site(path, "mlp"), "mlp", "1", expose_errors=False)  # type: ignore[misc]
            assert isinstance(answered, ReplyEnvelope) and answered.failure == ""
            digests.append(digest_of(answered))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert len(set(digests)) == 1


def test_the_socket_is_for_this_user_alone(tmp_path: Path, place: Path) -> None:
    serve(write_site(tmp_path), place)
    assert place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "encoded", [EncodedMessage("{"), EncodedMessage('{"$class": "OnlyTheAppKnows", "fields": {}}')]
)
def test_a_request_that_the_site_does_not_know_is_refused_and_nobody_else_answers(
    tmp_path: Path, place: Path, encoded: EncodedMessage
) -> None:
    serve(write_site(tmp_path), place)
    refused = decode(call_worker(place, encoded))
    assert isinstance(refused, ReplyEnvelope)
    assert "Refused: this site does not know" in refused.failure
    again = call_worker(place, encode(IntroductionRequest()).with_note(model="mlp"))
    assert isinstance(decode(again), Introduction)
    lines = (tmp_path / "notebook" / "north" / "egress.jsonl").read_text("utf-8").splitlines()
    assert [("refused" in json.loads(line)) for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": 5}, "run is a int (5), not a text"),
        ({"run": {}}, "run is a dict (0 entries), not a text"),
        ({"request": "text"}, "request is a str (text), not a Request"),
        ({"moment": None}, "moment is a NoneType (None), not a RequestMoment"),
        ({"run": "x" * 5000}, "run has 5000 characters"),
        ({"request": Train({"w": torch.tensor([math.nan])}, Recipe())}, "not finite"),
        ({"request": Train({"w": torch.tensor([1e35])}, Recipe())}, "beyond 1e+30"),
    ],
)
def test_an_envelope_that_is_not_what_it_declares_is_refused_and_listed(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    refused = answered(path, encode(dataclasses.replace(train(), **change)))
    assert refused.failure.startswith("Refused: the request cannot be served: ") and words in refused.failure
    assert [line["refused"] for line in egress(tmp_path)] == [refused.failure]


def answered(path: Path, encoded: EncodedMessage) -> Any:
    """What `attend` says to one message, over a real channel."""
    return decode(exchange(path, lambda channel: send_message(channel, encoded.with_note(model="mlp"))))


def exchange(path: Path, send: Callable[[socket.socket], None]) -> EncodedMessage:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        send(mine)
        mine.shutdown(socket.SHUT_WR)
        worker.attend(theirs, path)
        return receive_message(mine)


def egress(folder: Path) -> list[dict[str, Any]]:
    file = folder / "notebook" / "north" / "egress.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    "parts",
    [
        (b"{", b"{}", b""),
        (b"[]", b"{}", b""),
        (b'{"model": 5}', b"{}", b""),
        (b"{}", b"\xff\xfe", b""),
        (b"{}", b"[" * 100_000, b""),
        (b"{}", b'{"$tensor": "0"}', b"\xff" * 64),
    ],
)
def test_bytes_that_are_no_message_are_refused_and_listed(tmp_path: Path, parts: tuple[bytes, ...]) -> None:
    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    framed = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    refused = decode(exchange(path, lambda channel: channel.sendall(framed)))
    assert refused.failure == f"Refused: {worker.UNKNOWN}"
    assert [line["refused"] for line in egress(tmp_path)] == [refused.failure]


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), SystemExit(2)])
def test_whatever_answering_raises_the_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    monkeypatch.setattr(worker, "_answer", fail)
    assert answered(path, encode(IntroductionRequest())).failure == f"Refused: {worker.UNKNOWN}"
    assert len(egress(tmp_path)) == 1


def test_no_changed_message_ends_the_process(tmp_path: Path, place: Path) -> None:
    serve(write_site(tmp_path), place)
    chance = random.Random(6)
    honest = [encode(asked) for asked in (train(), train(), IntroductionRequest(), SiteNotice("words"))]
    count = 400
    for _ in range(count):
        encoded = changed(chance.choice(honest), chance).with_note(model="mlp", session="1")
        said = decode(call_worker(place, encoded, timeout=0.0, tries=1))
        assert isinstance(said, ReplyEnvelope | Introduction | Acknowledged)
    assert isinstance(decode(call_worker(place, honest[2].with_note(model="mlp"))), Introduction)
    lines = egress(tmp_path)
    assert len(lines) == count + 1  # each has its line
    assert sum("refused" in line for line in lines) > count / 2


@pytest.mark.parametrize("says", [b"", b"\x10", struct.pack("<Q", 1 << 40)])
def test_who_says_nothing_or_too_much_keeps_nobody_out(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """An app that was pinned by mistake could hold the site's one process for ever, past the end of its run."""
    monkeypatch.setattr(worker, "HEARD_WITHIN", 0.5)
    serve(write_site(tmp_path), place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(place))
        silent.sendall(says)
        found: list[Any] = []
        asking = threading.Thread(
            target=lambda: found.append(call_worker(place, encode(IntroductionRequest()).with_note(model="mlp"))),
            daemon=True,
        )
        asking.start()
        asking.join(30)
        assert [type(decode(encoded)) for encoded in found] == [Introduction]


def test_a_socket_that_exists_takes_calls(tmp_path: Path) -> None:
    site_file = write_site(tmp_path / "site")
    for turn in range(30):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / f"sock{turn}"
            threading.Thread(target=worker.serve, args=(site_file, place), daemon=True).start()
            while not place.exists():
                pass
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.connect(str(place))


def test_without_the_sites_process_nobody_answers(place: Path) -> None:
    with pytest.raises(RunError, match="does not answer"):
        call_worker(place, encode(IntroductionRequest()), timeout=0.0)


def test_nothing_is_sent_after_a_message_s_last_byte() -> None:
    """Whoever has read a message without tensors may answer and hang up; to send it zero bytes more then fails."""
    sent: list[bytes] = []

    class Channel:
        def sendall(self, data: bytes) -> None:
            sent.append(data)

    send_message(Channel(), encode(IntroductionRequest()))  # type: ignore[arg-type]
    assert all(sent) and sent[-1] == b"\0" * 8  # the last part is empty: its size, and that is all


def test_a_process_that_is_being_started_is_waited_for(tmp_path: Path, place: Path) -> None:
    path = write_site(tmp_path)
    threading.Timer(0.3, serve, (path, place)).start()
    assert isinstance(decode(call_worker(place, encode(IntroductionRequest()).with_note(model="mlp"))), Introduction)


def test_a_request_that_ends_the_process_each_time_is_given_up(place: Path) -> None:
    calls = 0

    def hang_up() -> None:
        nonlocal calls
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(place))
            listener.listen()
            for _ in range(2):
                listener.accept()[0].close()
                calls += 1

    thread = threading.Thread(target=hang_up)
    thread.start()
    wait_until(place.exists, 20, "the socket")
    with pytest.raises(RunError, match="ended over this request"):
        call_worker(place, encode(IntroductionRequest()), timeout=20.0)
    thread.join()
    assert calls == 2


def test_an_ended_process_is_started_again(tmp_path: Path, place: Path) -> None:
    told: list[str] = []
    process = commands.SiteProcess(write_site(tmp_path), place)
    process.start()
    first = process._process
    assert first is not None
    try:
        first.kill()
        first.wait()
        process.keep(told.append)
        assert "started again" in told[0]
        asked = encode(IntroductionRequest()).with_note(model="mlp")
        assert isinstance(decode(call_worker(place, asked)), Introduction)
        process.keep(told.append)
        assert len(told) == 1
    finally:
        assert process._process is not None
        process._process.kill()
        process._process.wait()


def test_flowers_short_lived_process_imports_no_torch() -> None:
    code = "import sys, fedsift.deploy.site.client_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
