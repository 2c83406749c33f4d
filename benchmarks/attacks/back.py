"""`python -m benchmarks.attacks.back`: how far back an honest site with wrong labels goes, beside one that turns signs.

Ten equal sites of digits, one of which has every label shifted to the next class (of several findings a sample: every
finding turned), or turns the sign of its honest update. The figure is its way along the cohort's direction as a share
of the median one, exchange by exchange.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.honest import natural
from benchmarks.attacks.light import conducted
from benchmarks.attacks.turned import some_wrong
from benchmarks.files import write_tree
from tests.promises.attacks import attacked, scaled

from fedsift.runtime.gate.protection import Protection
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study

FILE = Path(__file__).parent / "results" / "back.csv"
KEY = ("classes", "site")
CLASSES, ROUNDS, SITES = (2, 5, 10), 5, 10
FINDINGS = "4 findings"
LAST = f"site-{SITES - 1:02d}"


class Measuring(Protection):
    """Refuses nothing and writes down how far the last site goes along."""

    ways: list[float]

    def _against(self, along: Mapping[str, float]) -> dict[str, str]:
        self.ways.append(round(along[LAST] / statistics.median(along.values()), 2))
        return {}

    def _left_out(self, along: Mapping[str, float]) -> dict[str, str]:
        return {}


def ways(labels: str, shifted: bool, kind: type[InProcess]) -> list[float]:
    with tempfile.TemporaryDirectory() as place:
        if labels == FINDINGS:
            file = some_wrong(Path(place), labels, float(shifted), sites=1)
        else:
            file = natural(Path(place), [120] * SITES, SITES - 1 if shifted else -1, int(labels))
        study = Study.from_table(
            {
                "seed": 3,
                "data": {"name": "npz", "path": str(file)},
                "partition": {"name": "natural"},
                "noise": {"name": "clean"},
                "model": {"name": "mlp"},
                "train": {"epochs": 5, "batch_size": 32, "lr": 0.1, "momentum": 0.5},
                "method": {"name": "fedavg", "rounds": ROUNDS},
                "engine": {"threads": 1},
                "gate": {"heuristics": "always"},
            }
        )
        measuring = Measuring()
        measuring.ways = []
        conducted(study, study.load_data(), kind, protection=measuring)
    return measuring.ways


def measured() -> dict[str, Any]:
    turned = attacked(scaled(-1.0), [LAST])
    return {
        labels: {
            "honest, every label wrong": ways(labels, True, InProcess),
            "sign flip": ways(labels, False, turned),
        }
        for labels in (*map(str, CLASSES), FINDINGS)
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_tree(FILE, measured(), KEY)
