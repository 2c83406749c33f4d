"""A federation whose sites are nodes of a network: sends requests, repeats them, gathers replies, notes absent
sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedsift.core.errors import QuorumError
from fedsift.core.version import __version__
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.protocol.site import Samples
from fedsift.runtime.federation import EngineFederation, SimulationSettings, kinds_of
from fedsift.transports.remote.channel import ReceivedAnswer
from fedsift.transports.remote.introduction import Introduction, disagreement
from fedsift.transports.remote.site_directory import SiteDirectory


@dataclass
class PendingRequest:
    """One envelope on its way, until it is answered."""

    envelope: RequestEnvelope
    node: int | None = None
    """Where it was sent last; None while the site has no node or its message was lost."""
    due: float = 0.0
    """When to send it again."""
    retry_after: float = 0.0
    trouble: str = ""


class RemoteFederation(EngineFederation):
    """Serves requests by messages, one for each site, from sites that already introduced themselves."""

    def __init__(
        self,
        directory: SiteDirectory,
        roster: Mapping[str, Introduction],
        *,
        test: tuple[Samples, Tensor] | None = None,
        seen: Callable[[Mapping[str, str]], SimulationSettings] | None = None,
        **shared: Any,
    ) -> None:
        """`roster`: the sites of this run, in the federation's order; some may be away for now.

        `test`: labelled samples of the coordinator's own. `seen`: what a simulation knows, given the last accepted
        request of each site.
        """
        common = next(iter(roster.values()))
        self._test, self._seen = test, seen  # the base asks whether sites are simulated
        super().__init__(
            facts={site: introduction.facts for site, introduction in roster.items()},
            classes=common.classes,
            multilabel=common.multilabel,
            shape=common.shape,
            **shared,
        )
        self.directory = directory
        ours = replace(common, version=__version__)
        directory.accept = lambda own: disagreement(own, ours) or self._unexpected(own)

    @property
    def simulated(self) -> bool:
        return self._seen is not None

    @property
    def simulation(self) -> SimulationSettings | None:
        return None if self._seen is None else self._seen(self.accepted)

    def test_set(self) -> tuple[Samples, Tensor] | None:
        return self._test

    def _unexpected(self, own: Introduction) -> str | None:
        """Facts are fixed at the start: counts are checked against them until the end."""
        known = self.facts.get(own.facts.name)
        if known is None:
            return f"site '{own.facts.name}' was not there when the run began"
        return None if known == own.facts else f"site '{known.name}' came back as {own.facts}, it was {known}"

    def largest_share(self, site: str, among: int) -> float:
        """The study's bound for everyone, or the roster's for this site where that is lower."""
        return min(super().largest_share(site, among), self.directory.authorizer.share(site))

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        directory, clock = self.directory, self.directory.clock
        end = clock() + deadline
        directory.meet()
        pending = {
            site: PendingRequest(envelope, retry_after=directory.pace.ask_again) for site, envelope in envelopes.items()
        }
        grace = min(directory.pace.absent, self.quorum.grace)
        answers: dict[str, ReplyEnvelope] = {}
        under_way: dict[str, str] = {}
        kinds = kinds_of(envelopes)
        self._report_waiting(pending, grace)
        while clock() < end:
            self.check_stop()
            self._send_due(pending, under_way, end - clock())
            for id, received in directory.channel.collect(set(under_way)):
                self._receive(under_way.pop(id), received, pending, answers)
            self.on_answered((site for site in answers if site not in self.away), kinds)
            if not pending:
                break
            for site in directory.meet():
                if site in pending:
                    pending[site].node = None  # it is back, so what it was sent before may be lost
            directory.absences.left(site for site in pending if site not in directory.node_of)
            if all(directory.absences.given_up(site, grace) for site in pending):
                break
            self._report_waiting(pending, grace)
            directory.rest()
        directory.waiting.done(f"round {self.round.count}: the coordinator computes")
        partly = {under_way[id] for id in directory.channel.arriving(under_way)}
        directory.channel.forget(under_way)
        for site, one in pending.items():
            silence = (
                f"its answer did not arrive in full within {deadline:.0f} s"
                if site in partly
                else self._silence(site, deadline)
            )
            answers[site] = _failed(one.envelope, one.trouble or silence)
            self.away.add(site)
        return answers

    def _report_waiting(self, pending: Mapping[str, PendingRequest], grace: float) -> None:
        """Whom this round waits for."""
        waiting = {}
        for site in pending:
            gone = self.directory.absences.seconds(site)
            waiting[site] = "asked" if gone is None else f"gone for {gone:.0f} s, given up after {grace:.0f} s"
        asked = " and ".join(sorted({type(one.envelope.request).__name__ for one in pending.values()}))
        self.directory.waiting.update(f"round {self.round.count} ({self.round.stage}): answers to {asked}", waiting)

    def _send_due(self, pending: Mapping[str, PendingRequest], under_way: dict[str, str], left: float) -> None:
        """Send what was not sent yet, what is to go to another node by now, and what has waited too long."""
        now = self.directory.clock()
        arriving = {under_way[id] for id in self.directory.channel.arriving(under_way)}
        due: list[tuple[str, int]] = []
        for site, one in pending.items():
            node = self.directory.node_of.get(site)
            if node is None or (node == one.node and (now < one.due or site in arriving)):
                continue
            if node == one.node:
                one.retry_after *= 2
            due.append((site, node))
        sent = self.directory.channel.send([(node, pending[site].envelope) for site, node in due], left)
        for (site, node), id in zip(due, sent, strict=True):
            if id is not None:
                under_way[id] = site
                pending[site].node, pending[site].due = node, now + pending[site].retry_after

    def _receive(
        self,
        site: str,
        received: ReceivedAnswer,
        pending: dict[str, PendingRequest],
        answers: dict[str, ReplyEnvelope],
    ) -> None:
        if site not in pending:
            return  # the copy of a request that was answered already
        if isinstance(received.value, ReplyEnvelope):
            answers[site] = received.value
            del pending[site]
            self.directory.absences.returned(site)
        elif received.lost:
            self.directory.absences.left([site])
            pending[site].trouble = received.failure
            pending[site].due = self.directory.clock() + self.directory.pace.look_for_nodes
        else:
            envelope = pending.pop(site).envelope
            answers[site] = _failed(
                envelope, received.failure or f"the node answered with {type(received.value).__name__}"
            )
            self.away.add(site)  # the transport spoke, or a stranger: not the site

    def _silence(self, site: str, deadline: float) -> str:
        if site in self.directory.refused:
            return self.directory.refused[site]
        if site not in self.directory.node_of:
            return "the site has no node: it is not connected"
        return f"no reply within {deadline:.0f} s"


def _failed(envelope: RequestEnvelope, reason: str) -> ReplyEnvelope:
    return ReplyEnvelope(envelope.run, envelope.site, envelope.moment.id, None, reason)


def gather(
    directory: SiteDirectory,
    wanted: Sequence[str],
    *,
    at_least: int,
    wait: float,
    grace: float = math.inf,
) -> list[str]:
    """Wait until the wanted sites have introduced themselves, or until the time is over and there are enough.

    `grace`: seconds for which the others are waited for once there are enough. Returns the sites in the federation's
    order: as wanted, or by name when none is named.
    """
    end, enough = directory.clock() + wait, False
    here: list[str] = []
    while True:
        directory.meet()
        here = [site for site in (wanted or sorted(directory.introductions)) if site in directory.introductions]
        if len(here) >= (len(wanted) or at_least) or directory.clock() >= end:
            break
        if len(here) >= at_least and not enough:
            enough, end = True, min(end, directory.clock() + grace)
        expected_sites = [site for site in wanted if site not in here] or [f"{max(0, at_least - len(here))} more"]
        silent = directory.silent()
        words = {
            site: directory.refused.get(site, NOT_PINNED if site in silent else "not here yet")
            for site in expected_sites
        }
        directory.waiting.update("sites to join", words, here=here, refused=dict(list(directory.refused.items())[:5]))
        directory.rest()
    directory.waiting.done("the run begins")
    needed = max(1, at_least)
    if len(here) < needed:
        reasons = "; ".join(f"{who}: {reason}" for who, reason in list(directory.refused.items())[:3])
        missing = ", ".join(site for site in wanted if site not in here) or f"{needed - len(here)} more"
        raise QuorumError(
            f"only {len(here)} of at least {needed} sites joined within {wait:.0f} s, missing: {missing}"
            f"{f' ({reasons})' if reasons else ''}. {_advice(directory, needed - len(here))}, then resume"
        )
    return here


NOT_PINNED = "its node is here and does not answer: has it pinned this app?"


def _advice(directory: SiteDirectory, missing: int) -> str:
    """What the sites that are missing have to do."""
    silent = directory.silent()
    if not silent:
        return "Start their nodes"
    pin = f"{', '.join(silent)}: connected, but without an answer; let them pin this app (`fedsift flower pin`)"
    return pin if len(silent) >= missing else f"{pin}. Start the nodes of the others"
