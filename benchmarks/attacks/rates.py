"""`python -m benchmarks.attacks.rates [--minutes N] [--anew]`: how often the gate refuses an honest site.

Federations of one to three rounds on digits, FedAvg: five networks, four partitions, labels that are clean or FedCorr's
(0.6, 0.5), usual and many small steps, sites that are all there, that miss rounds, or one that comes late. Each runs
twice: as a simulation is by default, and with heuristics that judge, as among real sites. Whatever is refused is
refused by mistake.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.files import SOURCE, missing, source
from benchmarks.attacks.light import conduct
from benchmarks.files import read_tree, write_tree
from torch import Tensor, nn

from fedsift.core.randomness import numpy_generator
from fedsift.models.network import Network
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study

FILE = Path(__file__).parent / "results" / "rates.csv"
KEY = ("training", "network", "partition", "labels", "sites")
USUAL, SMALL = "usual steps", "many small steps"
FEDERATIONS: Mapping[str, int] = {USUAL: 22, SMALL: 12}
"""Of each configuration, each with its own seed. Usual steps: two numbers of sites, three of rounds, two of epochs,
four learning rates and two sizes, in turn; small ones: three numbers of sites, two of rounds and two learning rates."""
LEARNING_RATES, SMALL_RATES = (0.02, 0.05, 0.1, 0.3), (0.003, 0.01)
DEEP = "lenet5"
NETWORKS: Mapping[str, str] = {
    "group norm": "benchmarks.attacks.rates:group_norm",
    "linear": "linear",
    "mlp": "mlp",
    "cnn": "cnn",
    DEEP: "lenet5",
}
PARTITIONS: Mapping[str, dict[str, Any]] = {
    "iid": {"name": "iid"},
    "skewed": {"name": "bernoulli-dirichlet", "p": 0.7, "alpha": 10.0},
    "few classes a site": {"name": "bernoulli-dirichlet", "p": 0.3, "alpha": 0.3},
    "very uneven sizes": {"name": "bernoulli-dirichlet", "p": 0.9, "alpha": 0.5},
}
LABELS: Mapping[str, dict[str, Any]] = {
    "clean": {"name": "clean"},
    "FedCorr (0.6, 0.5)": {"name": "fedcorr", "rho": 0.6, "tau": 0.5},
}
THERE, MISSING, LATE = "all there", "each misses 3 rounds of 10", "one comes in the last round"
ATTENDANCES = (THERE, MISSING, LATE)
DEFAULT, ALWAYS = "in simulation", "among real sites"
GATES: Mapping[str, dict[str, Any]] = {DEFAULT: {}, ALWAYS: {"heuristics": "always"}}
REASONS: Mapping[str, str] = {
    "length": "times the usual",
    "against": "usual lengths against",
    "opposed": "its first update went",
    "turned": "turned round",
}
OTHER = "other"


class GroupNormNetwork(Network):
    """Two convolutions with group norm, and a linear head."""

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128, n_classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        return features


def group_norm(shape: tuple[int, ...], n_classes: int) -> GroupNormNetwork:
    return GroupNormNetwork(shape[0], n_classes)


@dataclass
class Counted:
    """Of one federation."""

    updates: int = 0
    refused: list[str] = field(default_factory=list)
    """Why, for each update that was refused."""


def attending(attendance: str, seed: int, rounds: int, counted: Counted) -> type[InProcess]:
    """An engine whose sites are away now and then; what is refused of those that are there is counted."""

    class Attending(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            draws = numpy_generator(seed, "who is there", self.round.number).random(len(answers))
            if attendance == MISSING:
                here = [site for site, draw in zip(answers, draws) if draw >= 0.3]
            elif attendance == LATE and self.round.number < rounds - 1:
                here = list(answers)[:-1]
            else:
                here = list(answers)
            counted.updates += len(here)
            self.here = set(here)
            return {site: answers[site] for site in here}

        def _gate(
            self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
        ) -> tuple[dict[str, Any], dict[str, str]]:
            replies, refused = super()._gate(envelopes, answers)
            counted.refused += [refused[site] for site in refused if site in self.here]
            return replies, refused

    return Attending


def study(training: str, network: str, partition: str, labels: str, number: int, gate: Mapping[str, Any]) -> Study:
    """The same federation for every gate."""
    table = {"name": "honest", "seed": 1000 + number, "engine": {"threads": 1}, "federation": {"quorum": 0.01}}
    table |= {"noise": LABELS[labels], "model": {"name": NETWORKS[network]}, "gate": dict(gate)}
    if training == USUAL:
        sites, rounds = 5 if number % 2 else 10, 1 + number % 3
        data = {"train_limit": 600 if number // 8 % 2 else 300}
        train = {"epochs": 4 if number // 2 % 2 else 1, "batch_size": 32, "lr": LEARNING_RATES[number // 4 % 4]}
    else:
        sites, rounds = (10, 20, 40)[number % 3], 1 + number // 6 % 2
        data, train = {}, {"epochs": 1, "batch_size": 8, "lr": SMALL_RATES[number // 3 % 2]}
    table |= {"data": {"name": "digits", "test_limit": 50, **data}, "train": {"momentum": 0.5, **train}}
    table |= {"partition": {**PARTITIONS[partition], "sites": sites}, "method": {"name": "fedavg", "rounds": rounds}}
    return Study.from_table(table)


def configurations() -> Iterator[tuple[str, str, str, str, str]]:
    usual = [name for name in NETWORKS if name != DEEP]
    yield from itertools.product([USUAL], usual, PARTITIONS, LABELS, ATTENDANCES)
    yield from itertools.product([SMALL], NETWORKS, PARTITIONS, LABELS, [THERE])


def row(training: str, network: str, partition: str, labels: str, attendance: str) -> dict[str, Any]:
    """All federations of a configuration: in how many a site was refused, and how many updates, by the gate."""
    found: dict[str, Any] = {"federations": 0, "updates": 0, SOURCE: source()}
    for gate in GATES:
        found[gate] = {"federations": 0, "updates": 0, **dict.fromkeys([*REASONS, OTHER], 0)}
    for number in range(FEDERATIONS[training]):
        data = study(training, network, partition, labels, number, {}).load_data()
        found["federations"] += 1
        for gate, table in GATES.items():
            chosen = study(training, network, partition, labels, number, table)
            counted = Counted()
            conduct(chosen, data, attending(attendance, number, chosen.method.total_rounds, counted))
            found[gate]["federations"] += bool(counted.refused)
            found[gate]["updates"] += len(counted.refused)
            for reason in counted.refused:
                found[gate][next((name for name, words in REASONS.items() if words in reason), OTHER)] += 1
        found["updates"] += counted.updates
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.rates")
    parser.add_argument("--anew", action="store_true", help="rows of other versions of the source as well")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    for place in configurations():
        known = read_tree(FILE, KEY)
        *path, last = place
        at = known
        for part in path:
            at = at.setdefault(part, {})
        if not missing(at.get(last), options.anew) or time.monotonic() > until:
            continue
        at[last] = row(*place)
        write_tree(FILE, known, KEY)
        print(", ".join(place), at[last], flush=True)


if __name__ == "__main__":
    main()
