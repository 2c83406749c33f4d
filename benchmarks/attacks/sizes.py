"""`python -m benchmarks.attacks.sizes [--anew]`: a site that turns signs and declares too many samples.

Five sites of about 270 digits each, FedAvg. The last one sends its update with the sign turned from the first round on,
and says on joining and in every reply that it has as many samples as it likes. The rows called "before" were measured
by the version that let declared sizes stretch every guard, and cannot be measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.accuracy import cell, study_of
from benchmarks.attacks.files import missing
from benchmarks.files import read_tree, write_tree
from tests.promises.attacks import Sight, scaled

from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.protocol.site import Site
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study

FILE = Path(__file__).parent / "results" / "sizes.csv"
KEY = ("gate", "seed", "declared")
SITES, LIAR = 5, "site-04"
TRUE = 270
DECLARED = (TRUE, 540, 1000, 12000)
SEEDS = (5, 6, 7)
BEFORE = "before"
GATES: Mapping[str, Mapping[str, Any]] = {
    "no heuristics": {"heuristics": "never"},
    "always": {"heuristics": "always"},
}
NOBODY = 0
"""In the column of declared sizes: nobody lies or turns anything."""


def lying(declared: int) -> type[InProcess]:
    """An engine whose last site turns the sign of its update and declares so many samples."""
    turned = scaled(-1.0)

    class Lying(InProcess):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.true = self.facts[LIAR]
            self.facts = {**self.facts, LIAR: dataclasses.replace(self.true, samples=declared)}

        def site(self, envelope: RequestEnvelope) -> Site:
            made = super().site(envelope)
            if envelope.site == LIAR:
                made.facts = self.true
            return made

        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = dict(super().deliver(envelopes, deadline))
            if LIAR in answers and answers[LIAR].reply is not None:
                sent = turned(answers[LIAR], Sight(envelopes[LIAR], answers)) or answers[LIAR]
                reply = dataclasses.replace(sent.reply, samples=declared)  # type: ignore[call-arg, type-var]
                answers[LIAR] = dataclasses.replace(sent, reply=reply)
            return answers

    return Lying


def study(seed: int, gate: Mapping[str, Any]) -> Study:
    return study_of(
        "fedavg",
        Path(),
        seed=seed,
        partition={"name": "iid", "sites": SITES},
        train={"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
        gate=dict(gate),
    )


def row(seed: int, declared: int, gate: Mapping[str, Any]) -> dict[str, Any]:
    chosen = study(seed, gate)
    kind = InProcess if declared == NOBODY else lying(declared)
    return cell(chosen, chosen.load_data(), kind)


def measure(gates: Mapping[str, Mapping[str, Any]], anew: bool) -> None:
    for gate, table in gates.items():
        for seed in SEEDS:
            for declared in (NOBODY, *DECLARED):
                known = read_tree(FILE, KEY)
                if missing(known.get(gate, {}).get(seed, {}).get(declared), anew):
                    found = row(seed, declared, table)
                    known.setdefault(gate, {}).setdefault(seed, {})[declared] = found
                    write_tree(FILE, known, KEY)
                    print(gate, seed, declared, found, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.sizes")
    parser.add_argument("--anew", action="store_true", help="rows of other versions of the source as well")
    torch.set_num_threads(1)
    measure(GATES, parser.parse_args().anew)
