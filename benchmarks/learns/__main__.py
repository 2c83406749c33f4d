"""`python -m benchmarks.learns [KIND ...] [--rows NAME ...]`: does each method learn, with and without wrong labels?

Every cell (a kind of data with a method) is a row of `results.csv`, computed by a process of its own and written as it
comes; cells that are there are not computed again (`--again` does). `--in-process` computes one cell here.
`python -m benchmarks.learns.page` makes docs/learns.md of them. Data are found as always, by FEDSIFT_DATA and the
cache folder; HAM10000 needs the `features` extra.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.files import read_list, replaced
from benchmarks.learns.rows import KINDS, ROWS, Kind, Row

from fedsift.benchmark.rows import flat, write_rows

RESULTS = Path(__file__).parent / "results.csv"
KEY = ("kind", "method")
LAST = 3
"""Evaluated rounds over which the end is averaged."""
SEED = 1


def is_there(kind: str, row: str) -> bool:
    return any((cell["kind"], cell["method"]) == (kind, row) for cell in read_list(RESULTS))


def ending(kind: Kind, row: Row, settings: tuple[str, ...], seed: int) -> dict[str, float]:
    """One run: means over the last rounds, of the kind's metric first; of accuracies of both kinds, and FedBN's second
    figure."""
    from fedsift.study.running import new_run, run
    from fedsift.study.scenarios import preset_table
    from fedsift.study.study import Study
    from fedsift.study.toml_tables import apply_overrides

    table = apply_overrides(preset_table(kind.preset), [*kind.settings, *row.settings, *settings, f"seed={seed}"])
    study = Study.from_table({**table, "method": dict(row.method)})
    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        run(study, folder)
        rounds = folder.rounds()
    found = {}
    for name in dict.fromkeys((kind.metric, "accuracy", "bacc", f"mean_site_{kind.metric}")):
        curve = [line[name] for line in rounds if line.get(name) is not None]
        if curve:
            found[name] = round(statistics.fmean(curve[-LAST:]), 4)
    return found


def cell(name: str, label: str, seed: int = SEED) -> dict[str, Any]:
    """Both runs of one method on one kind of data."""
    kind, row = KINDS[name], ROWS[label]
    began = time.process_time()
    clean, noisy = ending(kind, row, kind.clean, seed), ending(kind, row, (), seed)
    own = f"mean_site_{kind.metric}"
    return {
        "kind": name,
        "scenario": kind.preset,
        "method": label,
        "seed": seed,
        "metric": kind.metric,
        "chance": round(kind.chance, 4),
        "clean": clean[kind.metric],
        "noisy": noisy[kind.metric],
        "seconds": round(time.process_time() - began, 1),
        "reference": row.reference,
        "settings": {
            "method": dict(row.method),
            "set": [*kind.settings, *row.settings],
            "clean": [*kind.clean],
        },
        **({"clean_own": clean[own], "noisy_own": noisy[own]} if own in clean else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="only these methods")
    parser.add_argument("--again", action="store_true", help="compute cells that are there too")
    parser.add_argument("--in-process", action="store_true", help="no process of its own for a cell")
    options = parser.parse_args()
    for kind in options.kinds:
        for label in options.rows:
            if kind not in ROWS[label].kinds or (is_there(kind, label) and not options.again):
                continue
            if options.in_process:
                write(cell(kind, label))
                continue
            command = [
                sys.executable,
                "-m",
                "benchmarks.learns",
                kind,
                "--rows",
                label,
                "--again",
                "--in-process",
            ]
            subprocess.run(command, check=False)


def write(found: dict[str, Any]) -> None:
    write_rows(RESULTS, replaced(RESULTS, [flat(found)], **{name: found[name] for name in KEY}), KEY)
    shown = f"clean {found['clean']:.3f}  noisy {found['noisy']:.3f}  {found['seconds']:.0f} s"
    print(f"{found['kind']:<10} {found['method']:<24} {shown}", flush=True)


if __name__ == "__main__":
    main()
