"""How near honest federations, skewed, noisy and uneven ones, come to the gate's limits. None may be refused."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsift.data.presets import preset_table
from fedsift.engines.inprocess import InProcess
from fedsift.engines.protection import Move, Protection
from fedsift.methods import methods
from fedsift.study import Study
from fedsift.study.running import new_run, run


class Watching(Protection):
    """Judges as ever, and writes down the largest share of each limit that a run comes to; 1 is a refusal."""

    def __init__(self, own: Protection) -> None:
        super().__init__(own.limits, opening=own.opening)
        self.nearest = {"length": 0.0, "statistics": 0.0, "against": 0.0, "opposed": 0.0}

    def _note(self, name: str, share: float) -> None:
        self.nearest[name] = max(self.nearest[name], share)

    def _ratios(self, key: str, lengths: Mapping[str, float], cohort: Mapping[str, Move]) -> dict[str, float]:
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
        run(study, folder, kind=Watched)
        refused = {site: reason for row in folder.rounds() for site, reason in row["refused"].items()}
        accuracy = (folder.read_json("summary.json").get("accuracy") or {}).get("final")
    found = {name: round(share, 3) for name, share in seen[0].nearest.items()}
    return {**found, "refused": refused, "accuracy": accuracy}


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
        yield name, Study.from_table(table)
