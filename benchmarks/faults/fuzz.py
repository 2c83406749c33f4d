"""`python -m benchmarks.faults.fuzz [--messages 100000]`: changed replies through the gate and the methods.

One honest run of a method is recorded. Then its rounds are played again and again from the record, so that no site
trains: in every exchange some sites' answers are changed (mutations.py) and go through the gate, and one that the gate
lets pass, if there is any, goes on into the method. A method is written down as soon as it is done. Nothing may raise,
nothing that was sent may be executed, and a refused answer leaves behind what no answer would have left.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.light import conducted
from benchmarks.faults.mutations import EXECUTED, Mutations
from benchmarks.faults.row import source
from benchmarks.faults.small import small_study
from benchmarks.files import read_tree, write_tree
from tests.promises.attacks import Sight

from fedsift.core.codec import digest_of
from fedsift.core.type_checks import LONGEST_TEXT
from fedsift.methods._base import methods
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.runtime.federation import reply_names
from fedsift.runtime.gate.reply_checks import refusal
from fedsift.runtime.in_process import InProcess

WHOLE = 10
"""What the form's check refuses is told the rest of the gate, beside the other answers, every tenth time."""
MOST_FAULTS = 20
"""Of a method, then it is given up."""
Record = dict[tuple[str, str], tuple[ReplyEnvelope, Any]]
"""By moment and site: the honest answer, and the site's notebook after it."""


@dataclass
class Tally:
    """What became of the messages."""

    messages: int = 0
    refused: int = 0
    accepted: int = 0
    """Right in form and within every limit: they count as any other reply."""
    into_methods: int = 0
    """Of those, how many a method's step was given."""
    steps: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must not happen and did."""


class Recorder(InProcess):
    """An honest federation that keeps every answer."""

    kept_answers: Record

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        for site, answer in answers.items():
            self.kept_answers[answer.moment_id, site] = (answer, self._open.get(site))
        return answers


class Fuzzed(InProcess):
    """A federation that answers from a record and whose gate is given changed answers."""

    kept_answers: Record
    mutations: Mutations
    tally: Tally
    tries: int
    past: dict[str, Reply]
    only_refused: bool
    """Never lets a changed answer pass: the run must be that of an absent site."""
    silent: str
    """A site whose answers never arrive."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        known = {site: self.kept_answers.get((e.moment.id, site)) for site, e in envelopes.items()}
        new = {
            site: envelope
            for site, envelope in envelopes.items()
            if (found := known[site]) is None or not isinstance(found[0].reply, envelope.request.reply_type)
        }
        answers = dict(super().deliver(new, deadline)) if new else {}
        if not new:
            self._open = {}
        for site, found in known.items():
            if found is not None and site not in new:
                answers[site] = found[0]
                if found[1] is not None:
                    self._open[site] = found[1]
        there = [site for site in envelopes if site in answers and (site != self.silent or len(envelopes) == 1)]
        return {site: answers[site] for site in there}

    def settle(self, envelope: RequestEnvelope) -> None:
        if envelope.site in self._open:
            super().settle(envelope)
        else:
            self.accepted[envelope.site] = envelope.moment.id

    def _gate(
        self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        if self.silent or len(answers) < 2:
            return super()._gate(envelopes, answers)
        sites = list(answers)
        victim = sites[int(self.mutations.random.integers(len(sites)))]
        if self.only_refused:
            victim = self.sites[-1]
            if victim not in answers:
                return super()._gate(envelopes, answers)
        sight = Sight(envelopes[victim], answers, self.past)
        passed: ReplyEnvelope | None = None
        wrong: ReplyEnvelope | None = None
        without = None
        for number in range(10 * self.tries):
            if number >= self.tries and not (self.only_refused and wrong is None):
                break
            sent = self.mutations.of(answers[victim], sight)
            self.tally.messages += 1
            try:
                form = refusal(sent, envelopes[victim], self.facts[victim])
                reply_names(sent.reply)
                if form is not None and self.tally.messages % WHOLE:
                    replies, refused, memory = {}, {victim: form}, None
                else:
                    replies, refused, memory = self._tried(envelopes, {**answers, victim: sent})
            except Exception as error:
                self._fault(victim, envelopes, sent, f"the gate raised {type(error).__name__}: {error}")
                continue
            reason = refused.get(victim)
            self._look_at(victim, envelopes, sent, replies, refused)
            if reason is None:
                self.tally.accepted += 1
                passed = sent
                continue
            self.tally.refused += 1
            self.tally.reasons[" ".join(reason.split()[:4])[:40]] += 1
            wrong = sent
            if form is not None and memory is not None:
                left = {site: answer for site, answer in answers.items() if site != victim}
                without = without or self._tried(envelopes, left)
                if memory != without[2] or any(replies.get(s) is not reply for s, reply in without[0].items()):
                    self._fault(victim, envelopes, sent, "a refused answer changed what the gate knows or lets pass")
        chosen = wrong if self.only_refused else passed
        if chosen is None:
            return super()._gate(envelopes, answers)
        self.tally.into_methods += not self.only_refused
        return super()._gate(envelopes, {**answers, victim: chosen})

    def _tried(
        self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
    ) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
        """The whole gate on a copy of what it remembers."""
        kept = self.protection, self.log
        self.protection, self.log = copy.deepcopy(self.protection), copy.deepcopy(self.log)
        try:
            replies, refused = super()._gate(envelopes, answers)
            return replies, refused, self.protection.memory()
        finally:
            self.protection, self.log = kept

    def _look_at(
        self,
        victim: str,
        envelopes: Mapping[str, RequestEnvelope],
        sent: ReplyEnvelope,
        replies: Mapping[str, Any],
        refused: Mapping[str, str],
    ) -> None:
        if (victim in replies) == (victim in refused):
            self._fault(victim, envelopes, sent, "the answer was both taken and refused, or neither")
        for reason in refused.values():
            if not reason.isprintable() or len(reason) > LONGEST_TEXT:
                self._fault(victim, envelopes, sent, "the reason cannot be shown")
        if EXECUTED:
            self._fault(victim, envelopes, sent, "something that was sent was executed")

    def _fault(self, victim: str, envelopes: Mapping[str, RequestEnvelope], sent: ReplyEnvelope, words: str) -> None:
        kind = type(envelopes[victim].request).__name__
        self.tally.faults.append(f"{self.run}: {kind}: {words}"[:500])


def fuzz_method(name: str, messages: int, seed: int, tries: int = 40) -> Tally:
    """So many changed messages through one method."""
    torch.set_num_threads(1)
    tally, mutations = Tally(), Mutations(seed)
    with tempfile.TemporaryDirectory() as place:
        study = small_study(name, Path(place))
        record: Record = {}
        federated = study.load_data()
        conducted(study, federated, Recorder, kept_answers=record)
        mutations.pool = [answer.reply for answer, _ in record.values() if answer.reply is not None]
        told = {"kept_answers": record, "mutations": mutations, "tally": tally, "past": {}, "tries": tries}
        last = federated.sites[-1]
        left = conducted(study, federated, Fuzzed, **told, only_refused=False, silent=last)
        kept = conducted(study, federated, Fuzzed, **told, only_refused=True, silent="")
        if digest_of(kept.state) != digest_of(left.state):
            tally.faults.append(f"{name}: refused answers changed the state")
        while tally.messages < messages:
            try:
                tally.steps += conducted(study, federated, Fuzzed, **told, only_refused=False, silent="").steps
            except Exception as error:
                tally.faults.append(f"{name}: {type(error).__name__}: {error}"[:500])
                if len(tally.faults) > MOST_FAULTS:
                    break
    return tally


SUMS = ("messages", "refused", "accepted", "into_methods", "steps")


def fuzz(
    messages: int,
    seed: int = 1,
    names: list[str] | None = None,
    file: Path | None = None,
    minutes: float = 1e6,
) -> dict[str, Any]:
    """So many messages, spread over the methods; `file` keeps each method as it is done, and is gone on with if
    the program is still the same.

    No method is begun after so many minutes.
    """
    until = time.monotonic() + 60 * minutes
    chosen = names or methods.names()
    done, state = read_tree(file, KEY) if file is not None else {}, source()
    each = {name: row for name, row in done.items() if (row["source"], row["seed"]) == (state, seed)}
    share = -(-messages // len(chosen))
    for number, name in enumerate(chosen):
        if each.get(name, {}).get("messages", 0) >= share or time.monotonic() > until:
            continue
        begun, executed = time.process_time(), len(EXECUTED)
        found = fuzz_method(name, share, seed * 1000 + number)
        each[name] = {
            **{key: getattr(found, key) for key in SUMS},
            "executed": len(EXECUTED) - executed,
            "faults": found.faults,
            "cpu_seconds": round(time.process_time() - begun, 1),
            "seed": seed,
            "source": state,
        }
        print(name, each[name], flush=True)
        if file is not None:
            write_tree(file, each, KEY)
    return summed({name: each[name] for name in chosen if name in each})


def summed(each: dict[str, Any]) -> dict[str, Any]:
    """All methods together."""
    return {
        "methods": len(each),
        "source": ", ".join(sorted({row["source"] for row in each.values()})),
        "seed": next(row["seed"] for row in each.values()),
        **{key: sum(row[key] for row in each.values()) for key in (*SUMS, "executed")},
        "faults": [fault for row in each.values() for fault in row["faults"]],
        "cpu_seconds": round(sum(row["cpu_seconds"] for row in each.values()), 1),
    }


FILE = Path(__file__).parent / "results" / "fuzz.csv"
KEY = ("method",)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.fuzz")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--methods", default="", help="only these, by commas; nothing is written then")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no method after so long")
    options = parser.parse_args()
    chosen = options.methods.split(",") if options.methods else None
    result = fuzz(options.messages, options.seed, chosen, None if chosen else FILE, options.minutes)
    print(json.dumps(result, indent=1))
