"""Fuzzed messages through the wire, the gate and the methods: one recorded run of a method, replayed with one of its
answers changed at random. Whatever was changed, the worst that may happen is that the reply is set aside."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedsift.core.codec import WireFormat
from fedsift.core.errors import FedsiftError
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.protocol.method import Stage
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.messages import EncodedMessage

JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1, 10**15, 10**400, -(2**63), 0.5, 1e30, -1e300, float("nan"), float("inf"), "", "[/foo]",
    "\x1b[2J", "x" * 5000, [], {}, [[]], {"$tuple": []}, {"$tensor": "0"}, {"$tensor": "99"}, {"$dict": [[1, 2]]},
    {"$class": "SiteFacts", "fields": {}}, {"$class": "Reply", "fields": {}}, {"$class": "os.system", "fields": {}},
)  # fmt: skip


@dataclass
class Step:
    """One round as it was: what it began from, and the answers to each of its questions."""

    stage: Stage
    where: Round
    state: Any
    lengths: dict[str, Any]
    answers: list[dict[str, ReplyEnvelope]] = field(default_factory=list)


class Recording(InProcess):
    """Serves its sites and writes the answers down, or gives back what was written."""

    step: Step | None = None
    replayed: list[dict[str, ReplyEnvelope]] | None = None

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        if self.replayed is not None:
            return self.replayed.pop(0) if self.replayed else {}
        answers = dict(super().deliver(envelopes, deadline))
        if self.step is not None:
            self.step.answers.append(answers)
        return answers

    def accept_notebook(self, envelope: RequestEnvelope) -> None:
        if self.replayed is None:
            super().accept_notebook(envelope)


@dataclass
class Recorded:
    """A method's run, ready to be replayed."""

    federation: Recording
    steps: list[Step]
    outcomes: Counter[str] = field(default_factory=Counter)

    def fuzz(self, chance: random.Random) -> None:
        """One changed message: through the wire, the gate and the method's round."""
        step = chance.choice([step for step in self.steps if step.answers])
        asked = chance.randrange(len(step.answers))
        site = chance.choice(list(step.answers[asked]))
        try:
            sent = decode(changed(encode(step.answers[asked][site]), chance))
        except ValueError:
            self.outcomes["unreadable"] += 1
            return
        answers = [dict(each) for each in step.answers]
        answers[asked][site] = (
            sent if isinstance(sent, ReplyEnvelope) else dataclasses.replace(answers[asked][site], reply=sent)
        )
        federation = self.federation
        federation.replayed = answers
        federation.protection.recall(copy.deepcopy(step.lengths))
        federation.begin(step.where, step.stage.asks)
        try:
            step.stage.step(step.state, federation)
        except FedsiftError:
            self.outcomes["too few replies"] += 1
        else:
            self.outcomes["set aside" if site in federation.log.refused else "accepted"] += 1


def record(study: Study) -> Recorded:
    """Run the study's method, round by round."""
    federation = open_in_process(study, study.load_data(), "fuzz", Recording)
    assert isinstance(federation, Recording)
    federation.begin(Round("start", 0, -1), ())
    state = study.method.start(federation)
    steps: list[Step] = []
    for stage in study.method.stages():
        for index in range(stage.rounds):
            where = Round(stage.name, index, len(steps))
            federation.step = Step(stage, where, state, federation.protection.memory())
            steps.append(federation.step)
            federation.begin(where, stage.asks)
            state = stage.step(state, federation)
    return Recorded(federation, steps)


def changed(encoded: EncodedMessage, chance: random.Random) -> EncodedMessage:
    """A message with one to three changes: in its tree, or in the bytes of its tensors."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if encoded.tensors and chance.random() < 0.4:
            encoded = dataclasses.replace(encoded, tensors=_bytes(encoded.tensors, chance))
        else:
            tree = json.loads(encoded.tree)
            encoded = dataclasses.replace(encoded, tree=json.dumps(_tree(tree, chance)))
    return encoded


def _bytes(data: bytes, chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    # mostly in the numbers: past the header every change still gives a tensor
    start = 8 + int.from_bytes(data[:8], "little") if kind < 0.8 else 0
    for _ in range(chance.choice((1, 4, 64))):
        if start < len(changed):
            changed[chance.randrange(start, len(changed))] = chance.randrange(256)
    return bytes(changed)


def _tree(tree: Any, chance: random.Random) -> Any:
    """A tree with one node put in another's place, dropped, named otherwise or replaced by junk."""
    places = list(_places(tree))
    if not places:  # an earlier change left nothing inside
        return copy.deepcopy(chance.choice(JUNK))
    holder, key = chance.choice(places)
    kind = chance.random()
    if kind < 0.6:
        holder[key] = copy.deepcopy(chance.choice(JUNK))
    elif kind < 0.75:
        other, its = chance.choice(places)
        holder[key] = copy.deepcopy(other[its])
    elif kind < 0.85:
        del holder[key]
    else:
        classes = [node for node, name in places if name == "$class"]
        chance.choice(classes or [{}])["$class"] = chance.choice(sorted(WireFormat._known))
    return tree


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in list(items):
        yield tree, key
        yield from _places(item)


torch.set_num_threads(1)
