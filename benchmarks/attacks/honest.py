"""How near honest federations, skewed, noisy and uneven ones, come to the gate's limits. None may be refused."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.attacks.files import SOURCE, source
from sklearn.datasets import load_digits

from fedsift.methods._base import methods
from fedsift.runtime.gate import protection as gate
from fedsift.runtime.gate.protection import ModelUpdate, Protection
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.scenarios import preset_table
from fedsift.study.study import Study


class Watching(Protection):
    """Judges as ever, and writes down the largest share of each limit that a run comes to; 1 is a refusal."""

    def __init__(self, own: Protection) -> None:
        super().__init__(own.limits, own.heuristics, own.sizes, judges_turns=own.judges_turns, opening=own.opening)
        self.nearest = {"length": 0.0, "statistics": 0.0, "against": 0.0, "opposed": -9.0, "turned": 0.0}

    def _note(self, name: str, share: float) -> None:
        self.nearest[name] = max(self.nearest[name], share)

    def _ratios(self, key: str, lengths: Mapping[str, float], cohort: Mapping[str, ModelUpdate]) -> dict[str, float]:
        found = super()._ratios(key, lengths, cohort)
        states = key.endswith("statistics")
        limit = self.limits.statistics_factor if states else self.limits.norm_factor
        self._note("statistics" if states else "length", max(found.values(), default=0.0) / limit)
        return found

    def _against(self, along: Mapping[str, float]) -> dict[str, str]:
        self._note("against", -min(along.values()) / self.limits.against)
        return super()._against(along)

    def _left_out(self, along: Mapping[str, float]) -> dict[str, str]:
        usual = statistics.median(along.values())
        self._note("opposed", -min(along.values()) / (self.limits.opposed * usual))
        return super()._left_out(along)

    def _turned(self, before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, str]:
        turns = [gate.turn(before[site], way) for site, way in now.items() if site in before]
        self._note("turned", max(turns, default=0.0) / self.limits.turned)
        return super()._turned(before, now)


def margins(study: Study) -> dict[str, Any]:
    """One honest run: the nearest that it came to each limit, and how many replies were refused."""
    seen: list[Watching] = []

    class Watched(InProcess):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            seen.append(Watching(self.protection))
            self.protection = seen[0]

    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        InProcessTransport(Watched).run(study, folder)
        refused = {site: reason for row in folder.rounds() for site, reason in row["refused"].items()}
        accuracy = (folder.read_json("summary.json").get("accuracy") or {}).get("final")
    found: dict[str, Any] = {name: round(share, 3) for name, share in seen[0].nearest.items()}
    if found["opposed"] == -9.0:
        found["opposed"] = None  # the run's first exchange told nothing
    return {**found, "refused": refused, "accuracy": accuracy, SOURCE: source()}


PARTITIONS: Mapping[str, dict[str, Any]] = {
    "iid": {"name": "iid", "sites": 10},
    "skewed": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.7, "alpha": 10.0},
    "few classes a site": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.3, "alpha": 0.3},
    "very uneven sizes": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.9, "alpha": 0.5},
}
NOISES: Mapping[str, dict[str, Any]] = {
    "clean": {"name": "clean"},
    "some sites 80-100 % wrong": {"name": "fedcorr", "rho": 0.3, "tau": 0.8},
    "all sites 50-100 % wrong": {"name": "fedcorr", "rho": 1.0, "tau": 0.5},
    "freeloaders": {"name": "freeloader"},
    "pairs mistaken": {"name": "pair", "rate": 0.45},
}


UNEVEN = ((20, 20, 1000), (40, 40, 40, 40, 40, 400), (20, 20, 20, 20, 20, 20, 20, 1000))
"""Samples of each site: small ones beside a large one."""


def natural(folder: Path, sizes: Sequence[int], shifted: int = -1, classes: int = 10) -> Path:
    """Digits as sites of these sizes; one site's labels may all be shifted by one class."""
    digits = load_digits()
    images, labels = (digits.images * (255 / 16)).astype(np.uint8), digits.target // (10 // classes)
    order = np.random.default_rng(1).permutation(len(images))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    train, test = order[: len(owner)], order[len(owner) :]
    given = np.where(owner == shifted, (labels[train] + 1) % classes, labels[train])
    path = folder / f"{'-'.join(map(str, sizes))}-{shifted}-{classes}.npz"
    np.savez(
        path,
        images=images[train],
        labels=given,
        site=np.array([f"site-{number:02d}" for number in owner]),
        test_images=images[test],
        test_labels=labels[test],
        classes=np.array([str(number) for number in range(classes)]),
    )
    return path


def built(folder: Path, method: dict[str, Any]) -> Iterator[tuple[str, Study]]:
    """Large sites beside small ones, few sites, and a site that takes every class for another."""
    table: dict[str, Any] = {
        "name": "honest",
        "seed": 3,
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
        "method": method,
        "engine": {"threads": 1},
        "gate": {"heuristics": "always"},
    }
    for sizes in UNEVEN:
        data = {"name": "npz", "path": str(natural(folder, sizes))}
        own = {"data": data, "partition": {"name": "natural"}, "noise": {"name": "clean"}}
        own["gate"] = {"heuristics": "always", "largest_share": 1.0}  # of a coordinator that knows its sites
        yield (
            f"{method['name']}, sites of {', '.join(map(str, sizes))} samples",
            Study.from_table(table | own),
        )
    for classes in (2, 5, 10):
        data = {"name": "npz", "path": str(natural(folder, [240] * 5, 4, classes))}
        own = {"data": data, "partition": {"name": "natural"}, "noise": {"name": "clean"}}
        words = f"{method['name']}, five sites, one with all of its {classes} classes shifted"
        yield words, Study.from_table(table | own)
    for sites in (3, 4, 5):
        for wrong in ("some sites 80-100 % wrong", "freeloaders"):
            own = {"data": {"name": "digits"}, "partition": {"name": "iid", "sites": sites}}
            noise = {"name": "fedcorr", "rho": 0.34, "tau": 0.8, "sites": "exact"}
            own["noise"] = noise if wrong.startswith("some") else NOISES[wrong]
            yield f"{method['name']}, {sites} sites, {wrong}", Study.from_table(table | own)


def studies() -> Iterator[tuple[str, Study]]:
    """Digits: every kind of skew x every kind of wrong labels x methods whose updates differ most."""
    kinds: tuple[dict[str, Any], ...] = (
        {"name": "fedavg", "rounds": 12},
        {"name": "fedavg", "rounds": 12, "fraction": 0.5},
        {"name": "feddyn", "rounds": 12},
        {"name": "scaffold", "rounds": 12},
        {"name": "joint-opt", "warmup": 4, "rounds": 8, "fraction": 0.5},
        {"name": "joint-opt", "warmup": 20, "rounds": 20, "fraction": 0.1},
        {"name": "fedcorr", "iterations": 2, "fine_tuning_rounds": 3, "usual_rounds": 4},
    )
    for place, partition in PARTITIONS.items():
        for wrong, noise in NOISES.items():
            for method in kinds if wrong in ("clean", "some sites 80-100 % wrong") else kinds[:1]:
                table = {
                    "name": "honest",
                    "seed": 3,
                    "data": {"name": "digits"},
                    "partition": partition,
                    "noise": noise,
                    "model": {"name": "cnn"},
                    "train": {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
                    "method": method,
                    "engine": {"threads": 1},
                    "gate": {"heuristics": "always"},
                }
                words = ", ".join(f"{key} {value}" for key, value in method.items() if key != "name")
                yield f"{method['name']} ({words}), {place}, {wrong}", Study.from_table(table)


SHORT: Mapping[str, dict[str, Any]] = {
    "extra/freeloader-small": {},
    "extra/late-joiner-small": {"iterations": 2, "fine_tuning_rounds": 2, "usual_rounds": 2},
    "extra/natural-sites-small": {"rounds": 6, "warm_up": 3},
    "fedcorr/cifar10-iid-0.8-0.5-small": {"iterations": 1, "fine_tuning_rounds": 2, "usual_rounds": 2},
    "fedcorr/cifar10-noniid-0.7-1-small": {"iterations": 1, "fine_tuning_rounds": 2, "usual_rounds": 2},
    "feddpcont/cifar10n-worst-small": {"rounds": 6},
    "fedmlp/chestxray14-missing-7-small": {"rounds": 6, "warm_up": 3},
    "fednoro/isic-0.6-0.5-0.7-small": {"rounds": 6, "warm_up": 3},
    "fednoro/ich-0.6-0.5-0.7-small": {"rounds": 6, "warm_up": 3},
    "rhfl/pairflip-0.2-homogeneous-small": {},
}
"""Presets on real data whose sites differ most, with as many rounds as show the first and the later ones."""


def presets() -> Iterator[tuple[str, Study]]:
    """The presets above, cut short; they need their data (FEDSIFT_DATA)."""
    for name, changes in SHORT.items():
        table = preset_table(name)
        known = {entry.name for entry in dataclasses.fields(methods.get(table["method"]["name"]))}
        table["method"].update({key: value for key, value in changes.items() if key in known})
        table["engine"] = {"threads": 1}
        table["gate"] = {"heuristics": "always"}
        yield name, Study.from_table(table)
