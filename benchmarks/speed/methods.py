"""`python -m benchmarks.speed.methods [NAME ...]`: what a round of every method costs beside FedAvg's, stacked.

LeNet-5, batches of 10, ten sites of 200 random images, one epoch, in one process and one thread. A method's round and
FedAvg's alternate; the ratio is of processor time for each site that took part, median and quartiles over the turns, so
that a shared machine disturbs it little. `--page` writes the table of results/methods.csv into docs/speed.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.section import Section
from threadpoolctl import threadpool_limits

from fedsift.benchmark.rows import read_rows, write_rows
from fedsift.methods._base import methods
from fedsift.protocol.federation import Round
from fedsift.protocol.method import Stage
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study

RESULTS = Path(__file__).parent / "results" / "methods.csv"
SECTION = Section("speed.md", "python -m benchmarks.speed.methods --page", "methods")
SITES, SAMPLES, CLASSES = 10, 200, 10
QUARTILES = ("low", "median", "high")
MOST = 2.3
"""Times FedAvg's round that two networks or a teacher may cost."""
WHY = {
    "co-teaching": "two trainings; each step also ranks the other network's losses and writes down losses and first "
    "looks, from which a site estimates its noise rate",
    "dividemix": "two trainings, and six forward passes to make labels (two networks, each on the pictures as they are "
    "and on two augmented views), once a visit: the longer a site trains in a visit, the less they weigh",
    "dividemix, 5 epochs": "the same, the labels once for five epochs on mixtures",
    "fedrn": "one training, and four forward passes (the received model, two neighbours, the trained model) beside two "
    "heads that are tuned; the bound is for one teacher",
    "fedmlp": "one training in which a frozen teacher looks at every batch, and two passes over all samples for their "
    "features, one to tag missing labels before, one for prototypes after",
    "feddf": "every site also distils the ensemble on the public samples and predicts them, one site after the other: "
    "another budget than private training, to which the bound does not apply",
    "fedmd": "every site also fits the consensus on the public samples and predicts them, one site after the other, "
    "and its pre-training is ten epochs a visit: another budget, to which the bound does not apply",
    "rhfl": "every site also learns from the others on the public samples and predicts them, one site after the other, "
    "and its pre-training is ten epochs a visit: another budget, to which the bound does not apply",
}
"""What a method does beside one training pass, where that costs more than the bound."""
WITHOUT_TRAINING = ("label-audit",)
LONGER = {"dividemix, 5 epochs": ("dividemix", 5)}
"""What is done once a visit weighs less where a site trains longer, as DivideMix's twenty epochs were meant to."""


class Stepper:
    """A method in the middle of its run, on random images."""

    def __init__(self, name: str, folder: Path, epochs: int = 1) -> None:
        kind = methods.get(name)
        several = "multiclass" not in kind.tasks
        table: dict[str, Any] = {
            "data": {"name": "npz", "path": str(_images(folder, several))},
            "partition": {"name": "iid", "sites": SITES},
            "noise": {"name": "class-missing", "missing": 4} if several else {"name": "symmetric", "rate": 0.3},
            "model": {"name": "lenet5"},
            "train": {
                "epochs": epochs,
                "batch_size": 10,
                "lr": 0.01,
                "momentum": 0.5,
                "augment": {"flip": True, "crop": 4},
            },
            "method": {"name": name, **_everyone(kind)},
            "engine": {"threads": 1},
        }
        if "public" in kind.needs:
            table["public"] = {"from_train": 0.1}
        study = Study.from_table(table)
        federated = study.load_data()
        self.method = study.completed(study.facts(federated)).method
        self.federation: InProcess = open_in_process(study, federated, name)
        self.federation.begin(Round("start", 0, -1), ())
        self.state = self.method.start(self.federation)
        self._number = 0

    def step(self, stage: Stage, index: int) -> float:
        """Processor time of one round for each site that took part."""
        began = time.process_time()
        self.federation.begin(Round(stage.name, index, self._number), stage.asks)
        self.state = stage.step(self.state, self.federation)
        self._number += 1
        return (time.process_time() - began) / max(1, len(self.federation.log.participants))


def _everyone(kind: type) -> dict[str, Any]:
    """Settings under which all sites train in every round."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: 1.0 for name in ("fraction", "visit_fraction") if name in names}


def _images(folder: Path, several: bool) -> Path:
    path = folder / f"images-{several}.npz"
    if not path.is_file():
        rng = np.random.default_rng(0)
        rows = SITES * SAMPLES
        labels = rng.random((rows, 8)) < 0.2 if several else rng.integers(CLASSES, size=rows)
        images = rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        np.savez(path, images=images, labels=labels.astype(np.int64), test_images=images[:50],
                 test_labels=labels[:50].astype(np.int64))  # fmt: skip
    return path


def rounds_of(stepper: Stepper, turns: int) -> Iterator[tuple[Stage, int, int]]:
    """Stage, index and turn: the first `turns` + 1 rounds of each stage, of which the first warms up."""
    for stage in stepper.method.stages():
        for index in range(min(stage.rounds, turns + 1)):
            yield stage, index, index


@functools.cache
def _plain(folder: Path, epochs: int) -> Stepper:
    """FedAvg, warmed up; one for all methods."""
    plain = Stepper("fedavg", folder, epochs)
    [train] = plain.method.stages()
    plain.step(train, 0)
    return plain


def measure(name: str, turns: int, folder: Path) -> dict[str, list[float]]:
    """Ratio to FedAvg's round, three quartiles for each stage that trains."""
    method, epochs = LONGER.get(name, (name, 1))
    plain, own = _plain(folder, epochs), Stepper(method, folder, epochs)
    [train] = plain.method.stages()
    ratios: dict[str, list[float]] = {}
    for stage, index, turn in rounds_of(own, turns):
        before = plain.step(train, 1)
        seconds = own.step(stage, index)
        beside = (before + plain.step(train, 2)) / 2
        if stage.trains and (turn or stage.rounds == 1):
            ratios.setdefault(stage.name, []).append(seconds / beside)
    return {stage: _quartiles(values) for stage, values in ratios.items()}


def _quartiles(values: list[float]) -> list[float]:
    if len(values) == 1:
        return [round(values[0], 3)] * 3
    return [round(value, 3) for value in statistics.quantiles(values, n=4, method="inclusive")]


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """One line a method, the dearest of its stages last named."""
    lines = ["| method | stage: times FedAvg's round, median (quartiles) |", "|---|---|"]
    for name, stages in sorted(results.items()):
        cells = [f"{stage}: {q[1]:.2f} ({q[0]:.2f}-{q[2]:.2f})" for stage, q in stages.items()]
        lines.append(f"| {name} | {', '.join(cells)} |")
    return "\n".join(lines)


def body() -> str:
    """What docs/speed.md shows between the marks."""
    facts = read()
    results: dict[str, dict[str, list[float]]] = facts["ratios"]
    apart = sorted(set(results) - set(facts["together"]))
    words = f"Figures of one run over {len(results) - len(apart)} rows, {facts['turns']} turns each, torch "
    words += f"{facts['torch']}" + (f"; {', '.join(apart)} were measured apart from it." if apart else ".")
    dear = sorted(name for name, stages in results.items() if any(q[1] > MOST for q in stages.values()))
    absent = [name for name in _all() if name not in results and name not in LONGER]
    closing = [f"None costs more than {MOST} times."]
    if dear:
        reasons = [f"- **{name}**: {WHY.get(name, 'not looked into')}." for name in dear]
        closing = [f"Above {MOST} times:", "\n".join(reasons)]
    closing += [f"Not measured: {', '.join(absent)}."] if absent else []
    return "\n\n".join([table(results), words, *closing])


def read() -> dict[str, Any]:
    """The ratios, and which of them are of one run."""
    rows = read_rows(RESULTS)
    ratios: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        ratios.setdefault(row["method"], {})[row["stage"]] = [row[part] for part in QUARTILES]
    return {
        "ratios": ratios,
        "together": list(dict.fromkeys(row["method"] for row in rows if row["together"])),
        "turns": rows[0]["turns"],
        "torch": rows[0]["torch"],
    }


def keep(facts: dict[str, Any]) -> None:
    """A row a method and stage."""
    rows = [
        {
            "method": name, "stage": stage, **dict(zip(QUARTILES, quartiles)), "together": name in facts["together"],
            "turns": facts["turns"], "torch": facts["torch"],
        }
        for name, stages in facts["ratios"].items()
        for stage, quartiles in stages.items()
    ]  # fmt: skip
    write_rows(RESULTS, rows, ("method", "stage"))


def _all() -> list[str]:
    return [*(name for name in methods if name not in WITHOUT_TRAINING), *LONGER]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these methods; all by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="only write the table into docs/speed.md")
    options = parser.parse_args()
    facts = read() if RESULTS.is_file() and (options.page or options.names) else {"ratios": {}, "together": []}
    if not options.page:
        torch.set_num_threads(1)
        said = {"turns": options.turns, "torch": torch.__version__}
        facts = {**said, **facts} if options.names else {**facts, **said}  # of the run of all, if there was one
        with threadpool_limits(1), tempfile.TemporaryDirectory() as place:
            for name in options.names or _all():
                facts["ratios"][name] = measure(name, options.turns, Path(place))
                others = [one for one in facts["together"] if one != name]
                facts["together"] = others if options.names else [*others, name]
                print(f"{name:<14} {facts['ratios'][name]}", flush=True)
                keep(facts)
    SECTION.write(body())
    print(table(facts["ratios"]))


if __name__ == "__main__":
    main()
