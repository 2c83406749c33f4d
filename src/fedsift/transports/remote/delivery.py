"""Messages on their way through Flower, and which node is which site."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsift.core.text import short
from fedsift.protocol.messages import Answer
from fedsift.transports.flower.mailbox import Mailbox, Spoilt
from fedsift.transports.remote.absence import Absences, Teller
from fedsift.transports.remote.introduction import Hello, Introduction, Notice, Vacant, unsound
from fedsift.transports.remote.messages import MESSAGE_TYPE, Packer, size_of_records, unpack

log = logging.getLogger("fedsift.coordinator")

COMES_BACK = frozenset({3, 4, 5, 8})
"""Flower's error codes of messages and nodes that got lost or crashed; others will not mend by asking again."""


CLOCKS_DIFFER = 3600.0
"""Flower drops a message after its lifetime by each machine's own clock, so lifetimes are an hour longer."""


@dataclass(frozen=True)
class Pace:
    """How often the coordinator looks, in seconds."""

    poll: float = 0.2
    """Between two looks for answers."""
    look_for_nodes: float = 3.0
    """Between two looks for nodes that joined or came back."""
    ask_again: float = 60.0
    """Without an answer the same request is sent again after this time, then twice it, four times, and so on."""
    absent: float = math.inf
    """A site that is gone is waited for no longer than this, nor than the study's `federation.grace`."""


SIMULATED = Pace(poll=0.02, look_for_nodes=1.0, ask_again=600.0, absent=5.0)


class Doorkeeper:
    """Which nodes may take part, and as whom. This one trusts what they say, as in a simulation or a trial."""

    def names(self) -> tuple[str, ...]:
        """Sites that may take part, where that is known."""
        return ()

    def admits(self, node: int) -> bool:
        """Whether this node receives anything at all."""
        return True

    def arrivals(self, node: int) -> int:
        """How often this node has come: one that came again, under its old number, has lost what it was sent."""
        return 0

    def objection(self, node: int, own: Introduction) -> str | None:
        """Why this node may not speak as the site that it says it is, or None."""
        return None

    def share(self, site: str) -> float:
        """The most that this site's size may count for among a round's replies; 1: no bound."""
        return 1.0


class Post:
    """Messages on their way, and which node is which site."""

    def __init__(
        self,
        grid: Grid,
        note: Mapping[str, str],
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.note, self.pace = grid, dict(note), pace or Pace()
        self.clock, self._sleep = clock, sleep
        self.introductions: dict[str, Introduction] = {}
        self.node_of: dict[str, int] = {}
        """The node that last introduced itself as that site: a restarted one may have a new id."""
        self.refused: dict[str, str] = {}
        """Nodes that cannot take part, by site or node, with the reason."""
        self.aside: dict[str, str] = {}
        """Sites that lost their place because they differ from the others, with the reason."""
        self.accept: Callable[[Introduction], str | None] = lambda introduction: None
        self.keeper = Doorkeeper()
        self.networks: Collection[str] = ()
        """Those that the study names: a site may train them, or a registered one."""
        self.absences = Absences(clock)
        self.teller = Teller()
        self.mailbox = Mailbox(grid, clock)
        self._arrivals: dict[int, int] = {}
        self._greeted: dict[int, float] = {}
        self._greetings: dict[str, int] = {}
        self._next_look = 0.0

    def rest(self) -> None:
        self._sleep(self.pace.poll)

    def send(self, node: int, content: RecordDict, lifetime: float = 0.0) -> str | None:
        """Hand one message to Flower; its id, or None if Flower did not take it."""
        message = Message(content, dst_node_id=node, message_type=MESSAGE_TYPE, ttl=lifetime + CLOCKS_DIFFER)
        ids = [id for id in self.grid.push_messages([message]) if id]
        return ids[0] if ids else None

    def collect(self, ids: set[str]) -> list[tuple[str, Message | Spoilt]]:
        """Answers that have come to any of these messages, with the message's id."""
        return self.mailbox.look(ids) if ids else []

    def meet(self) -> list[str]:
        """Greet nodes not met before and hear those that answer; the sites that are new or have moved."""
        if self.clock() >= self._next_look:
            self._next_look = self.clock() + self.pace.look_for_nodes
            nodes = {node for node in self.grid.get_node_ids() if self.keeper.admits(node)}
            same = nodes - self._come_again(nodes)
            self.absences.left(site for site, node in self.node_of.items() if node not in same)
            self.node_of = {site: node for site, node in self.node_of.items() if node in same}
            # a node that left and returns under its id is met again
            self._greeted = {node: when for node, when in self._greeted.items() if node in same}
            for node in sorted(node for node in nodes if self._to_greet(node)):
                sent = self.send(node, Packer().pack(Hello(), **self.note))
                if sent is not None:
                    self._greetings[sent] = node
                    self._greeted[node] = self.clock()
        arrived = []
        for id, message in self.collect(set(self._greetings)):
            speaker = self._greetings.get(id)
            if speaker is None:
                continue  # this node has answered another greeting
            self.mailbox.forget(other for other, to in self._greetings.items() if to == speaker)
            self._greetings = {other: to for other, to in self._greetings.items() if to != speaker}
            site = self._hear(speaker, message)
            if site is not None:
                arrived.append(site)
        return arrived

    def _come_again(self, nodes: set[int]) -> set[int]:
        """Nodes that were started again since the last look; Flower shows them as if they had been here all along."""
        before, self._arrivals = self._arrivals, {node: self.keeper.arrivals(node) for node in nodes}
        return {node for node, times in self._arrivals.items() if before.get(node, times) != times}

    def _to_greet(self, node: int) -> bool:
        """New nodes, and those whose greeting came to nothing: e.g. a site that had not pinned the app by then."""
        when = self._greeted.get(node)
        silent = when is not None and node in self._greetings.values()
        return when is None or (silent and self.clock() - when >= self.pace.ask_again)

    def _hear(self, node: int, message: Message | Spoilt) -> str | None:
        letter = read_reply(message)
        if isinstance(letter, Vacant):
            return None
        if not isinstance(letter, Introduction):
            if lost(message):
                self._greeted.pop(node, None)  # it may answer when it is back
            said = letter.failure if isinstance(letter, Answer) else letter
            words = said if isinstance(said, str) else f"it introduced itself by a {type(said).__name__}"
            self._refuse(f"node {node}", words)
            return None
        reason = unsound(letter, self.networks)
        if reason is not None:
            self._refuse(f"node {node}", reason)
            return None
        site = letter.facts.name
        objection = self.keeper.objection(node, letter)
        if objection is not None:  # by its node: the name may be another's, who does take part
            self._refuse(f"node {node}", objection)
            self.tell(node, objection)
            return None
        reason = self.accept(letter)
        if reason is not None:
            self._refuse(site, reason)
            self.tell(node, reason)
            return None
        self.introductions[site] = letter
        self.node_of[site] = node
        self.absences.returned(site)
        self.refused.pop(site, None)
        return site

    def set_aside(self, site: str, reason: str) -> None:
        """Take a site's place from it: the person there is told why, and so is the one here."""
        self.introductions.pop(site, None)
        node = self.node_of.pop(site, None)
        if node is not None:
            self.tell(node, reason)
        self._refuse(site, reason)
        self.aside[site] = self.refused[site]

    def tell(self, node: int, words: str) -> None:
        """Tell a site why it cannot take part: the person there can mend it. Nobody waits for the answer."""
        self.send(node, Packer().pack(Notice(short(words)), **self.note))

    def _refuse(self, who: str, reason: str) -> None:
        self.refused[who] = short(reason)
        log.warning("%s cannot take part: %s", who, self.refused[who])


REPLY_ROOM = 16 * 2**20
"""Bytes that any answer may have; one with models may have four times the request's besides."""


def read_reply(message: Message | Spoilt, asked: RecordDict | None = None) -> Any:
    """The letter in a message; for an error, the words for it. One far longer than what was asked is not decoded."""
    if isinstance(message, Spoilt):
        return message.reason
    if message.has_error():
        return f"Flower reports error {message.error.code}: {message.error.reason or 'no reason given'}"
    try:
        most = REPLY_ROOM + (0 if asked is None else 4 * size_of_records(asked))
        size = size_of_records(message.content)
        if size > most:
            return f"the reply has {size} bytes, {most} are the most for what was asked"
        return unpack(message.content)
    except Exception as error:  # whoever sent it may have written anything
        return f"the reply cannot be read: {error}"


def lost(message: Message | Spoilt) -> bool:
    if isinstance(message, Spoilt):
        return message.again
    return bool(message.has_error()) and message.error.code in COMES_BACK
