"""`python -m benchmarks.attacks [--methods A,B] [--minutes N] [--anew]`: fills results/, row by row."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.attacks.accuracy import KINDS, SEEDS, averaging, row
from benchmarks.attacks.files import missing
from benchmarks.attacks.honest import built, margins, presets, studies
from benchmarks.files import read_tree, write_tree

from fedsift.data.download import DataNotFound
from fedsift.study.study import Study

RESULTS = Path(__file__).parent / "results"
ACCURACY, HONEST = RESULTS / "accuracy.csv", RESULTS / "honest.csv"
ACCURACY_KEY, HONEST_KEY = ("method", "federation", "attack"), ("federation",)


def measure_accuracy(names: list[str], kinds: list[str], seeds: list[int], anew: bool, until: float) -> None:
    """Rows that are not there yet; each is written when it is done, so a stopped run goes on."""
    with tempfile.TemporaryDirectory() as place:
        for seed, kind, name in itertools.product(seeds, kinds, names):
            known, key = read_tree(ACCURACY, ACCURACY_KEY), f"{kind}, seed {seed}"
            if not missing(known.get(name, {}).get(key, {}).get("none"), anew):
                continue
            if time.monotonic() > until:
                return
            cells = dict(row(name, Path(place), seed, kind == "two"))
            known.setdefault(name, {})[key] = cells
            write_tree(ACCURACY, known, ACCURACY_KEY)
            print(name, key, {attack: cell["accuracy"] for attack, cell in cells.items()}, flush=True)


def honest_federations(folder: Path) -> Iterator[tuple[str, Study]]:
    for rounds, name in ((12, "fedavg"), (8, "feddyn"), (12, "fednoro")):
        yield from built(folder, {"name": name, "rounds": rounds} | ({"warm_up": 6} if name == "fednoro" else {}))
    yield from studies()
    yield from presets()


def measure_honest(only: str, anew: bool, until: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, study in honest_federations(Path(place)):
            if not missing(read_tree(HONEST, HONEST_KEY).get(name), anew) or only not in name:
                continue
            if time.monotonic() > until:
                return
            try:
                found = margins(study)
            except DataNotFound as error:
                print(name, "is left out:", error)
                continue
            write_tree(HONEST, read_tree(HONEST, HONEST_KEY) | {name: found}, HONEST_KEY)
            print(name, found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks")
    parser.add_argument("--methods", default="", help="only these, by commas")
    parser.add_argument("--hostile", choices=KINDS, action="append", help="only with so many hostile sites")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="only these, by commas")
    parser.add_argument("--anew", action="store_true", help="rows of other versions of the source as well")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    parser.add_argument("--honest", action="store_true", help="how near honest federations come to the limits")
    parser.add_argument("--only", default="", help="with --honest: federations whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    if options.honest:
        measure_honest(options.only, options.anew, until)
    else:
        names = options.methods.split(",") if options.methods else averaging()
        seeds = [int(seed) for seed in options.seeds.split(",")]
        measure_accuracy(names, options.hostile or list(KINDS), seeds, options.anew, until)


if __name__ == "__main__":
    main()
