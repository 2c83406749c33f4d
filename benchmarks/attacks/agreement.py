"""`python -m benchmarks.attacks.agreement`: where a turned sign is not told, does the cohort have a direction at all?

For every method with a cell that cost more than it may: how many sites' models came together in each of the run's first
exchanges without an attacker, and the median cosine of each with the others.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.accuracy import study_of
from benchmarks.attacks.light import conducted
from benchmarks.attacks.page import AGREEMENT as FILE
from benchmarks.attacks.page import AGREEMENT_KEY as KEY
from benchmarks.attacks.page import missed_methods
from benchmarks.files import read_tree, write_tree

from fedsift.runtime.gate.protection import ModelUpdate, Protection, agreements

EXCHANGES = 4


class Agreeing(Protection):
    """Refuses nobody and writes down how far the others agree."""

    looked: list[dict[str, Any]]

    def _judged(self, key: str, cohort: Mapping[str, ModelUpdate]) -> dict[str, str]:
        if key.endswith("/0"):
            moves = list(cohort.values())
            found = agreements([m.model for m in moves], [m.start for m in moves], moves[0].parameters)
            middle = round(statistics.median(found), 2) if len(moves) > 2 else None
            self.looked.append({"models": len(moves), "cosine": middle})
        return {}


def agreement(name: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        study = study_of(name, Path(place))
        watching = Agreeing()
        watching.looked = []
        conducted(study, study.load_data(), protection=watching)
    return watching.looked[:EXCHANGES]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method in missed_methods():
        known = read_tree(FILE, KEY)
        if method not in known:
            write_tree(FILE, known | {method: dict(enumerate(agreement(method), 1))}, KEY)
