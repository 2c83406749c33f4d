"""Between Flower's short-lived process and the site's lasting one: letters over a local socket that only this user
can open. This module imports no torch."""

from __future__ import annotations

import json
import logging
import socket
import struct
from pathlib import Path

from fedsift.engines.flower.letters import Letter

log = logging.getLogger("fedsift.site")

DECLINED = "declined"
"""The note of an empty letter: the worker does not know this kind of request; answer it yourself."""
_SIZE = struct.Struct("<Q")


def send_letter(channel: socket.socket, letter: Letter) -> None:
    for part in (json.dumps(letter.note).encode(), letter.tree.encode(), letter.tensors):
        channel.sendall(_SIZE.pack(len(part)))
        channel.sendall(part)


def receive_letter(channel: socket.socket) -> Letter:
    """Raises OSError when the other side ends in the middle."""
    note, tree, tensors = (_part(channel) for _ in range(3))
    return Letter(tree.decode(), bytes(tensors), json.loads(note.decode()))


def _part(channel: socket.socket) -> bytearray:
    return _exactly(channel, _SIZE.unpack(_exactly(channel, _SIZE.size))[0])


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        count = channel.recv_into(view[filled:])
        if count == 0:
            raise ConnectionError("the other side is gone")
        filled += count
    return data


def call_worker(path: Path, letter: Letter) -> Letter | None:
    """The worker's answer; None when there is no worker, it died, or it does not know the request."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.connect(str(path))
            send_letter(channel, letter)
            reply = receive_letter(channel)
    except FileNotFoundError:  # there is none
        return None
    except OSError as error:
        log.warning("the site's own process did not answer (%s): this one does", error)
        return None
    return None if DECLINED in reply.note else reply
