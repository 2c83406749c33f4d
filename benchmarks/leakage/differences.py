"""`python -m benchmarks.leakage.differences [--only NAME]`: results/differences.csv, what is told of one sample.

Two honest sites differ by one sample: another person stands in its place. Both answer the same request of every kind
that a method sends, and what leaves them is compared field by field. The attacker is the best that looks at
differences linearly: it knows both answers without noise and asks which of them it got (advantage: how much more often
it is right than wrong), and it takes a difference for the sample, or learns a linear map from differences to samples at
the other persons (recovered: the share of a sample's variance that the better of both explains; of a learned map at a
person left out).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.attacks.light import conducted
from benchmarks.leakage.measure import MIN_COUNT
from benchmarks.leakage.methods import study_of
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from fedsift.benchmark.rows import read_rows, write_rows
from fedsift.core.errors import FedsiftError
from fedsift.data.dataset import Dataset
from fedsift.methods._base import methods
from fedsift.protocol.messages import SPANS, Reply, ReplyEnvelope, Request, RequestEnvelope
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.runtime.in_process import InProcess
from fedsift.training.private_updates import NOISED, NoiseMechanism, protected, statistic_of

Array = NDArray[np.float64]
FILE = Path(__file__).parent / "results" / "differences.csv"
KEY = ("state", "method", "field", "policy")
NOW = "after"
"""Rows with another state were made by the same code on an earlier version; they are kept."""
PEOPLE = 16
CLIP, NOISE = 1.0, 8.0
"""As in the example of docs/deployment.md."""
POLICIES = ("none", "default", "narrowest")
LINEAR = "label-audit, linear"
FEW_ROWS = 2
"""So many are read one by one as well."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One field of both sites' answers to one request, as vectors before any noise, and the noise on each number."""

    field: str
    mine: Array
    theirs: Array
    sigma: float


def vector(value: Any) -> Array:
    if isinstance(value, Tensor):
        return np.asarray(value.double().flatten().numpy())
    if isinstance(value, Mapping):
        return np.concatenate([vector(item) for item in value.values()] or [np.zeros(0)])
    if isinstance(value, tuple):
        return np.concatenate([vector(item) for item in value] or [np.zeros(0)])
    return np.array([float(value)] if isinstance(value, bool | int | float) else [])


def released(reply: Reply, request: Request[Any], policy: str, samples: int) -> Reply:
    """What leaves, but for the noise."""
    if policy == "none":
        return reply
    mechanism = NoiseMechanism(CLIP) if policy == "narrowest" else None
    return protected(reply, request, mechanism, min_count=MIN_COUNT, samples=samples).reply


def compared(request: Request[Any], one: Reply, other: Reply, policy: str, samples: int) -> Iterator[Difference]:
    for f in dataclasses.fields(one):
        mine, theirs, kind = getattr(one, f.name), getattr(other, f.name), statistic_of(f)
        if kind == "replies":
            for asked, a, b in zip(request.besides, mine, theirs, strict=True):
                yield from compared(asked, a, b, policy, samples)
            continue
        if kind == "labels" or (policy == "narrowest" and f.metadata["spare"]):
            continue
        a, b = vector(mine), vector(theirs)
        if a.shape != b.shape:
            a, b = np.ones(1), np.zeros(1)  # withheld in one of the two
        if not a.size:
            continue
        sigma = 0.0
        if policy == "narrowest" and kind in NOISED:
            span = SPANS[kind] * (samples if kind == "likelihood" else 1) if kind in SPANS else 0.0
            sigma = NOISE * (span / 2 * a.size**0.5 if span else CLIP)
        yield Difference(f"{type(one).__name__}.{f.name}", a, b, sigma)


class Pairs(InProcess):
    """Asks the first site, for the first request of each kind, once more for each of some persons replaced."""

    found: dict[tuple[str, str], list[Difference]]
    persons: Array
    done: set[str]

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        site = self.sites[0]
        answer = answers.get(site)
        if answer is None or answer.reply is None or type(answer.reply).__name__ in self.done:
            return answers
        request, samples = envelopes[site].request, self.facts[site].seen
        self.done.add(type(answer.reply).__name__)
        for person in range(PEOPLE):
            theirs = request.answer(self.other(envelopes[site], person))
            for policy in POLICIES:
                left = [released(reply, request, policy, samples) for reply in (answer.reply, theirs)]
                for each in compared(request, *left, policy, samples):
                    self.found.setdefault((each.field, policy), []).append(each)
        return answers

    def other(self, envelope: RequestEnvelope, person: int) -> Site:
        """The site with a stranger of the test set in one person's place, with the notebook that it has."""
        site, data = self.site(envelope), self.federated.dataset
        rows, given = site.samples.rows.clone(), site.given.clone()
        rows[person], given[person] = int(data.test[person]), torch.from_numpy(data.labels)[int(data.test[person])]
        samples = dataclasses.replace(site.samples, rows=rows)
        return dataclasses.replace(site, samples=samples, given=given, notebook=Notebook(site.notebook.pages()))


def persons(data: Dataset, rows: Array) -> Array:
    """What an attacker wants: the sample in place of the stranger, `[P, numbers]`."""
    flat = data.images.reshape(len(data.images), -1).astype(np.float64)
    return np.asarray(flat[rows[:PEOPLE]] - flat[data.test[:PEOPLE]])


def advantage(each: Difference) -> float:
    """P(right) - P(wrong) of the likelihood ratio between N(mine, sigma) and N(theirs, sigma)."""
    away = float(np.linalg.norm(each.mine - each.theirs))
    if not away or not each.sigma:
        return float(away > 0)
    return float(2 * norm.cdf(away / (2 * each.sigma)) - 1)


def recovered(differences: list[Difference], wanted: Array, random: np.random.Generator) -> float:
    """Share of variance that ridge regression from noised differences explains at a person left out."""
    seen = np.stack([each.mine - each.theirs for each in differences])
    sigma = differences[0].sigma * 2**0.5
    seen = seen + sigma * random.normal(size=seen.shape) if sigma else seen
    if not np.abs(seen).max() > 0:
        return 0.0
    seen = seen / np.abs(seen).max()
    kernel = seen @ seen.T
    best = 0.0
    for ridge in 10.0 ** np.arange(-8, 3):
        hat = kernel @ np.linalg.inv(kernel + ridge * np.trace(kernel) / len(kernel) * np.eye(len(kernel)))
        missed = (wanted - hat @ wanted) / (1 - np.diag(hat))[:, None]
        best = max(best, 1 - float((missed**2).sum() / (wanted**2).sum()))
    return best


def read_off(differences: list[Difference], wanted: Array, random: np.random.Generator) -> float:
    """Share of variance along what a difference holds most of, taken for the sample itself: of rows of as many numbers
    as a sample has, or of a linear model's columns, the direction that explains most of them."""
    shares = []
    for each, person in zip(differences, wanted):
        away = each.mine - each.theirs + each.sigma * 2**0.5 * random.normal(size=each.mine.shape)
        width = len(person)
        if away.size % width == 0:
            rows = away.reshape(-1, width)
        elif away.size % (width + 1) == 0:
            rows = away.reshape(width + 1, -1)[:width].T
        else:
            return 0.0
        guesses = [np.linalg.svd(rows, full_matrices=False)[2][0], *(rows if len(rows) <= FEW_ROWS else ())]
        lengths = [float(guess @ guess) * float(person @ person) for guess in guesses]
        shares.append(max(float(g @ person) ** 2 / length if length else 0.0 for g, length in zip(guesses, lengths)))
    return statistics.mean(shares)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval over persons."""
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), 2.131 * spread  # t with 15 degrees of freedom


def measured(name: str) -> list[dict[str, Any]]:
    method, _, network = name.partition(", ")
    found: dict[tuple[str, str], list[Difference]] = {}
    with tempfile.TemporaryDirectory() as place:
        study = study_of(method, 1, Path(place))
        if network:
            study = dataclasses.replace(study, model=dataclasses.replace(study.model, name=network))
        federated = study.load_data()
        try:
            conducted(study, federated, Pairs, found=found, done=set())
        except FedsiftError as error:
            print(name, "ended:", error)
    wanted = persons(federated.dataset, federated.rows[federated.sites[0]])
    random, rows = np.random.default_rng(1), []
    for (field, policy), differences in sorted(found.items()):
        mean, half = interval([advantage(each) for each in differences])
        alike = len({each.mine.shape for each in differences}) == 1 and len(differences) == PEOPLE
        ways = (recovered, read_off) if alike else ()
        share = max((way(differences, wanted, random) for way in ways), default=0.0)
        rows.append(
            {
                **dict(zip(KEY, (NOW, name, field, policy))),
                "advantage": round(mean, 3),
                "plus_minus": round(half, 3),
                "recovered": round(share, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leakage.differences")
    parser.add_argument("--only", default="", help="one method")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [*methods.names(), LINEAR]:
        if options.only in ("", name):
            kept = read_rows(FILE) if FILE.is_file() else []
            others = [row for row in kept if (row["state"], row["method"]) != (NOW, name)]
            write_rows(FILE, [*others, *measured(name)], KEY)
            print(name, flush=True)


if __name__ == "__main__":
    main()
