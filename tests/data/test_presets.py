"""Presets: every column of the papers' tables is there, builds a study, and has a small twin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedsift.core.errors import ConfigError
from fedsift.data.noise.instance import InstanceNoise
from fedsift.study.scenarios import preset_names, preset_summary, preset_table, preset_text, write_preset
from fedsift.study.study import Study
from fedsift.training.features import is_features
from fedsift.training.recipe import Augment

NAMES = preset_names()
CORRUPTIONS = [(0.0, 0.0), (0.4, 0.0), (0.4, 0.5), (0.6, 0.0), (0.6, 0.5), (0.8, 0.0), (0.8, 0.5)]
TABLES = (
    [f"fedcorr/cifar10-iid-{rho}-{tau}" for rho, tau in CORRUPTIONS]  # Tables 2, 6, 11, 12
    + [f"fedcorr/cifar100-iid-{rho}-{tau}" for rho, tau in [(0.0, 0.0), (0.4, 0.5), (0.6, 0.5), (0.8, 0.5)]]  # 3, 13
    + [f"fedcorr/cifar10-noniid-{p}-{alpha}" for p, alpha in [(0.7, 10), (0.7, 1), (0.3, 10)]]  # 4
    + ["fedcorr/clothing1m", "fedcorr/cifar100-noniid-0.7-10"]  # 5, 9
    + ["fednoro/ich-clean", "fednoro/isic-clean"]
    + [f"fednoro/ich-{rho}-{low}" for rho in (0.2, 0.3, 0.4, 0.6) for low in ("0.3-0.5", "0.5-0.7")]  # 1
    + [f"fednoro/isic-{rho}-0.5-0.7" for rho in (0.4, 0.6)]  # 2
    + ["rhfl/clean"]  # 1
    + [
        f"rhfl/{kind}-{mu}{form}"
        for kind in ("pairflip", "symflip")
        for mu in (0.1, 0.2)
        for form in ("", "-homogeneous")
    ]
    + [f"fedmlp/ich-missing-{m}" for m in (1, 2, 3, 4)]  # 1
    + [f"fedmlp/chestxray14-missing-{m}" for m in (1, 3, 5, 7)]  # 2
    + [
        f"feddpcont/{data}-{kind}-{eta}"
        for data in ("cifar10", "cifar100")
        for kind in ("symmetric", "random")
        for eta in (0.2, 0.4, 0.6, 0.8)
    ]  # 2, 6
    + [f"feddpcont/cifar10n-{labels}" for labels in ("worst", "random", "aggregate")]  # 3
    + ["feddpcont/cifar100n-fine", "feddpcont/clothing1m"]  # 3
)
BEYOND = ["extra/late-joiner-small", "extra/freeloader-small", "everyone/digits-iid-small"]
EVERYONE = [
    *(f"everyone/cifar10-{kind}{size}" for kind in ("iid", "skewed") for size in ("", "-small")),
    *(f"everyone/digits-{kind}-small" for kind in ("iid", "skewed")),
]


def test_every_column_is_there_with_a_small_twin():
    missing = [name for name in TABLES if name not in NAMES or f"{name}-small" not in NAMES]
    assert missing == []
    assert {*BEYOND, *EVERYONE} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_preset_is_a_complete_study(name):
    table = preset_table(name)
    assert set(table) <= {"name", "data", "partition", "noise", "public", "model", "train", "method"}
    study = Study.from_table(table)
    assert study.name == name
    assert study.method.total_rounds > 0
    assert preset_summary(name)
    again = Study.from_table(study.to_table())
    assert again == study


@pytest.mark.parametrize("name", EVERYONE)
def test_everyone_is_noisy_and_detection_is_tested(name):
    study = Study.from_table(preset_table(name))
    assert (study.noise.rho, study.noise.tau) == (1.0, 0.5)
    assert study.method.detection == "tested"


def test_settings_are_the_papers():
    study = Study.from_table(preset_table("fednoro/ich-0.4-0.3-0.5"))
    assert study.noise == InstanceNoise(rho=0.4, low=0.3, high=0.5)
    assert (study.partition.sites, study.partition.p, study.partition.alpha, study.partition.seed) == (
        20,
        0.9,
        2.0,
        100,
    )
    assert (study.train.epochs, study.train.batch_size, study.train.optimiser, study.train.lr) == (
        5,
        16,
        "adam",
        3e-4,
    )
    assert (study.method.rounds, study.method.warm_up) == (100, 10)
    study = Study.from_table(preset_table("fedcorr/cifar100-iid-0.6-0.5"))
    assert (study.partition.sites, study.train.lr, study.model.name) == (50, 0.01, "resnet34-cifar")
    assert (study.method.iterations, study.method.fine_tuning_rounds, study.method.usual_rounds) == (
        10,
        450,
        450,
    )


@pytest.mark.parametrize("rho", [0.4, 0.6])
def test_twins_on_frozen_features_keep_the_papers_sites_noise_and_optimiser(rho):
    full = Study.from_table(preset_table(f"fednoro/isic-{rho}-0.5-0.7"))
    twin = Study.from_table(preset_table(f"fednoro/isic-{rho}-0.5-0.7-features"))
    assert is_features(twin.model.name)
    assert (twin.partition, twin.noise) == (full.partition, full.noise)
    # the pictures are embedded once, so there is nothing left to augment
    assert twin.train == replace(full.train, augment=Augment())


def test_small_twins_that_need_nothing_can_be_built():
    for name in BEYOND:
        federated = Study.from_table(preset_table(name)).load_data()
        assert len(federated.sites) == 20
    late = Study.from_table(preset_table("extra/late-joiner-small"))
    assert set(late.method.joins) <= set(late.load_data().truth.noisy)


def test_an_unknown_name_gets_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'fedcorr/cifar10-iid-0.6-0.5'"):
        preset_text("fedcorr/cifar10-iid-0.6-05")
    write_preset("rhfl/clean", tmp_path / "study.toml")
    assert Study.from_file(tmp_path / "study.toml").method_name == "rhfl"
