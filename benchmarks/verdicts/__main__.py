"""`python -m benchmarks.verdicts`: how often a verdict turns when only the arithmetic changes.

Small federations of real digits, clean ones and ones with noisy sites of every strength, are warmed up and tested for
noisy sites (FedNoRo, `detection = "tested"`) with the same seed in several kinds of arithmetic: sites trained one at a
time or in cohorts, with native kernels or with torch alone. A verdict has turned when two of them name different sites
and neither calls itself borderline. Each kind of arithmetic has a process of its own; nothing here is timed, so a busy
machine changes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.files import read_tree, write_tree
from benchmarks.section import Section

from fedsift.formulas.intervals import wilson

RESULTS = Path(__file__).parent / "results" / "pairs.csv"
SECTION = Section("detection.md", "python -m benchmarks.verdicts --page", "turns")
KINDS = {
    "cohort, native": ("cohort", "1"),
    "one, native": ("one", "1"),
    "cohort, torch": ("cohort", "0"),
    "one, torch": ("one", "0"),
}
"""Trainer, and FEDSIFT_NATIVE."""
PAIRS = tuple(f"{a} / {b}" for a, b in itertools.combinations(KINDS, 2))
ALL = "all together"


def study_of(number: int, trainer: str) -> dict[str, Any]:
    """The numbered federation: 6 to 12 sites, a third of them clean, the others with 0.2-0.4 or 0.4-0.6 noise."""
    low = (0.1, 0.3, 0.5)[number % 3]
    noise: dict[str, Any] = {"name": "clean"}
    if number % 3:
        noise = {"name": "fedcorr", "rho": 0.3, "tau": low - 0.1, "upper": low + 0.1, "sites": "exact"}
    return {
        "seed": number,
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 6 + number % 7, "p": 0.8},
        "noise": noise,
        "model": {"name": ("cnn", "mlp", "lenet5")[number // 3 % 3]},
        "train": {"epochs": 1, "batch_size": 10, "lr": 0.05, "momentum": 0.5},
        "method": {"name": "fednoro", "rounds": 7, "warm_up": 6, "detection": "tested"},
        "engine": {"trainer": trainer},
    }


def judge(number: int, trainer: str) -> dict[str, Any]:
    """Warm up and test one federation."""
    from fedsift.protocol.federation import Round
    from fedsift.protocol.findings import Findings
    from fedsift.study.running import open_in_process
    from fedsift.study.study import Study

    study = Study.from_table(study_of(number, trainer))
    federation = open_in_process(study, study.load_data(), "verdicts")
    federation.begin(Round("start", 0, -1), ())
    state = study.method.start(federation)
    done = 0
    for stage in study.method.stages()[:2]:
        for index in range(stage.rounds):
            federation.begin(Round(stage.name, index, done), stage.asks)
            state = stage.step(state, federation)
            done += 1
    found = Findings.of(federation.log.values)
    assert found is not None and federation.federated.truth is not None
    return {
        "number": number,
        "noisy": sorted(found.noisy),
        "truth": sorted(federation.federated.truth.noisy),
        "p_value": found.p_value,
        "steadiness": found.steadiness,
        "borderline": found.borderline,
        "no_clean_reference": found.no_clean_reference,
        "indicator": [federation.site_records["indicator"][site] for site in federation.sites],
    }


def child(kernels: str, count: int) -> None:
    """One line of JSON for each federation and trainer, with this process's kernels."""
    import torch

    torch.set_num_threads(1)
    for number in range(1, count + 1):
        for kind, (trainer, own) in KINDS.items():
            if own == kernels:
                print(json.dumps({"kind": kind, **judge(number, trainer)}), flush=True)


def gather(count: int, minutes: float) -> dict[str, list[dict[str, Any]]]:
    """The verdicts of every kind of arithmetic, on the federations that all of them finished in time."""
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        files = {kernels: Path(folder) / kernels for kernels in sorted({own for _, own in KINDS.values()})}
        running = []
        for kernels, file in files.items():
            with file.open("w") as out:
                command = ["-m", "benchmarks.verdicts", "--child", kernels, "--federations", str(count)]
                environment = {**os.environ, "FEDSIFT_NATIVE": kernels}
                running.append(subprocess.Popen([sys.executable, *command], env=environment, stdout=out))
        for process in running:
            try:
                code = process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                code = 0 * process.wait()
            if code:
                raise SystemExit(f"a process failed with exit code {code}")
        lines = [line for file in files.values() for line in file.read_text().splitlines(keepends=True)]
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    found = {kind: {row["number"]: row for row in rows if row["kind"] == kind} for kind in KINDS}
    shared = sorted(set.intersection(*(set(own) for own in found.values())))
    return {kind: [own[number] for number in shared] for kind, own in found.items()}


def compare(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """How the verdicts of two kinds of arithmetic differ over the same federations."""
    pairs = list(zip(one, other))
    differ = [(a, b) for a, b in pairs if a["noisy"] != b["noisy"]]
    turned = [(a, b) for a, b in differ if not (a["borderline"] or b["borderline"])]
    return {
        "federations": len(pairs),
        "different": len(differ),
        "turned": len(turned),
        "turned_share": len(turned) / len(pairs),
        "turned_interval": interval(len(turned), len(pairs)),
        "which": [[a["number"], a["p_value"], b["p_value"]] for a, b in turned],
        "indicators_differ_by": quantiles([_difference(a["indicator"], b["indicator"]) for a, b in pairs]),
    }


def _difference(one: list[list[float | None]], other: list[list[float | None]]) -> float:
    """Median relative difference of the entries that both have."""
    ratios = sorted(
        abs(a - b) / max(abs(a), abs(b), 1e-12)
        for x, y in zip(one, other)
        for a, b in zip(x, y)
        if a is not None and b is not None
    )
    return ratios[len(ratios) // 2]


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"{share:.0%}": ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.9, 1.0)}


def interval(hits: int, n: int) -> list[float]:
    """A 95 % interval for a share."""
    return [round(end, 5) for end in wilson(hits, n)]


def report(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Every pair of kinds, all of them together, and how good and how sure the verdicts are."""
    pairs = {f"{a} / {b}": compare(found[a], found[b]) for a, b in itertools.combinations(KINDS, 2)}
    rows = list(zip(*found.values()))
    turned = sum(
        any(a["noisy"] != b["noisy"] for a, b in itertools.combinations([r for r in row if not r["borderline"]], 2))
        for row in rows
    )
    first = next(iter(found.values()))
    clean = [row for row in first if not row["truth"]]
    noisy = [row for row in first if row["truth"]]
    together = {
        "federations": len(rows),
        "turned_in_any_pair": turned,
        "turned_share": turned / len(rows),
        "turned_interval": interval(turned, len(rows)),
        "borderline_share": sum(row["borderline"] for row in first) / len(first),
        "borderline_share_of_clean": sum(row["borderline"] for row in clean) / max(len(clean), 1),
        "false_alarms_among_clean": sum(bool(row["noisy"]) for row in clean) / max(len(clean), 1),
        "exactly_right_among_noisy": sum(row["noisy"] == row["truth"] for row in noisy) / max(len(noisy), 1),
    }
    return {**pairs, ALL: together}


def body() -> str:
    return table_of(read_tree(RESULTS, ("arithmetic",)))


def table_of(rows: dict[str, dict[str, Any]]) -> str:
    """The table of docs/detection.md: a line a pair of arithmetics, then all of them together."""
    lines = [
        "| arithmetic | other sites named | turned | 95 % interval | indicators differ by, median, most |",
        "|---|---|---|---|---|",
    ]
    for pair in PAIRS:
        row = rows[pair]
        low, high = (f"{100 * end:.1f}" for end in row["turned_interval"])
        moved = row["indicators_differ_by"]
        lines.append(
            f"| {pair} | {row['different']} | {row['turned']} | {low}-{high} % "
            f"| {moved['50%']:.0e}, {moved['100%']:.0e} |"
        )
    result = rows[ALL]
    low, high = (100 * end for end in result["turned_interval"])
    words = (
        f"{result['federations']} federations of digits, a third of them clean, 6 to 12 sites, three networks. "
        f"{result['turned_in_any_pair']} verdicts turned in any pair ({100 * result['turned_share']:.1f} %, 95 % "
        f"interval {low:.1f} to {high:.1f} %; a verdict that says it is borderline does not count as one). "
        f"{result['borderline_share']:.0%} called themselves borderline, "
        f"{result['borderline_share_of_clean']:.0%} of the clean ones; "
        f"{result['false_alarms_among_clean']:.1%} of the clean ones were accused, and of the others "
        f"{result['exactly_right_among_noisy']:.0%} had exactly their noisy sites named."
    )
    return "\n".join([*lines, "", words])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after this; what is finished counts")
    parser.add_argument("--page", action="store_true", help="only write the figures into docs/detection.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.federations)
        return
    if options.page:
        SECTION.write(body())
        return
    result = report(gather(options.federations, options.minutes))
    write_tree(options.out, result, ("arithmetic",))
    print(json.dumps(result[ALL], indent=1))
    for pair in PAIRS:
        row = result[pair]
        print(f"{pair}: {row['turned']} turned, {row['different']} different, {row['indicators_differ_by']}")


if __name__ == "__main__":
    main()
