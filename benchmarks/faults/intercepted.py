"""All that a site's process hands out in deployed runs, read on its way: declared fields alone, no small count."""

from __future__ import annotations

import os
import socket
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.faults.references import app_of, lost, reference
from benchmarks.faults.row import PROCESSES, Row
from benchmarks.faults.stand import WORKER, NotSeen, Stand
from benchmarks.faults.studies import study_of

import fedsift.methods  # noqa: F401  every message must be known by its class to be read
from fedsift.deploy.app import narrowest_policy
from fedsift.deploy.site.local_socket import call_worker, receive_message, send_message
from fedsift.deploy.site.policy import fields_in, small_counts
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.transports.remote.encoding import decode
from fedsift.transports.remote.introduction import Acknowledged, Introduction
from fedsift.transports.remote.messages import EncodedMessage

FLOOR = 10


Change = Callable[[EncodedMessage, EncodedMessage], EncodedMessage]
"""What was asked and what the site answered, to what is passed on."""


def unchanged(asked: EncodedMessage, answered: EncodedMessage) -> EncodedMessage:
    return answered


class Tap:
    """Stands between Flower's processes and the site's own, and reads every message of both directions."""

    def __init__(self, place: Path, change: Change) -> None:
        self._change = change
        self._real = place.with_name("tapped")
        self.answers: list[Any] = []
        self.unread = 0
        self._gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._place = place
        place.rename(self._real)
        self._gateway.bind(str(place))
        self._gateway.listen(16)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                channel, _ = self._gateway.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(channel,), daemon=True).start()

    def _carry(self, channel: socket.socket) -> None:
        with channel, suppress(OSError):
            asked = receive_message(channel)
            reply = self._change(asked, call_worker(self._real, asked))
            try:
                self.answers.append(decode(reply))
            except ValueError:
                self.unread += 1
            send_message(channel, reply)

    def close(self) -> None:
        self._gateway.close()
        with suppress(OSError):
            os.replace(self._real, self._place)


@contextmanager
def tapped(stand: Stand, changes: Mapping[str, Change] = MappingProxyType({})) -> Iterator[dict[str, Tap]]:
    """Taps at all sites; at those that `changes` names, answers are changed on their way."""
    taps = {}
    for site in stand.sites:
        workers = stand.pids_of(site, WORKER)
        if not workers:
            raise NotSeen(f"the process of {site}")
        command = Path(f"/proc/{workers[0]}/cmdline").read_text("utf-8").split("\0")
        taps[site] = Tap(Path(command[command.index(WORKER) + 2]), changes.get(site, unchanged))
    try:
        yield taps
    finally:
        for tap in taps.values():
            tap.close()


def every_message(stand: Stand, method: str) -> Iterator[Row]:
    usual = reference(stand, method)
    study = study_of(method, stand.trial.out)
    policy = narrowest_policy(study)
    allowed = set(tomllib.loads(policy)["policy"]["fields"])
    kept = {file: file.read_text("utf-8") for file in stand.trial.sites.values()}
    for file, text in kept.items():
        without = "\n".join(line for line in policy.splitlines() if not line.startswith("min_count"))
        file.write_text(f"{text}\n{without}\nmin_count = {FLOOR}\n", "utf-8")
    app, began = app_of(stand, method), time.monotonic()
    try:
        with tapped(stand) as taps:
            run = stand.start(app)
            code = run.end()
    finally:
        for file, text in kept.items():
            file.write_text(text, "utf-8")
    answers = [answer for tap in taps.values() for answer in tap.answers]
    replies = [answer.reply for answer in answers if isinstance(answer, ReplyEnvelope) and answer.reply is not None]
    refused = sum(isinstance(answer, ReplyEnvelope) and answer.reply is None for answer in answers)
    strange = Counter(
        type(a).__name__ for a in answers if not isinstance(a, ReplyEnvelope | Introduction | Acknowledged)
    )
    fields = Counter(field for reply in replies for field in fields_in(reply))
    small = Counter(field for reply in replies for field in small_counts(reply, FLOOR))
    undeclared = sorted(set(fields) - allowed)
    unread = sum(tap.unread for tap in taps.values())
    yield Row(
        name=f"messages read, {method}",
        fault=f"{method}: every message that leaves a site's process is read on its way, "
        f"policy with a minimum count of {FLOOR}",
        how=PROCESSES,
        expected="fields that the method declares and no others, no count below the minimum, "
        "no message of another kind",
        outcome=f"exit code {code}; {len(replies)} replies with {len(fields)} fields, {len(undeclared)} undeclared, "
        f"{sum(small.values())} small counts, {refused} refusals, {unread + sum(strange.values())} of another kind",
        passed=code == 0 and bool(replies) and not (undeclared or small or strange or unread),
        said=", ".join(sorted(fields)),
        **lost(run, began, usual),
    )
