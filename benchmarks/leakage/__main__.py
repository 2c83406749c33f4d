"""`python -m benchmarks.leakage`: results/leakage.csv, two seeds of ten sites."""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.files import write_tree
from benchmarks.leakage.measure import measured

FILE = Path(__file__).parent / "results" / "leakage.csv"
KEY = ("what",)
SEEDS = 2

if __name__ == "__main__":
    torch.set_num_threads(1)
    found = measured(SEEDS)
    write_tree(FILE, {key: {"value": value, "seeds": SEEDS} for key, value in found.items()}, KEY)
    print(found)
