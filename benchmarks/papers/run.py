"""Small versions of the papers' comparisons on real data: every row with its seeds, mean and standard deviation.

    python benchmarks/papers/run.py TABLE.toml [--seeds 1 2 3] [--out RESULTS.json] [KEY=VALUE ...]

A table names a scenario preset, settings over it (`set`), and its rows, each a label and settings of its own, and
the figures that are summed up: `metric` for one, `metrics` for several, each with its mean and standard deviation.
Results are kept as data after every run, so a stopped table goes on where it was. Data are found as always, by
FEDSIFT_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from fedsift.contract.files import write_atomically
from fedsift.data.presets import preset_table
from fedsift.study import Study
from fedsift.study.running import new_run, run
from fedsift.study.tables import apply_overrides

KEPT = (
    "accuracy",
    "bacc",
    "auc",
    "map",
    "detection",
    "corrections",
    "noisy_sites_found",
    "mean_site_accuracy",
    "oracle",
)


def measure(table: dict[str, Any], row: dict[str, Any], seed: int, settings: list[str]) -> dict[str, Any]:
    """One run of one row; what the summary says of it."""
    base = preset_table(row.get("preset", table["preset"]))
    study = Study.from_table(
        apply_overrides(base, [*table.get("set", []), *row.get("set", []), *settings, f"seed={seed}"])
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        summary = run(study, folder)
        last = folder.rounds()[-1]
    kept = {key: summary[key] for key in KEPT if summary.get(key) is not None}
    if "mean_site_accuracy" in last:
        kept["mean_site_accuracy"] = {"final": last["mean_site_accuracy"]}
    return {**kept, "rounds": summary["rounds"], "minutes": round((time.perf_counter() - started) / 60, 2)}


def summarise(results: dict[str, dict[str, Any]], metric: str, part: str) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of one figure over the seeds of each row."""
    lines = {}
    for label, seeds in results.items():
        values = [outcome[metric][part] for outcome in seeds.values() if metric in outcome]
        spread = statistics.stdev(values) if len(values) > 1 else None
        lines[label] = (
            {"mean": statistics.fmean(values), "sd": spread, "seeds": len(values)} if values else {}
        )
    return lines


def summaries(results: dict[str, dict[str, Any]], metrics: list[str], part: str) -> dict[str, dict[str, Any]]:
    """One figure: a line for each row. Several: the same for each figure by its name."""
    if len(metrics) == 1:
        return summarise(results, metrics[0], part)
    return {metric: summarise(results, metric, part) for metric in metrics}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("settings", nargs="*", help="settings over every row, e.g. method.rounds=10")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = tomllib.loads(options.table.read_text("utf-8"))
    out = options.out or options.table.parent / "results" / f"{options.table.stem}.json"
    kept: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    results: dict[str, dict[str, Any]] = kept.get("results", {})
    part = table.get("part", "last")
    metrics: list[str] = table.get("metrics", [table.get("metric", "accuracy")])
    for seed in options.seeds:
        for row in table["rows"]:
            seeds = results.setdefault(row["label"], {})
            if str(seed) in seeds:
                continue
            seeds[str(seed)] = measure(table, row, seed, options.settings)
            figures = "  ".join(f"{metric} {seeds[str(seed)].get(metric, {})}" for metric in metrics)
            print(f"seed {seed}  {row['label']:<28} {figures}  {seeds[str(seed)]['minutes']} min", flush=True)
            data = {
                "table": options.table.name,
                "what": table["what"],
                "preset": table["preset"],
                "metric": metrics[0] if len(metrics) == 1 else metrics,
                "part": part,
                "settings": options.settings,
                "summary": summaries(results, metrics, part),
                "results": results,
            }
            write_atomically(out, (json.dumps(data, indent=2) + "\n").encode())
    for metric in metrics:
        for label, line in summarise(results, metric, part).items():
            if line:
                told = (
                    " (told the truth)" if any(seed.get("oracle") for seed in results[label].values()) else ""
                )
                sd = "" if line["sd"] is None else f" ± {100 * line['sd']:.1f}"
                print(
                    f"{label:<30} {metric} ({part}) {100 * line['mean']:.1f}{sd}  over {line['seeds']} seeds{told}"
                )


if __name__ == "__main__":
    main()
