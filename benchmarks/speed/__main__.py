"""`python -m benchmarks.speed`: fedsift beside plain PyTorch, research code and Flower, alternating in one run.

Ratios travel between machines, seconds do not: every ratio is taken within one turn of all sides, and the median and
quartiles over the turns are shown. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import replaced
from benchmarks.speed.figure import bar_chart
from benchmarks.speed.process import AGAINST, Side
from benchmarks.speed.workload import WORKLOADS, Workload

from fedsift.benchmark.rows import write_rows

RESULTS = Path(__file__).parent / "results"
OURS = "fedsift, 2 processes"
SIDES = {
    "w1": [
        "research, 1 thread",
        "research, 2 threads",
        "plain, 1 thread",
        "plain, 2 processes",
        "flower",
        "pfl-research, 1 process",
        "fedsift, 1 process",
        OURS,
    ],
    "w2-resnet8": ["research, 1 thread", "plain, 1 thread", "plain, 2 threads", "plain, 2 processes", OURS],
    "w2-resnet18": ["plain, 1 thread", "plain, 2 threads", "plain, 2 processes", OURS],
}
WHOLE_RUN_ROUNDS = 20
FEWEST_TURNS = 15
"""Of two states of fedsift: they are close, and a tenth from hour to hour is nothing on a shared machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--turns", type=int, default=7, help="turns of all sides")
    parser.add_argument("--sides", default="", help="only these, separated by ';'")
    parser.add_argument("--whole-runs", type=int, default=0, help=f"also time runs of {WHOLE_RUN_ROUNDS} rounds")
    parser.add_argument("--sweep", action="store_true", help="also vary sites a round, batch size and model")
    parser.add_argument(
        "--against",
        type=Path,
        help="the src folder of another state of fedsift: only it and this one take turns",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.workloads:
        if options.against:
            result = against(WORKLOADS[name], options.against, max(options.turns, FEWEST_TURNS))
            save_against(result, options.out)
            continue
        sides = options.sides.split(";") if options.sides else SIDES[name]
        result = compare(WORKLOADS[name], available(sides), options.turns)
        if options.whole_runs:
            wanted = [side for side in (OURS, "flower") if side in available(sides)]
            result["whole_runs"] = whole_runs(WORKLOADS[name], wanted, options.whole_runs)
        save_sides(result, options.out)
    if options.sweep:
        save_sweep(sweep(options.turns), options.out)


def available(sides: list[str]) -> list[str]:
    """Without the sides whose frameworks are not installed."""
    needs = {"flower": ("flwr", "ray"), "pfl-research, 1 process": ("pfl",)}
    return [side for side in sides if all(find_spec(module) for module in needs.get(side, ()))]


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def compare(work: Workload, names: list[str], turns: int) -> dict[str, Any]:
    """All sides, alternating; the first two rounds of each warm up."""
    seconds, memory = take_turns([Side(name, work) for name in names], turns)
    print(f"\n{work.name}: {work.model}, batches of {work.batch}, {work.chosen} sites x {work.samples} images")
    result = {"workload": work.name, "machine": machine(), "turns": turns, "sides": {}}
    for name in names:
        ratios = [theirs / own for theirs, own in zip(seconds[name], seconds[OURS])] if OURS in seconds else []
        row = {"seconds": quartiles(seconds[name]), "memory_mb": memory[name]}
        if ratios:
            row["times_ours"] = quartiles(ratios)
        result["sides"][name] = row
        print(f"  {name:34s} {_three(row['seconds'])} s {_three(row.get('times_ours'))} x ours, {memory[name]} MB")
    return result


def take_turns(sides: list[Side], turns: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of every side's turns, and its memory at the end; the sides are ended."""
    try:
        for side in sides:
            side.round()
            side.round()
            side.pause()
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn in range(turns):
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                side.wake()
                side.round()  # not counted: after a pause the caches, and even the memory, are another side's
                seconds[side.name].append(side.round(again=True))
                side.pause()
        memory = {side.name: round(side.memory()) for side in sides}
    finally:
        for side in sides:
            side.wake()
            side.end()
    return seconds, memory


def against(work: Workload, source: Path, turns: int) -> dict[str, Any]:
    """This state of fedsift beside another: seconds, and this one's time as a multiple of the other's."""
    sides = [Side(OURS, work), Side(OURS, work, source)]
    seconds, _ = take_turns(sides, turns)
    ratios = [new / old for new, old in zip(seconds[OURS], seconds[f"{OURS}, {AGAINST}"])]
    result = {
        "workload": work.name,
        "machine": machine(),
        "turns": turns,
        "seconds": {name: quartiles(values) for name, values in seconds.items()},
        "ratio": quartiles(ratios),
        "median_interval": median_interval(ratios),
    }
    low, high = result["median_interval"]
    print(f"\n{work.name}: {_three(result['ratio'])} times the other's time, 95 % of the median {low:.3f}-{high:.3f}")
    return result


def median_interval(values: list[float]) -> list[float]:
    """A 95 % interval of the median by its ranks: binomial, no shape assumed."""
    ordered, n = sorted(values), len(values)
    below = [sum(math.comb(n, j) for j in range(k + 1)) / 2**n for k in range(n)]
    skipped = max((k for k in range(n) if below[k] <= 0.025), default=0)
    return [round(ordered[skipped], 4), round(ordered[n - 1 - skipped], 4)]


def whole_runs(work: Workload, names: list[str], times: int) -> dict[str, Any]:
    """Seconds from the start of the process to the end of its 20th round."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(times):
        for name in names:
            side = Side(name, work)
            try:
                for _ in range(WHOLE_RUN_ROUNDS):
                    side.round()
                seconds[name].append(side.age)
            finally:
                side.end()
    for name in names:
        print(f"  {WHOLE_RUN_ROUNDS} rounds with start-up, {name:20s} {_three(quartiles(seconds[name]))} s")
    return {name: quartiles(values) for name, values in seconds.items()}


def sweep(turns: int) -> list[dict[str, Any]]:
    """Ours against the best plain loop, one thing varied at a time."""
    base = WORKLOADS["w1"]
    points: list[tuple[str, Any, Workload]] = []
    for chosen in (2, 5, 10, 20, 40):
        points.append(("sites a round", chosen, Workload("sweep", base.model, 10, 200, chosen=chosen)))
    for batch in (5, 10, 20, 50, 100):
        points.append(("batch size", batch, Workload("sweep", base.model, batch, 200)))
    for model in ("mlp", "lenet5", "cnn", "resnet8-cifar", "shufflenet-g2-cifar", "mobilenetv2-cifar"):
        points.append(("model", model, Workload("sweep", model, 16, 48)))
    found = []
    for what, value, work in points:
        print(f"\n{what} = {value}", end="")
        sides = compare(work, ["plain, 2 processes", OURS], turns)["sides"]
        found.append({"what": what, "value": value, **sides["plain, 2 processes"], "ours": sides[OURS]})
    return found


def save_sides(result: dict[str, Any], folder: Path) -> None:
    """`sides.csv`, a row a side of each workload, and the workload's chart."""
    whole = result.get("whole_runs", {})
    common = {"turns": result["turns"], **result["machine"]}
    rows = [
        {
            "workload": result["workload"], "side": name, **_columns("seconds", row["seconds"]),
            "memory_mb": row["memory_mb"],
            **(_columns("times_ours", row["times_ours"]) if "times_ours" in row else {}),
            **(_columns("whole_run", whole[name]) if name in whole else {}), **common,
        }
        for name, row in result["sides"].items()
    ]  # fmt: skip
    file = folder / "sides.csv"
    write_rows(file, replaced(file, rows, workload=result["workload"]), ("workload", "side"))
    (folder / f"{result['workload']}.svg").write_text(bar_chart(result))


def save_against(result: dict[str, Any], folder: Path) -> None:
    """`against.csv`, a row a workload."""
    low, high = result["median_interval"]
    row = {
        "workload": result["workload"], "turns": result["turns"],
        **_columns("ours", result["seconds"][OURS]),
        **_columns("other", result["seconds"][f"{OURS}, {AGAINST}"]),
        **_columns("ratio", result["ratio"]), "median_from": low, "median_to": high, **result["machine"],
    }  # fmt: skip
    file = folder / "against.csv"
    write_rows(file, replaced(file, [row], workload=result["workload"]), ("workload",))


def save_sweep(points: list[dict[str, Any]], folder: Path) -> None:
    """`sweep.csv`, a row a point: the plain loop, and ours."""
    rows = [
        {
            "what": point["what"], "setting": point["value"], **_columns("seconds", point["seconds"]),
            "memory_mb": point["memory_mb"], **_columns("times_ours", point["times_ours"]),
            **_columns("ours", point["ours"]["seconds"]), "ours.memory_mb": point["ours"]["memory_mb"], **machine(),
        }
        for point in points
    ]  # fmt: skip
    write_rows(folder / "sweep.csv", rows, ("what", "setting"))


def _columns(name: str, three: list[float]) -> dict[str, float]:
    return {f"{name}.{part}": value for part, value in zip(("low", "median", "high"), three)}


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return [round(values[0], 4)] * 3
    return [round(value, 4) for value in statistics.quantiles(values, n=4, method="inclusive")]


def _three(values: list[float] | None) -> str:
    return "" if values is None else f"{values[1]:7.3f} ({values[0]:.3f}-{values[2]:.3f})"


if __name__ == "__main__":
    main()
