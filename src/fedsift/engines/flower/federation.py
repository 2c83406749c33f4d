"""A federation whose sites are Flower nodes. Flower carries messages; the loop, the gate and the state are ours."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsift import __version__
from fedsift.contract.errors import ConfigError, QuorumError
from fedsift.contract.messages import Answer, Envelope
from fedsift.contract.plaintext import short
from fedsift.engines.federation import EngineFederation, Simulation, kinds_of
from fedsift.engines.flower.absence import Absences, Teller
from fedsift.engines.flower.hello import (
    Hello,
    Introduction,
    Notice,
    Vacant,
    disagreement,
    unsound,
)
from fedsift.engines.flower.letters import MESSAGE_TYPE, size_of_records
from fedsift.engines.flower.records import Packer, unpack
from fedsift.local.site import Samples

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

    def admits(self, node: int) -> bool:
        """Whether this node receives anything at all."""
        return True

    def objection(self, node: int, own: Introduction) -> str | None:
        """Why this node may not speak as the site that it says it is, or None."""
        return None


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
        self.accept: Callable[[Introduction], str | None] = lambda introduction: None
        self.keeper = Doorkeeper()
        self.absences = Absences(clock)
        self.teller = Teller()
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

    def collect(self, ids: set[str]) -> list[tuple[str, Message]]:
        """Answers that have come to any of these messages, with the message's id."""
        if not ids:
            return []
        return [
            (message.metadata.reply_to_message_id, message) for message in self.grid.pull_messages(list(ids))
        ]

    def meet(self) -> list[str]:
        """Greet nodes not met before and hear those that answer; the sites that are new or have moved."""
        if self.clock() >= self._next_look:
            self._next_look = self.clock() + self.pace.look_for_nodes
            nodes = {node for node in self.grid.get_node_ids() if self.keeper.admits(node)}
            self.absences.left(site for site, node in self.node_of.items() if node not in nodes)
            self.node_of = {site: node for site, node in self.node_of.items() if node in nodes}
            # a node that left and returns under its id is met again
            self._greeted = {node: when for node, when in self._greeted.items() if node in nodes}
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
            self._greetings = {other: to for other, to in self._greetings.items() if to != speaker}
            site = self._hear(speaker, message)
            if site is not None:
                arrived.append(site)
        return arrived

    def _to_greet(self, node: int) -> bool:
        """New nodes, and those whose greeting came to nothing: e.g. a site that had not pinned the app by then."""
        when = self._greeted.get(node)
        silent = when is not None and node in self._greetings.values()
        return when is None or (silent and self.clock() - when >= self.pace.ask_again)

    def _hear(self, node: int, message: Message) -> str | None:
        letter = _read(message)
        if isinstance(letter, Vacant):
            return None
        if not isinstance(letter, Introduction):
            if _lost(message):
                self._greeted.pop(node, None)  # it may answer when it is back
            said = letter.failure if isinstance(letter, Answer) else letter
            words = said if isinstance(said, str) else f"it introduced itself by a {type(said).__name__}"
            self._refuse(f"node {node}", words)
            return None
        reason = unsound(letter)
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

    def tell(self, node: int, words: str) -> None:
        """Tell a site why it cannot take part: the person there can mend it. Nobody waits for the answer."""
        self.send(node, Packer().pack(Notice(short(words)), **self.note))

    def _refuse(self, who: str, reason: str) -> None:
        self.refused[who] = short(reason)
        log.warning("%s cannot take part: %s", who, self.refused[who])


REPLY_ROOM = 16 * 2**20
"""Bytes that any answer may have; one with models may have four times the request's besides."""


def _read(message: Message, asked: RecordDict | None = None) -> Any:
    """The letter in a message; for an error, the words for it. One far longer than what was asked is not decoded."""
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


def _lost(message: Message) -> bool:
    return bool(message.has_error()) and message.error.code in COMES_BACK


@dataclass
class Errand:
    """One envelope on its way, until it is answered."""

    envelope: Envelope
    content: RecordDict
    node: int | None = None
    """Where it was sent last; None while the site has no node or its message was lost."""
    due: float = 0.0
    """When to send it again."""
    patience: float = 0.0
    trouble: str = ""


class FlowerFederation(EngineFederation):
    """Serves requests by Flower messages, one for each site, from sites that already introduced themselves."""

    def __init__(
        self,
        post: Post,
        roster: Mapping[str, Introduction],
        *,
        test: tuple[Samples, Tensor] | None = None,
        seen: Callable[[Mapping[str, str]], Simulation] | None = None,
        **shared: Any,
    ) -> None:
        """`roster`: the sites of this run, in the federation's order; some may be away for now.

        `test`: labelled samples of the coordinator's own. `seen`: what a simulation knows, given the last accepted
        request of each site.
        """
        common = next(iter(roster.values()))
        super().__init__(
            facts={site: introduction.facts for site, introduction in roster.items()},
            classes=common.classes,
            multilabel=common.multilabel,
            shape=common.shape,
            **shared,
        )
        self.post = post
        self._test, self._seen = test, seen
        ours = replace(common, version=__version__)
        post.accept = lambda own: disagreement(own, ours) or self._unexpected(own)

    @property
    def simulation(self) -> Simulation | None:
        return None if self._seen is None else self._seen(self.accepted)

    def test_set(self) -> tuple[Samples, Tensor] | None:
        return self._test

    def _unexpected(self, own: Introduction) -> str | None:
        """Facts are fixed at the start: counts are checked against them until the end."""
        known = self.facts.get(own.facts.name)
        if known is None:
            return f"site '{own.facts.name}' was not there when the run began"
        return None if known == own.facts else f"site '{known.name}' came back as {own.facts}, it was {known}"

    def deliver(self, envelopes: Mapping[str, Envelope], deadline: float) -> Mapping[str, Answer]:
        post, clock, packer = self.post, self.post.clock, Packer()
        end = clock() + deadline
        post.meet()
        errands = {
            site: Errand(envelope, packer.pack(envelope, **post.note), patience=post.pace.ask_again)
            for site, envelope in envelopes.items()
        }
        grace = min(post.pace.absent, self.patience.grace)
        answers: dict[str, Answer] = {}
        under_way: dict[str, str] = {}
        kinds = kinds_of(envelopes)
        self._tell(errands, grace)
        while clock() < end:
            self.check_stop()
            self._send_due(errands, under_way, end - clock())
            for id, message in post.collect(set(under_way)):
                self._receive(under_way.pop(id), message, errands, answers)
            self.hear((site for site in answers if site not in self.away), kinds)
            if not errands:
                break
            for site in post.meet():
                if site in errands:
                    errands[site].node = None  # it is back, so what it was sent before may be lost
            post.absences.left(site for site in errands if site not in post.node_of)
            if all(post.absences.given_up(site, grace) for site in errands):
                break
            self._tell(errands, grace)
            post.rest()
        post.teller.done(f"round {self.round.count}: the coordinator computes")
        for site, errand in errands.items():
            answers[site] = _failed(errand.envelope, errand.trouble or self._silence(site, deadline))
            self.away.add(site)
        return answers

    def _tell(self, errands: Mapping[str, Errand], grace: float) -> None:
        """Whom this round waits for."""
        waiting = {}
        for site in errands:
            gone = self.post.absences.seconds(site)
            waiting[site] = (
                "asked" if gone is None else f"gone for {gone:.0f} s, given up after {grace:.0f} s"
            )
        asked = " and ".join(sorted({type(errand.envelope.request).__name__ for errand in errands.values()}))
        self.post.teller.tell(f"round {self.round.count} ({self.round.stage}): answers to {asked}", waiting)

    def _send_due(self, errands: Mapping[str, Errand], under_way: dict[str, str], left: float) -> None:
        """Send what was not sent yet, what is to go to another node by now, and what has waited too long."""
        now = self.post.clock()
        for site, errand in errands.items():
            node = self.post.node_of.get(site)
            if node is None or (node == errand.node and now < errand.due):
                continue
            if node == errand.node:
                errand.patience *= 2
            id = self.post.send(node, errand.content, left)
            if id is not None:
                under_way[id] = site
                errand.node, errand.due = node, now + errand.patience

    def _receive(
        self, site: str, message: Message, errands: dict[str, Errand], answers: dict[str, Answer]
    ) -> None:
        if site not in errands:
            return  # the copy of a request that was answered already
        letter = _read(message, errands[site].content)
        if isinstance(letter, Answer):
            answers[site] = letter
            del errands[site]
            self.post.absences.returned(site)
        elif _lost(message):
            self.post.absences.left([site])
            errands[site].trouble = str(letter)
            errands[site].due = self.post.clock() + self.post.pace.look_for_nodes
        else:
            envelope = errands.pop(site).envelope
            words = letter if isinstance(letter, str) else f"the node answered with {type(letter).__name__}"
            answers[site] = _failed(envelope, words)
            self.away.add(site)  # Flower spoke, or a stranger: not the site

    def _silence(self, site: str, deadline: float) -> str:
        if site in self.post.refused:
            return self.post.refused[site]
        if site not in self.post.node_of:
            return "the site has no node: it is not connected"
        return f"no reply within {deadline:.0f} s"


def _failed(envelope: Envelope, reason: str) -> Answer:
    return Answer(envelope.run, envelope.site, envelope.moment.id, None, reason)


def gather(
    post: Post, wanted: Sequence[str], *, at_least: int, wait: float, settle: float = math.inf
) -> list[str]:
    """Wait until the wanted sites have introduced themselves, or until the time is over and there are enough.

    `settle`: seconds for which the others are waited for once there are enough. Returns the sites in the federation's
    order: as wanted, or by name when none is named.
    """
    end, enough = post.clock() + wait, False
    here: list[str] = []
    while True:
        post.meet()
        here = [site for site in (wanted or sorted(post.introductions)) if site in post.introductions]
        if len(here) >= (len(wanted) or at_least) or post.clock() >= end:
            break
        if len(here) >= at_least and not enough:
            enough, end = True, min(end, post.clock() + settle)
        awaited = [site for site in wanted if site not in here] or [f"{max(0, at_least - len(here))} more"]
        words = {site: post.refused.get(site, "not here yet") for site in awaited}
        post.teller.tell("sites to join", words, here=here, refused=dict(list(post.refused.items())[:5]))
        post.rest()
    post.teller.done("the run begins")
    needed = max(1, at_least)
    if len(here) < needed:
        reasons = "; ".join(f"{who}: {reason}" for who, reason in list(post.refused.items())[:3])
        missing = ", ".join(site for site in wanted if site not in here) or f"{needed - len(here)} more"
        raise QuorumError(
            f"only {len(here)} of at least {needed} sites joined within {wait:.0f} s, missing: {missing}"
            f"{f' ({reasons})' if reasons else ''}. Start their nodes, then resume"
        )
    return here


def agree(roster: Mapping[str, Introduction], post: Post | None = None) -> None:
    """Refuse sites that do not speak of the same classes, shape and normalisation, or run another fedsift.

    `post`: tells those that differ why, at their side.
    """
    common = replace(next(iter(roster.values())), version=__version__)
    reasons = {site: reason for site, own in roster.items() if (reason := disagreement(own, common))}
    for site, reason in reasons.items():
        if post is not None and site in post.node_of:
            post.tell(post.node_of[site], reason)
    if reasons:
        raise ConfigError("; ".join(list(reasons.values())[:3]))
