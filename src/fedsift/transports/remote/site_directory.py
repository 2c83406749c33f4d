"""Which node is which site: greets nodes, authorizes them, and records absent and excluded sites."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsift.core.text import short
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.transports.remote.channel import Channel, ReceivedAnswer
from fedsift.transports.remote.introduction import (
    Introduction,
    IntroductionRequest,
    NoSite,
    SiteNotice,
    unsound,
)

log = logging.getLogger("fedsift.coordinator")


@dataclass(frozen=True)
class GreetingIntervals:
    """How often the coordinator looks, in seconds."""

    poll: float = 0.2
    """Between two looks for answers."""
    look_for_nodes: float = 3.0
    """Between two looks for nodes that joined or came back."""
    ask_again: float = 60.0
    """Without an answer the same request is sent again after this time, then twice it, four times, and so on."""
    absent: float = math.inf
    """A site that is gone is waited for no longer than this, nor than the study's `federation.grace`."""


class NodeAuthorizer:
    """Decides which nodes may take part, and as which site. This one trusts what they declare, as in a simulation or a
    trial."""

    def names(self) -> tuple[str, ...]:
        """Sites that may take part, where that is known."""
        return ()

    def admits(self, node: int) -> bool:
        """Whether this node receives anything at all."""
        return True

    def site_of(self, node: int) -> str:
        """The site that this node belongs to, "" where that is not known before it says so."""
        return ""

    def arrivals(self, node: int) -> int:
        """How often this node has come: one that came again, under its old number, has lost what it was sent."""
        return 0

    def objection(self, node: int, own: Introduction) -> str | None:
        """Why this node may not speak as the site that it says it is, or None."""
        return None

    def share(self, site: str) -> float:
        """The most that this site's size may count for among a round's replies; 1: no bound."""
        return 1.0


SILENT_AFTER = 10.0
"""Seconds after which a node that was greeted and has not answered is called silent."""


class SiteDirectory:
    """Which node is which site, whom the coordinator waits for, and who cannot take part."""

    def __init__(
        self,
        channel: Channel,
        pace: GreetingIntervals | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.channel, self.pace = channel, pace or GreetingIntervals()
        self.clock, self._sleep = clock, sleep
        self.introductions: dict[str, Introduction] = {}
        self.node_of: dict[str, int] = {}
        """The node that last introduced itself as that site: a restarted one may have a new id."""
        self.refused: dict[str, str] = {}
        """Nodes that cannot take part, by site or node, with the reason."""
        self.aside: dict[str, str] = {}
        """Sites that lost their place because they differ from the others, with the reason."""
        self.accept: Callable[[Introduction], str | None] = lambda introduction: None
        self.authorizer = NodeAuthorizer()
        self.networks: Collection[str] = ()
        """Those that the study names: a site may train them, or a registered one."""
        self.absences = Absences(clock)
        self.waiting = WaitingReport()
        self._arrivals: dict[int, int] = {}
        self._greeted: dict[int, float] = {}
        self._greetings: dict[str, int] = {}
        self._next_look = 0.0

    def rest(self) -> None:
        self._sleep(self.pace.poll)

    def meet(self) -> list[str]:
        """Greet nodes not met before and hear those that answer; the sites that are new or have moved."""
        if self.clock() >= self._next_look:
            self._next_look = self.clock() + self.pace.look_for_nodes
            nodes = {node for node in self.channel.nodes() if self.authorizer.admits(node)}
            same = nodes - self._restarted(nodes)
            self.absences.left(site for site, node in self.node_of.items() if node not in same)
            self.node_of = {site: node for site, node in self.node_of.items() if node in same}
            # a node that left and returns under its id is met again
            self._greeted = {node: when for node, when in self._greeted.items() if node in same}
            for node in sorted(node for node in nodes if self._nodes_to_greet(node)):
                [sent] = self.channel.send([(node, IntroductionRequest())])
                if sent is not None:
                    self._greetings[sent] = node
                    self._greeted[node] = self.clock()
        arrived = []
        for id, received in self.channel.collect(set(self._greetings)):
            speaker = self._greetings.get(id)
            if speaker is None:
                continue  # this node has answered another greeting
            self.channel.forget(other for other, to in self._greetings.items() if to == speaker)
            self._greetings = {other: to for other, to in self._greetings.items() if to != speaker}
            site = self._hear(speaker, received)
            if site is not None:
                arrived.append(site)
        return arrived

    def _restarted(self, nodes: set[int]) -> set[int]:
        """Nodes that were started again since the last look; Flower shows them as if they had been here all along."""
        before, self._arrivals = self._arrivals, {node: self.authorizer.arrivals(node) for node in nodes}
        return {node for node, times in self._arrivals.items() if before.get(node, times) != times}

    def _nodes_to_greet(self, node: int) -> bool:
        """New nodes, and those whose greeting came to nothing: e.g. a site that had not pinned the app by then."""
        when = self._greeted.get(node)
        silent = when is not None and node in self._greetings.values()
        return when is None or (silent and self.clock() - when >= self.pace.ask_again)

    def silent(self) -> list[str]:
        """Sites, or nodes where that is not known, that are connected and have not answered their greeting."""
        return sorted(
            self.authorizer.site_of(node) or f"node {node}"
            for node in set(self._greetings.values())
            if self.clock() - self._greeted.get(node, math.inf) >= SILENT_AFTER
        )

    def _hear(self, node: int, received: ReceivedAnswer) -> str | None:
        said = received.value
        if isinstance(said, NoSite):
            return None
        if not isinstance(said, Introduction):
            if received.lost:
                self._greeted.pop(node, None)  # it may answer when it is back
            failure = received.failure or (said.failure if isinstance(said, ReplyEnvelope) else "")
            self._refuse(f"node {node}", failure or f"it introduced itself by a {type(said).__name__}")
            return None
        reason = unsound(said, self.networks)
        if reason is not None:
            self._refuse(f"node {node}", reason)
            return None
        site = said.facts.name
        objection = self.authorizer.objection(node, said)
        if objection is not None:  # by its node: the name may be another's, who does take part
            self._refuse(f"node {node}", objection)
            self.notify(node, objection)
            return None
        reason = self.accept(said)
        if reason is not None:
            self._refuse(site, reason)
            self.notify(node, reason)
            return None
        self.introductions[site] = said
        self.node_of[site] = node
        self.absences.returned(site)
        self.refused.pop(site, None)
        return site

    def set_aside(self, site: str, reason: str) -> None:
        """Exclude a site for the rest of the run; its operator and the coordinator's get the reason."""
        self.introductions.pop(site, None)
        node = self.node_of.pop(site, None)
        if node is not None:
            self.notify(node, reason)
        self._refuse(site, reason)
        self.aside[site] = self.refused[site]

    def notify(self, node: int, words: str) -> None:
        """Tell a site why it cannot take part: its operator can fix it. The answer is not waited for."""
        self.channel.send([(node, SiteNotice(short(words)))])

    def _refuse(self, who: str, reason: str) -> None:
        self.refused[who] = short(reason)
        log.warning("%s cannot take part: %s", who, self.refused[who])


# Waiting for absent sites
# ------------------------------------------------------------------------------


AT_MOST_EVERY = 1.0
"""Seconds between two reports."""

Report = Callable[[Mapping[str, Any]], object]
"""Called with the sites that the coordinator waits for; for display only."""


class Absences:
    """Sites whose node is gone, and since when. The time counts on over rounds: it is waited for once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def left(self, sites: Iterable[str]) -> None:
        """These have no node, or the transport could not reach it."""
        for site in sites:
            self._since.setdefault(site, self._clock())

    def returned(self, site: str) -> None:
        self._since.pop(site, None)

    def seconds(self, site: str) -> float | None:
        """For how long it has been gone; None if it is here."""
        since = self._since.get(site)
        return None if since is None else self._clock() - since

    def given_up(self, site: str, grace: float) -> bool:
        gone = self.seconds(site)
        return gone is not None and gone >= grace


@dataclass
class WaitingReport:
    """Reports at most once a second, and at once when other sites are waited for."""

    report: Report | None = None
    clock: Callable[[], float] = time.time
    _last: float = -math.inf
    _who: tuple[str, ...] = ()
    _began: float = field(default=0.0)

    def update(self, what: str, waiting: Mapping[str, str], **more: Any) -> None:
        """`waiting`: whom for, with a word on each."""
        if self.report is None:
            return
        now, who = self.clock(), (what, *waiting)
        if who[:1] != self._who[:1] or not self._who:
            self._began = now
        if who == self._who and now - self._last < AT_MOST_EVERY:
            return
        self._last, self._who = now, who
        self.report({"what": what, "since": self._began, "at": now, "waiting": dict(waiting), **more})

    def done(self, what: str) -> None:
        self._who = ()
        if self.report is not None:
            self.report({"what": what, "since": self.clock(), "at": self.clock(), "waiting": {}})
