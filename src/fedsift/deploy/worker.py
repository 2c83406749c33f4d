"""The process that stays at a deployed site: it holds the data in memory and answers what Flower's processes bring.

    python -m fedsift.deploy.worker SITE.toml SOCKET

It ends with the process that started it, and is started again if it ends before. Losing it loses nothing: what it
answered is on disk. No other process of a site opens its data or its notebook.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.contract.errors import ConfigError
from fedsift.contract.messages import Answer, Envelope
from fedsift.deploy.policy import Policy, allowed_runs, note_reply
from fedsift.deploy.private import keep_to_oneself, private_folder
from fedsift.deploy.site_file import SiteFile, egress_of, notebook_of, read_site_file
from fedsift.deploy.sites import open_site
from fedsift.deploy.wire import receive_letter, send_letter
from fedsift.engines.flower.answering import answer
from fedsift.engines.flower.letters import Letter
from fedsift.engines.flower.records import letter_of, value_of

log = logging.getLogger("fedsift.site")


def serve(site_file: Path, place: Path) -> None:
    """Answer letters one after the other until this process is ended."""
    file = read_site_file(site_file)
    private_folder(notebook_of(site_file, file))
    load_plugins(file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        # The name appears only when calls are taken: whoever sees the door may knock.
        unfinished = place.with_name(f"{place.name}.new")
        unfinished.unlink(missing_ok=True)
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
                except (
                    ConfigError
                ) as error:  # the site's file is being edited: nothing leaves without its policy
                    log.warning("no answer: %s", error)


def load_plugins(file: SiteFile) -> None:
    """Import what the site's own file names: a method of one's own must be installed where it is answered."""
    for name in file.plugins:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"site '{file.name}': the plugin '{name}' cannot be imported: {error}"
            ) from None


def _reply(letter: Letter, site_file: Path) -> Letter:
    """The site's answer: its policy stands before the work and, as the last step, before what leaves."""
    file = read_site_file(site_file)
    asked: Any = None
    try:
        asked = value_of(letter)
        answered = _answer(asked, letter.note, file, site_file)
    except Exception as error:  # a request that this process does not know, or a notebook with such pages
        log.warning("refused: %s", error)
        answered = _refusal(
            asked, "this site does not know what it was asked; it runs another version, or no plugin"
        )
    reply = letter_of(answered)
    note_reply(egress_of(site_file, file), asked, answered, reply)
    return reply


def _answer(asked: Any, note: Mapping[str, str], file: SiteFile, site_file: Path) -> Any:
    policy, model = file.policy, note.get("model", "")
    allowed = allowed_runs(notebook_of(site_file, file)) if policy and policy.ask_first else frozenset()
    reason = policy.objection_to_request(asked, allowed) if policy else None
    if reason is not None:
        log.warning("refused: %s%s", reason, _way_out(asked, policy))
        return _refusal(asked, reason)
    answered = answer(asked, lambda: open_site(site_file, model), model, note.get("session", ""), frank=False)
    reply = answered.reply if isinstance(answered, Answer) else answered
    reason = policy.objection_to_reply(reply) if policy and reply is not None else None
    if reason is not None:
        log.warning("refused: %s", reason)
        return _refusal(asked, reason)
    return answered


def _way_out(asked: Any, policy: Policy | None) -> str:
    if policy is None or not policy.ask_first or not isinstance(asked, Envelope):
        return ""
    return f". To let it in: fedsift flower allow {asked.run!r} site.toml"


def _refusal(asked: Any, reason: str) -> Answer:
    if isinstance(asked, Envelope):
        return Answer(asked.run, asked.site, asked.moment.id, None, f"Refused: {reason}")
    return Answer("", "", "", None, f"Refused: {reason}")


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
