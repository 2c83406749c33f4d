"""Every attack on every exchange of a run, judged by the gate as it stands then; the run itself goes on honest.

One tiny run of a method is enough for the whole row of the matrix: what is asked of the gate costs milliseconds.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope, Weights
from fedsift.runtime.gate.protection import flattened, relative_length, usual_norm_for
from fedsift.runtime.gate.reply_checks import refusal
from fedsift.runtime.in_process import InProcess
from tests.promises.attacks import FORM, MODEL, Sight

FAR_OFF = ("x1000", "sign flip x15", "x25")
"""Attacks that go too far: refused wherever there is a measure."""
FLAT = ("all zeros", "constant 0.1")
"""Refused in the very first reply of a run."""


@dataclass
class Row:
    """One method under every attack."""

    refused: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Attacks that had to be refused and were not."""
    exchanges: int = 0

    def note(self, attack: str, reason: str | None, must: bool, where: str) -> None:
        counts = self.accepted if reason is None else self.refused
        counts[attack] = counts.get(attack, 0) + 1
        if reason is None and must:
            self.wrong.append(f"{attack} passed in {where}")
        if reason is not None and (not reason.isprintable() or len(reason) > 1000):
            self.wrong.append(f"{attack}: the reason of {where} cannot be shown")


class Probed(InProcess):
    """Tries every attack on the last site's answer of every exchange, then lets the honest answers pass."""

    row: Row
    past: dict[str, Reply]

    def _gate(
        self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
    ) -> tuple[dict[str, Reply], dict[str, str]]:
        victim = list(answers)[-1]
        sight = Sight(envelopes[victim], answers, self.past)
        where = f"{envelopes[victim].moment.id} ({type(answers[victim].reply).__name__})"
        self.row.exchanges += 1
        for attack, change in FORM.items():
            sent = change(answers[victim], sight)
            if sent is not None:
                self.row.note(attack, refusal(sent, envelopes[victim], self.facts[victim]), True, where)
        for attack, change in MODEL.items():
            sent = change(answers[victim], sight)
            if sent is not None:
                self._judge(attack, sent, victim, envelopes, answers, where)
        return super()._gate(envelopes, answers)

    def _judge(
        self,
        attack: str,
        sent: ReplyEnvelope,
        victim: str,
        envelopes: Mapping[str, RequestEnvelope],
        answers: Mapping[str, ReplyEnvelope],
        where: str,
    ) -> None:
        reason = refusal(sent, envelopes[victim], self.facts[victim])
        replies = {site: answer.reply for site, answer in answers.items() if answer.reply is not None}
        honest = replies[victim]
        assert sent.reply is not None
        replies[victim] = sent.reply
        protection = copy.deepcopy(self.protection)
        others = protection.refusals(self.round.stage, replies, envelopes, self._buffers_at)
        judged = others.pop(victim, None)
        reason = reason or judged
        if others:
            self.row.wrong.append(f"{attack} in {where} made the gate refuse honest {', '.join(others)}")
        request = envelopes[victim].request
        # a little more than the limit: a site may also be measured by how far it went before
        wide = 8 * request.norm_tolerance
        far = any(
            _length(own, start) > wide * usual > 0
            for (own, start), usual in zip(
                sent.reply.moves(request), self._usual(victim, envelopes, {**answers, victim: sent})
            )
        )
        moved = any(_moved(own, start) for own, start in honest.moves(request))
        self.row.note(attack, reason, (attack in FLAT and moved) or (attack in FAR_OFF and far), where)

    def _usual(
        self, victim: str, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
    ) -> list[float]:
        """The median length of each model among the answers that arrived, the attack's included, for training of the
        victim's reach; of fewer than three sites, that of the stage before."""
        every = {
            site: [
                (_length(*move), envelopes[site].request.reach(getattr(answer.reply, "samples", 1)))
                for move in answer.reply.moves(envelopes[site].request)
            ]
            for site, answer in answers.items()
            if answer.reply is not None and isinstance(getattr(answer.reply, "samples", 1), int)
        }
        if len(every) >= 3 and victim in every:
            return [usual_norm_for(every[victim][number][1], ways) for number, ways in enumerate(zip(*every.values()))]
        known = [
            [length for length, _ in at.recent]
            for key, at in self.protection.lengths.items()
            if key.startswith(self.round.stage)
        ]
        return [statistics.median(lengths) if len(lengths) >= 3 else 0.0 for lengths in known]


def _length(own: Weights, start: Weights) -> float:
    return relative_length(own, start, [name for name, tensor in own.items() if tensor.is_floating_point()])


def _moved(own: Weights, start: Weights) -> bool:
    """Whether the site trained at all, from a model that is not flat itself."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    return _length(own, start) > 0 and bool(flattened(zeros, start))
