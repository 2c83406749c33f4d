"""The process that stays at a site: same answers, gone with its node, and nothing lost without it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedsift.contract.codec import digest_of
from fedsift.contract.errors import RunError
from fedsift.contract.messages import Answer
from fedsift.deploy import commands, worker
from fedsift.deploy.sites import open_site
from fedsift.deploy.wire import call_worker, send_letter
from fedsift.engines.flower.answering import answer, answer_letter
from fedsift.engines.flower.hello import Hello, Introduction
from fedsift.engines.flower.letters import Letter
from fedsift.engines.flower.records import letter_of, value_of

from .processes import wait_until
from .test_sites import train, write_site


@pytest.fixture
def door() -> Iterator[Path]:
    """A short path: sockets allow about a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "door"


def serve(site_file: Path, door: Path) -> None:
    threading.Thread(target=worker.serve, args=(site_file, door), daemon=True).start()
    wait_until(door.exists, 20, "the site's socket")


def test_the_worker_answers_as_the_site_itself_would(tmp_path: Path, door: Path) -> None:
    serve(write_site(tmp_path / "a"), door)
    for asked in (Hello(), train()):
        letter = letter_of(asked).with_note(model="mlp", session="1")
        reply = call_worker(door, letter)
        path = write_site(tmp_path / f"b-{type(asked).__name__}")
        direct = answer_letter(letter, lambda model, path=path: open_site(path, model), "1", frank=False)  # type: ignore[misc]
        assert digest_of(value_of(reply)) == digest_of(value_of(direct))
    assert (tmp_path / "a" / "notebook" / "north" / "runs" / "run" / "0.0.answer").is_file()


def test_the_answer_does_not_depend_on_the_callers_threads(tmp_path: Path) -> None:
    # the worker's thread had one and the test's two: whether the digests above agreed hung on which tests ran before
    before, digests = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            path = write_site(tmp_path / str(count))
            answered = answer(train(), lambda path=path: open_site(path, "mlp"), "mlp", "1", frank=False)  # type: ignore[misc]
            assert isinstance(answered, Answer) and answered.failure == ""
            digests.append(digest_of(answered))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert len(set(digests)) == 1


def test_the_socket_is_for_this_user_alone(tmp_path: Path, door: Path) -> None:
    serve(write_site(tmp_path), door)
    assert door.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("letter", [Letter("{"), Letter('{"$class": "OnlyTheAppKnows", "fields": {}}')])
def test_a_request_that_the_site_does_not_know_is_refused_and_nobody_else_answers(
    tmp_path: Path, door: Path, letter: Letter
) -> None:
    serve(write_site(tmp_path), door)
    refused = value_of(call_worker(door, letter))
    assert isinstance(refused, Answer)
    assert "Refused: this site does not know" in refused.failure
    again = call_worker(door, letter_of(Hello()).with_note(model="mlp"))
    assert isinstance(value_of(again), Introduction)
    lines = (tmp_path / "notebook" / "north" / "egress.jsonl").read_text("utf-8").splitlines()
    assert [("refused" in json.loads(line)) for line in lines] == [True, False]


def test_a_door_that_is_seen_takes_calls(tmp_path: Path) -> None:
    site_file = write_site(tmp_path / "site")
    for turn in range(30):
        with tempfile.TemporaryDirectory() as folder:
            door = Path(folder) / f"door{turn}"
            threading.Thread(target=worker.serve, args=(site_file, door), daemon=True).start()
            while not door.exists():
                pass
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.connect(str(door))


def test_without_the_sites_process_nobody_answers(door: Path) -> None:
    with pytest.raises(RunError, match="does not answer"):
        call_worker(door, letter_of(Hello()), patience=0.0)


def test_nothing_is_sent_after_a_letter_s_last_byte() -> None:
    """Whoever has read a letter without tensors may answer and hang up; to send it zero bytes more then fails."""
    sent: list[bytes] = []

    class Channel:
        def sendall(self, data: bytes) -> None:
            sent.append(data)

    send_letter(Channel(), letter_of(Hello()))  # type: ignore[arg-type]
    assert all(sent) and sent[-1] == b"\0" * 8  # the last part is empty: its size, and that is all


def test_a_process_that_is_being_started_is_waited_for(tmp_path: Path, door: Path) -> None:
    path = write_site(tmp_path)
    threading.Timer(0.3, serve, (path, door)).start()
    assert isinstance(value_of(call_worker(door, letter_of(Hello()).with_note(model="mlp"))), Introduction)


def test_a_request_that_ends_the_process_each_time_is_given_up(door: Path) -> None:
    calls = 0

    def hang_up() -> None:
        nonlocal calls
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(door))
            listener.listen()
            for _ in range(2):
                listener.accept()[0].close()
                calls += 1

    thread = threading.Thread(target=hang_up)
    thread.start()
    wait_until(door.exists, 20, "the socket")
    with pytest.raises(RunError, match="ended over this request"):
        call_worker(door, letter_of(Hello()), patience=20.0)
    thread.join()
    assert calls == 2


def test_an_ended_process_is_started_again(tmp_path: Path, door: Path) -> None:
    told: list[str] = []
    process = commands.Worker(write_site(tmp_path), door)
    process.start()
    first = process._process
    assert first is not None
    try:
        first.kill()
        first.wait()
        process.keep(told.append)
        assert "started again" in told[0]
        asked = letter_of(Hello()).with_note(model="mlp")
        assert isinstance(value_of(call_worker(door, asked)), Introduction)
        process.keep(told.append)
        assert len(told) == 1
    finally:
        assert process._process is not None
        process._process.kill()
        process._process.wait()


def test_flowers_short_lived_process_imports_no_torch() -> None:
    code = "import sys, fedsift.deploy.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
