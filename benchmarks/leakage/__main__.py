"""`python -m benchmarks.leakage`: results/leakage.json, two seeds of ten sites."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from benchmarks.leakage.measure import measured

from fedsift.core.files import write_atomically

FILE = Path(__file__).parent / "results" / "leakage.json"
SEEDS = 2

if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {"seeds": SEEDS, "known": measured(SEEDS)}
    write_atomically(FILE, (json.dumps(found, indent=1) + "\n").encode())
    print(json.dumps(found, indent=1))
