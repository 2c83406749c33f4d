"""`python -m benchmarks.attacks.alone`: sites that are visited one by one, as in FedCorr's first stage.

Can a site that turns its sign be told there from an honest one whose labels are all wrong? For both: the cosine of its
lone update with the others' of the same round of visits. And what a hostile site costs that is among the first visited,
when nobody else has said yet how far sites go, as it is and where all sites answer together first.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.accuracy import HOSTILE, KINDS, RULE, SEEDS, SHORT, cell, study_of
from benchmarks.attacks.files import SOURCE, source
from benchmarks.attacks.honest import natural
from benchmarks.attacks.light import conducted
from benchmarks.files import read_tree, write_tree
from tests.promises.attacks import MODEL, attacked, scaled

from fedsift.runtime.gate.protection import ModelUpdate, Protection, agreements
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study

FILE = Path(__file__).parent / "results" / "alone.csv"
KEY = ("federation", "attack")
SITES, STAGE = 10, "pre-processing"
LAST = HOSTILE[0]
WAYS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "first_together": {"first_together": True},
}
"""How FedCorr visits sites."""
EARLY = ("x10", "x25", "sign flip x15", "sign flip x1")
"""What a hostile site sends that is among the first visited."""
FIRST = 3
"""Where it comes in the first visits: first, second, third."""
MISSED = ("sign flip x1", "later sign flip", "a little is enough")
"""What the last site costs more than it may where sites come one by one."""


class Visits(Protection):
    """Refuses nobody and keeps the first stage's updates."""

    moves: dict[str, ModelUpdate]

    def _judged(self, key: str, cohort: Mapping[str, ModelUpdate]) -> dict[str, str]:
        if key.startswith(STAGE):
            self.moves |= cohort
        return {}


def agreement(seed: int, shifted: bool, kind: type[InProcess]) -> float:
    """The cosine of the last site's lone update with the sum of the others' directions."""
    with tempfile.TemporaryDirectory() as place:
        file = natural(Path(place), [120] * SITES, SITES - 1 if shifted else -1)
        data = {"data": {"name": "npz", "path": str(file)}, "partition": {"name": "natural"}}
        study = study_of("fedcorr", Path(place), seed=seed, **data)
        visits = Visits()
        visits.moves = {}
        conducted(study, study.load_data(), kind, protection=visits)
    moves = list(visits.moves.values())
    found = agreements([m.model for m in moves], [m.start for m in moves], moves[0].parameters)
    return round(dict(zip(visits.moves, found))[LAST], 2)


def study_as(way: str, seed: int, kind: str) -> Study:
    rule = RULE if kind == "two" else {}
    method = {"name": "fedcorr", "fraction": 1.0, **SHORT["fedcorr"], **WAYS[way], **rule}
    return study_of("fedcorr", Path(), seed=seed, method=method)


def visited(seed: int) -> list[str]:
    """Who is visited first, second and so on, one by one."""
    study = study_as("as it is", seed, "one")
    visits = Visits()
    visits.moves = {}
    conducted(study, study.load_data(), protection=visits)
    return list(visits.moves)


def costs(way: str, seed: int, kind: str) -> dict[str, Any]:
    """What the last sites cost, one or two of them."""
    study = study_as(way, seed, kind)
    federated, hostile = study.load_data(), HOSTILE if kind == "two" else HOSTILE[:1]
    found = {"none": cell(study, federated, InProcess)}
    return found | {name: cell(study, federated, attacked(MODEL[name], hostile)) for name in MISSED}


def early(way: str, seed: int) -> dict[str, Any]:
    """What one site costs that is visited early."""
    study = study_as(way, seed, "one")
    federated, order = study.load_data(), visited(seed)
    found = {"none": cell(study, federated, InProcess)}
    for number, name in itertools.product(range(FIRST), EARLY):
        found[f"{name}, visited {number + 1}"] = cell(study, federated, attacked(MODEL[name], [order[number]]))
    return found


def lone(seed: int) -> dict[str, Any]:
    turned = attacked(scaled(-1.0), [LAST])
    wrong, flip = agreement(seed, True, InProcess), agreement(seed, False, turned)
    return {"every label wrong": wrong, "sign flip": flip, SOURCE: source()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.alone")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    until = time.monotonic() + 60 * parser.parse_args().minutes
    torch.set_num_threads(1)
    jobs: dict[str, Callable[[], dict[str, Any]]] = {f"seed {seed}": partial(lone, seed) for seed in SEEDS}
    for seed, way in itertools.product(SEEDS, WAYS):
        jobs[f"early, {way}, seed {seed}"] = partial(early, way, seed)
        jobs |= {f"{kind}, {way}, seed {seed}": partial(costs, way, seed, kind) for kind in KINDS}
    for key, job in jobs.items():
        if key not in read_tree(FILE, KEY) and time.monotonic() < until:
            found = job()
            write_tree(FILE, read_tree(FILE, KEY) | {key: found}, KEY)
            print(key, flush=True)


if __name__ == "__main__":
    main()
