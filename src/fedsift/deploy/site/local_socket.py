"""Messages between Flower's short-lived process and the site's worker, over a local socket that only this user can
open. This module imports no torch."""

from __future__ import annotations

import json
import logging
import math
import socket
import struct
import time
from pathlib import Path

from fedsift.core.errors import RunError
from fedsift.transports.remote.messages import EncodedMessage, parsed

log = logging.getLogger("fedsift.site")

STARTS_WITHIN = 120.0
"""Seconds in which a worker that ended is up again, on a busy machine."""
LOOK_AGAIN = 0.2
SMALL = 1 << 16
"""Bytes of a part that travels with its size; a longer one is not copied for that."""
LARGEST = 4 * 2**30
"""Bytes of a part; the site's gateway lets no larger message through either."""
_SIZE = struct.Struct("<Q")


def send_message(channel: socket.socket, message: EncodedMessage) -> None:
    for part in (json.dumps(message.note).encode(), message.tree.encode(), message.tensors):
        # one call a part: to send nothing after the last size would find the other side gone, having read and answered
        channel.sendall(_SIZE.pack(len(part)) + part if len(part) < SMALL else _SIZE.pack(len(part)))
        if len(part) >= SMALL:
            channel.sendall(part)


def receive_message(channel: socket.socket, within: float = math.inf) -> EncodedMessage:
    """Raises OSError when the other side ends in the middle or takes longer than `within` seconds, ValueError on what
    `send_message` does not send."""
    end = time.monotonic() + within
    note, tree, tensors = (_part(channel, end) for _ in range(3))
    words = parsed(note.decode())
    if not isinstance(words, dict) or not all(isinstance(word, str) for word in words.values()):
        raise ValueError("the words beside a message are no texts by name")
    return EncodedMessage(tree.decode(), bytes(tensors), words)


def _part(channel: socket.socket, end: float) -> bytearray:
    size = _SIZE.unpack(_exactly(channel, _SIZE.size, end))[0]
    if size > LARGEST:
        raise ValueError(f"a part of a message says that it has {size} bytes")
    return _exactly(channel, size, end)


def _exactly(channel: socket.socket, size: int, end: float) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        if end < math.inf:
            channel.settimeout(max(1e-3, end - time.monotonic()))
        count = channel.recv_into(view[filled:])
        if count == 0:
            raise ConnectionError("the other side is gone")
        filled += count
    return data


def call_worker(path: Path, message: EncodedMessage, timeout: float = STARTS_WITHIN, tries: int = 2) -> EncodedMessage:
    """The worker's answer. One that is being started again is waited for; raises RunError when none comes.

    `tries`: how often a message is sent; one that ends the worker each time must not do so for ever.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.connect(str(path))
                try:
                    send_message(channel, message)
                    return receive_message(channel)
                except OSError as error:
                    tries -= 1
                    log.warning("the site's own process did not answer (%s)", error)
        except OSError as error:  # not there, or not yet
            if time.monotonic() >= end:
                raise RunError(f"the site's own process does not answer ({error})") from None
        if tries < 1:
            raise RunError("the site's own process ended over this request; its log says more")
        time.sleep(LOOK_AGAIN)
