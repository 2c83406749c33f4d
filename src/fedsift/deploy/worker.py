"""The process that stays at a deployed site: it holds the data in memory and answers what Flower's processes bring.

    python -m fedsift.deploy.worker SITE.toml SOCKET

It ends with the process that started it, the site's Flower node. Losing it loses nothing: what it answered is on disk,
and Flower's own process answers in its place.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

from fedsift.deploy.private import keep_to_oneself
from fedsift.deploy.site_file import read_site_file
from fedsift.deploy.sites import open_site
from fedsift.deploy.wire import DECLINED, receive_letter, send_letter
from fedsift.engines.flower.answering import answer_letter
from fedsift.engines.flower.letters import Letter

log = logging.getLogger("fedsift.site")


def serve(site_file: Path, place: Path) -> None:
    """Answer letters one after the other until this process is ended."""
    read_site_file(site_file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        # The name appears only when calls are taken: whoever sees the door may knock.
        unfinished = place.with_name(f"{place.name}.new")
        door.bind(str(unfinished))
        unfinished.chmod(0o600)
        door.listen()
        unfinished.replace(place)
        while True:
            channel, _ = door.accept()
            with channel:
                try:
                    send_letter(channel, _reply(receive_letter(channel), site_file))
                except OSError:
                    log.warning("a request's process ended before it was answered")


def _reply(letter: Letter, site_file: Path) -> Letter:
    try:
        session = letter.note.get("session", "")
        return answer_letter(letter, lambda model: open_site(site_file, model), session, frank=False)
    except Exception as error:  # an app may bring requests that only its own process knows
        log.info("left to Flower's own process: %s", error)
        return Letter("", note={DECLINED: "yes"})


def end_with(parent: int, place: Path) -> None:
    """Leave when the parent has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        shutil.rmtree(place.parent, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    keep_to_oneself()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    end_with(os.getppid(), Path(sys.argv[2]))
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
