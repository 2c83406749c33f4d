"""FedDiv, FedClean and FedELC do on a small federation of digits what they are for; seeds apart from those by which
settings were chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsift.methods.fedelc import FedELC
from fedsift.protocol.federation import FederationFacts
from fedsift.study.study import Study
from tests.promises.federations import contract_study, play

HALF = {"name": "fedcorr", "rho": 0.5, "tau": 0.4, "sites": "exact"}
EVERYONE = {"name": "fedcorr", "rho": 1.0, "tau": 0.5, "sites": "exact"}


def summary(folder: Path, noise: dict[str, Any], seed: int, **method: Any) -> dict[str, Any]:
    """Eight sites of 168 digits, a small network."""
    study = Study.from_table(
        {
            "seed": seed,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 8},
            "noise": noise,
            "model": {"name": "mlp"},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
            "method": {"fraction": 0.5, **method},
            "engine": {"threads": 1, "trainer": "cohort"},
        }
    )
    found: dict[str, Any] = play(study, folder).read_json("summary.json")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_feddiv_s_filter_finds_wrong_labels(seed: int, tmp_path: Path) -> None:
    settings = {"name": "feddiv", "iterations": 2, "visit_fraction": 0.25, "rounds": 25}
    found = summary(tmp_path, HALF, seed, **settings)
    flags = found["corrections"]["samples"]
    assert flags["recall"] > 0.95 and flags["precision"] > 0.85
    assert found["detection"]["exact"], "and so it knows the noisy sites"
    printed = summary(tmp_path, HALF, seed, form="printed", **settings)
    assert printed["corrections"]["samples"]["precision"] < flags["precision"]
    assert printed["detection"]["false_alarms"], "as printed it doubts the harder samples of clean sites too"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fedclean_beats_fedavg_where_everyone_is_noisy(seed: int, tmp_path: Path) -> None:
    rounds = {"rounds_1": 10, "rounds_2": 10, "rounds_3": 10, "cnll_epochs": 30, "cnll_warm": 8}
    clean = summary(tmp_path, EVERYONE, seed, name="fedclean", **rounds)
    plain = summary(tmp_path, EVERYONE, seed, name="fedavg", rounds=30)
    assert clean["accuracy"]["final"] > plain["accuracy"]["final"] + 0.03
    labels = clean["corrections"]["overall"]
    assert labels["fixed"] > 20 * labels["harmed"] and labels["noise_after"] < labels["noise_before"] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fedelc_s_labels_move_where_they_are_wrong(seed: int, tmp_path: Path) -> None:
    found = summary(tmp_path, HALF, seed, name="fedelc", rounds=30, warm_up=10)
    flags = found["corrections"]["samples"]
    assert flags["recall"] > 0.7 and flags["precision"] > 0.95
    assert found["detection"]["exact"]


@pytest.mark.parametrize("name", ["feddiv", "fedclean"])
def test_one_site_alone_runs_to_the_end(name: str, tmp_path: Path) -> None:
    study = contract_study(name, tmp_path, partition={"name": "iid", "sites": 1}, model={"name": "mlp"})
    done = play(study, tmp_path).read_json("summary.json")
    assert done["sites"] == 1 and done["refused"] == 0


def test_fedelc_refuses_sites_too_few_to_part() -> None:
    schema_error = FedELC().fits(FederationFacts(sites=2))
    assert schema_error is not None and schema_error.refuses
