"""FedNoRo's Table 3: which signal of a site tells noisy sites from clean ones.

    python -m benchmarks.indicators PRESET... [--seeds 1 2 3] [--fits 100] [--out RESULTS.csv]

The federation warms up twice, with and without logit adjustment. Each indicator is then measured at the sites with the
one or the other model, and a two-component mixture parts the sites, once for every fitting seed. Recall, precision and
matching ratio (share of fits that find exactly the noisy sites) are means over the fits, as in the paper, which made
10,000 fits of one run; then means over the studies' seeds. Beside them, free of any mixture, the area under the ROC
curve of the indicator itself, or of its mean over the classes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from benchmarks.files import read_tree, write_tree
from numpy.typing import NDArray

from fedsift.detection.indicators import normalise
from fedsift.detection.mixtures import split_matrix
from fedsift.formulas.metrics import detect_sets, roc_area
from fedsift.methods.fednoro import FedNoRo
from fedsift.protocol.federation import Federation, Round
from fedsift.protocol.messages import Weights
from fedsift.study.running import open_in_process
from fedsift.study.scenarios import preset_table
from fedsift.study.study import Study
from fedsift.study.toml_tables import apply_overrides
from fedsift.training.requests import Indicate, Train

FILE = Path(__file__).parent / "results" / "indicators.csv"
KEY = ("preset", "seed", "indicator")
Table = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One line of the paper's Table 3."""

    kind: Literal["loss", "lid", "confidence"]
    adjusted: bool
    per_class: bool
    scaled: bool

    @property
    def label(self) -> str:
        marks = [
            name for name, on in (("LA", self.adjusted), ("per class", self.per_class), ("norm", self.scaled)) if on
        ]
        return ", ".join([self.kind, *marks])


ROWS = (
    Row("lid", False, False, False),
    Row("confidence", False, False, False),
    Row("loss", False, False, False),
    Row("loss", True, False, False),
    Row("loss", False, True, False),
    Row("loss", True, True, False),
    Row("loss", True, True, True),
)


def warmed_up(method: FedNoRo, federation: Federation) -> Weights:
    """The global model after the warm-up rounds."""
    federation.begin(Round("start", 0, -1), ())  # type: ignore[attr-defined]
    state = method.start(federation)
    for t in range(method.warm_up):
        federation.begin(Round("warm up", t, t), (Train, Indicate))  # type: ignore[attr-defined]
        state = method.train_alike(state, federation)
    return state.weights


def indicators(federation: Federation, weights: Weights, row: Row) -> Table:
    """`[sites, K]` or `[sites, 1]`, high for suspects; NaN where a site lacks a class."""
    replies = federation.ask(Indicate(weights, len(federation.classes), row.kind, row.per_class))
    table = np.stack([np.where(r.held.numpy(), r.values.double().numpy(), np.nan) for r in replies.values()])
    return -table if row.kind == "confidence" else table


def measure(study: Study, fits: int) -> dict[str, dict[str, float]]:
    """Every row's figures for one study."""
    method = study.method
    assert isinstance(method, FedNoRo)
    federated = study.load_data()
    assert federated.truth is not None
    federation = open_in_process(study, federated, "indicators")
    models = {
        adjusted: warmed_up(replace(method, tau=method.tau if adjusted else 0.0), federation)
        for adjusted in (False, True)
    }
    noisy = {number for number, site in enumerate(federation.sites) if site in federated.truth.noisy}
    wrong = np.array([number in noisy for number in range(len(federation.sites))])
    figures = {}
    for row in ROWS:
        table = normalise(indicators(federation, models[row.adjusted], row))
        features = (table.values if row.scaled else table.filled)[:, table.informative]
        found = detect_sets(
            [split_matrix(features, method.noisy_by, fit, method.covariance).noisy.tolist() for fit in range(fits)],
            noisy,
        )
        figures[row.label] = {
            "recall": found.recall,
            "precision": found.precision,
            "matching_ratio": found.matching_ratio,
            "auroc": float(roc_area(wrong, features.mean(axis=1))),
        }
    return figures


def summarise(results: dict[int, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Means over the seeds."""
    seeds = list(results.values())
    return {
        row.label: {
            figure: statistics.fmean(seed[row.label][figure] for seed in seeds) for figure in seeds[0][row.label]
        }
        for row in ROWS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--fits", type=int, default=100)
    parser.add_argument("--set", nargs="*", default=[], help="settings over every preset")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    data = read_tree(options.out, KEY)
    for preset in options.presets:
        results = data.setdefault(preset, {})
        for seed in options.seeds:
            if seed in results:
                continue
            started = time.perf_counter()
            study = Study.from_table(apply_overrides(preset_table(preset), [*options.set, f"seed={seed}"]))
            results[seed] = {
                label: {"fits": options.fits, **line} for label, line in measure(study, options.fits).items()
            }
            write_tree(options.out, data, KEY)
            print(f"{preset} seed {seed}: {(time.perf_counter() - started) / 60:.1f} min", flush=True)
        for label, line in summarise(results).items():
            print(
                f"{label:<28} Re {100 * line['recall']:5.1f}  Pr {100 * line['precision']:5.1f}  "
                f"MR {100 * line['matching_ratio']:5.1f}  AUROC {line['auroc']:.3f}"
            )


if __name__ == "__main__":
    main()
