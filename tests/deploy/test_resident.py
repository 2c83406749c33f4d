"""The process that forks for every message: Flower's programs find it by their names, and do without it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedsift.deploy import resident
from fedsift.deploy.resident import SIDES, _call, resident_program

CLIENT = "flwr-clientapp"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedsift.deploy.temporary import new_socket

    return new_socket().with_name("forks")


def test_the_few_lines_hand_over_command_and_environment_and_return_the_code(tmp_path: Path, place: Path) -> None:
    import socket

    folder = resident_program("site", tmp_path / "bin", place)
    assert folder is not None
    heard = []

    def answer() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            listener.listen()
            ready.set()
            channel, _ = listener.accept()
            with channel:
                heard.append(_call(channel))
                channel.sendall(b"7")

    ready = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    ready.wait()
    environment = {"MARK": "here", "PATH": os.defpath}
    done = subprocess.run([folder / CLIENT, "--token", "a b"], env=environment, check=False)
    thread.join()
    assert done.returncode == 7
    [(seen, command)] = heard
    assert seen["MARK"] == "here"
    assert command == [CLIENT, "--token", "a b"]


def test_without_the_process_flowers_own_program_runs(tmp_path: Path, place: Path) -> None:
    folder = resident_program("site", tmp_path / "bin", place)
    assert folder is not None
    done = subprocess.run(
        [folder / CLIENT, "--help"], capture_output=True, text=True, env={"PATH": os.defpath}, check=False
    )
    assert done.returncode == 0
    assert "ClientApp" in done.stdout


def test_a_long_path_of_python_needs_flowers_own(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/" + "x" * 300)
    assert resident_program("site", tmp_path / "bin", place) is None
    assert resident.LARGEST_CALL > 10_000


def test_every_program_that_is_forked_is_one_of_flowers_own() -> None:
    pytest.importorskip("flwr")
    for side in SIDES.values():
        assert all(callable(resident._function(where)) for where in (side.main, *side.programs.values()))
