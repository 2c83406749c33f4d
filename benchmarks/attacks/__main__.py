"""`python -m benchmarks.attacks [--methods A,B] [--minutes N]`: fills results/, cell by cell."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.attacks.accuracy import SEEDS, averaging, row
from benchmarks.attacks.files import read, write
from benchmarks.attacks.honest import built, margins, presets, studies

from fedsift.data.places import NotAtHand
from fedsift.study import Study

RESULTS = Path(__file__).parent / "results"
ACCURACY, HONEST = RESULTS / "accuracy", RESULTS / "honest.json"


def measure_accuracy(names: list[str], until: float) -> None:
    """Rows that are not there yet; each is written when it is done, so a stopped run goes on."""
    with tempfile.TemporaryDirectory() as place:
        for seed, robust, name in itertools.product(SEEDS, (False, True), names):
            file, key = ACCURACY / f"{name}.json", f"{'two' if robust else 'one'}, seed {seed}"
            found = read(file)
            if key in found:
                continue
            if time.monotonic() > until:
                return
            found[key] = dict(row(name, Path(place), seed, robust))
            write(file, found)
            print(name, key, {attack: cell["accuracy"] for attack, cell in found[key].items()}, flush=True)


def honest_federations(folder: Path) -> Iterator[tuple[str, Study]]:
    for rounds, name in ((12, "fedavg"), (8, "feddyn"), (12, "fednoro")):
        yield from built(
            folder, {"name": name, "rounds": rounds} | ({"warm_up": 6} if name == "fednoro" else {})
        )
    yield from studies()
    yield from presets()


def measure_honest(only: str, until: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, study in honest_federations(Path(place)):
            found = read(HONEST)
            if name in found or only not in name:
                continue
            if time.monotonic() > until:
                return
            try:
                found[name] = margins(study)
            except NotAtHand as error:
                print(name, "is left out:", error)
                continue
            write(HONEST, found)
            print(name, found[name], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks")
    parser.add_argument("--methods", default="", help="only these, by commas")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    parser.add_argument(
        "--honest", action="store_true", help="how near honest federations come to the limits"
    )
    parser.add_argument("--only", default="", help="with --honest: federations whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    if options.honest:
        measure_honest(options.only, until)
    else:
        measure_accuracy(options.methods.split(",") if options.methods else averaging(), until)


if __name__ == "__main__":
    main()
