"""A federation whose sites are Flower nodes. Flower carries messages; the loop, the gate and the state are ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, RecordDict
from torch import Tensor

from fedsift.core.errors import QuorumError
from fedsift.core.version import __version__
from fedsift.protocol.messages import Answer, Envelope
from fedsift.protocol.site import Samples
from fedsift.runtime.federation import EngineFederation, Simulation, kinds_of
from fedsift.transports.flower.mailbox import Spoilt
from fedsift.transports.remote.delivery import Post, lost, read_reply
from fedsift.transports.remote.introduction import Introduction, disagreement
from fedsift.transports.remote.messages import Packer


@dataclass
class Errand:
    """One envelope on its way, until it is answered."""

    envelope: Envelope
    content: RecordDict | None = None
    """As it was sent last."""
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

    def largest_share(self, site: str) -> float:
        """The study's bound for everyone, or the roster's for this site where that is lower."""
        return min(super().largest_share(site), self.post.keeper.share(site))

    def deliver(self, envelopes: Mapping[str, Envelope], deadline: float) -> Mapping[str, Answer]:
        post, clock = self.post, self.post.clock
        end = clock() + deadline
        post.meet()
        errands = {
            site: Errand(envelope, patience=post.pace.ask_again) for site, envelope in envelopes.items()
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
        partly = {under_way[id] for id in post.mailbox.under_way(under_way)}
        post.mailbox.forget(under_way)
        for site, errand in errands.items():
            silence = (
                f"its answer did not arrive in full within {deadline:.0f} s"
                if site in partly
                else self._silence(site, deadline)
            )
            answers[site] = _failed(errand.envelope, errand.trouble or silence)
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
        packer = Packer()  # anew each time: what sites have seen is theirs to abuse
        arriving = {under_way[id] for id in self.post.mailbox.under_way(under_way)}
        for site, errand in errands.items():
            node = self.post.node_of.get(site)
            if node is None or (node == errand.node and (now < errand.due or site in arriving)):
                continue
            if node == errand.node:
                errand.patience *= 2
            errand.content = packer.pack(errand.envelope, **self.post.note)
            id = self.post.send(node, errand.content, left)
            if id is not None:
                under_way[id] = site
                errand.node, errand.due = node, now + errand.patience

    def _receive(
        self, site: str, message: Message | Spoilt, errands: dict[str, Errand], answers: dict[str, Answer]
    ) -> None:
        if site not in errands:
            return  # the copy of a request that was answered already
        letter = read_reply(message, errands[site].content)
        if isinstance(letter, Answer):
            answers[site] = letter
            del errands[site]
            self.post.absences.returned(site)
        elif lost(message):
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
