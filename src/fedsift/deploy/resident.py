"""A process that runs a Flower program and forks for each program that it starts, instead of starting new Pythons.

    python -m fedsift.deploy.resident SIDE SOCKET PROGRAM OPTIONS...

A SuperNode starts `flwr-clientapp` by its name for every message, a SuperLink `flwr-serverapp` for every run: seconds
of imports each time; and Flower starts a second one when the first has not spoken within half a minute, which on a busy
machine never ends. In the program's path stand a few lines of ours by those names, which hand the command over to the
process that forks. The child runs Flower's own program to its end: one message, one process, as before. Where nobody
answers at the socket, the few lines start Flower's program itself. All of them come from one process that has Flower
loaded, so that a site holds it in memory once, and all are confined as that one is.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedsift.core.files import private_folder
from fedsift.core.process import end_with_parent


@dataclass(frozen=True)
class ForkServer:
    """What is loaded and forked, as `module:function`."""

    main: str
    programs: Mapping[str, str]
    """By the names that Flower starts them by."""
    ours: str
    """What the apps import, loaded by the process that forks."""


SIDES = {
    "site": ForkServer(
        "flwr.supernode.cli:flower_supernode",
        {
            "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
            "flower-superexec": "flwr.supercore.cli:flower_superexec",
        },
        "fedsift.deploy.site.client_app",
    ),
    "coordinator": ForkServer(
        "flwr.superlink.cli:flower_superlink",
        {"flwr-serverapp": "flwr.superlink.cli:flwr_serverapp"},
        "fedsift.deploy.coordinator.server_app",
    ),
}
LONGEST_FIRST_LINE = 200
"""Linux reads so much of a script's first line, and a little more."""
LARGEST_CALL = 1 << 20

SCRIPT = """\
#!{python} -IS
import json, os, socket, sys
try:
    line = socket.socket(socket.AF_UNIX)
    line.connect({place!r})
    line.sendall(json.dumps([dict(os.environ), {name!r}, *sys.argv[1:]]).encode() + b"\\n")
    code = line.recv(16)
except OSError:
    code = b""
if not code:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
sys.exit(int(code))
"""


def resident_program(side: str, folder: Path, place: Path) -> Path | None:
    """Write the few lines into a folder for the program's path; None where Flower's own must do."""
    for name in SIDES[side].programs:
        real = Path(sys.executable).parent / name
        found = str(real) if real.is_file() else shutil.which(name)
        if found is None or len(sys.executable) > LONGEST_FIRST_LINE:
            return None
        file = private_folder(folder) / name
        text = SCRIPT.format(python=sys.executable, place=str(place), real=found, name=name)
        file.write_text(text, "utf-8")
        file.chmod(0o700)
    return folder


def run_beside(side: ForkServer, place: Path, command: list[str]) -> None:
    """Load Flower once, leave a process behind that forks for every command, and be the long-lived program."""
    main = _function(side.main)
    programs = {name: _function(where) for name, where in side.programs.items()}
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place))
        place.chmod(0o600)
        listener.listen(16)  # from here on calls wait for an answer, so none starts a Python of its own
        gc.collect()
        gc.freeze()  # what is loaded stays where it is: a collection that moves marks would copy every page
        if os.fork() == 0:
            end_with_parent()
            importlib.import_module(side.ours)  # so that the app's own import finds everything loaded
            serve(listener, programs)
    sys.argv = command
    main()


def _function(where: str) -> Callable[[], object]:
    module, _, name = where.partition(":")
    found: Callable[[], object] = getattr(importlib.import_module(module), name)
    return found


def serve(listener: socket.socket, programs: Mapping[str, Callable[[], object]]) -> NoReturn:
    """Fork for every command until the parent is gone; the child's exit code goes back when it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children here: each reports for itself
    while True:
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run_program(channel, programs)
        channel.close()


def _run_program(channel: socket.socket, programs: Mapping[str, Callable[[], object]]) -> None:
    """In the child: run the program, report its exit code, end."""
    code = 1
    try:
        end_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        environment, sys.argv = _call(channel)
        _call_oneself(sys.argv[0])
        os.environ.clear()
        os.environ.update(environment)
        programs[sys.argv[0]]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print(f"{sys.argv[0]}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        try:
            channel.sendall(str(code).encode())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _call_oneself(name: str) -> None:
    """The name that lists of processes show."""
    set_name = 15
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_name, name.encode()[:15])


def _call(channel: socket.socket) -> tuple[dict[str, str], list[str]]:
    """Environment and command from one line of JSON; a client that reaches the socket has the same rights anyway."""
    data = b""
    while not data.endswith(b"\n") and len(data) < LARGEST_CALL:
        part = channel.recv(65536)
        if not part:
            break
        data += part
    environment, *command = json.loads(data)
    return {str(key): str(value) for key, value in environment.items()}, [str(item) for item in command]


if __name__ == "__main__":
    run_beside(SIDES[sys.argv[1]], Path(sys.argv[2]), sys.argv[3:])
