"""Every method beside sites that its formulas were not made for: one sample, one class of ten, every label wrong, none
of the findings. The run ends, its model is made of numbers, and no ordinary site is set aside because of them (an odd
one may be: the update of a site with one class goes far where losses are steep)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedsift.methods._base import methods
from fedsift.study.study import Study
from tests.promises.federations import ATTRIBUTES, DIGITS_WITH, outcome, play

torch.set_num_threads(1)
ORDINARY = 60
"""Samples of each of the three ordinary sites."""


def odd_file(folder: Path, several: bool) -> Path:
    digits = load_digits()
    images, digit = (digits.images * (255 / 16)).astype(np.uint8), digits.target
    zeros = np.flatnonzero(digit[: 9 * ORDINARY] == 0)
    sites = {f"ordinary {k}": np.arange(k * ORDINARY, (k + 1) * ORDINARY) for k in range(3)}
    sites |= {"one sample": np.array([700]), "all wrong": np.arange(720, 750), "one class": zeros[-30:]}
    rows = np.concatenate(list(sites.values()))
    name = np.concatenate([[site] * len(own) for site, own in sites.items()])
    given = np.where(name == "all wrong", (digit[rows] + 1) % 10, digit[rows])
    true, test = digit[rows], digit[1500:1600]
    if several:
        table = np.stack([np.isin(np.arange(10), DIGITS_WITH[k]) for k in range(len(ATTRIBUTES))], axis=1)
        true, given, test = table[true].astype(np.int64), table[given].astype(np.int64), table[test]
        given[name == "one class"] = 0  # nobody has any of the findings
    path = folder / "odd.npz"
    np.savez(
        path,
        images=images[rows],
        labels=true,
        given=given,
        site=name,
        test_images=images[1500:1600],
        test_labels=test.astype(np.int64),
        **({"classes": np.array(ATTRIBUTES)} if several else {}),
    )
    return path


@pytest.mark.parametrize("name", methods.names())
def test_a_run_beside_odd_sites_ends_well(name: str, tmp_path: Path) -> None:
    kind = methods.get(name)
    several = "multiclass" not in kind.tasks
    table = {
        "name": "odd sites",
        "seed": 3,
        "data": {"name": "npz", "path": str(odd_file(tmp_path, several))},
        "partition": {"name": "natural"},
        "noise": {"name": "class-missing", "missing": 2} if several else {"name": "as-given"},
        "model": {"name": "cnn"},
        "train": {"epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        "method": {"name": name},
        "engine": {"threads": 1, "trainer": "cohort"},
        **({"public": {"from_train": 0.1}} if "public" in kind.needs else {}),
    }
    study = Study.from_table(table)
    tiny = study.method.tiny()
    everyone = {field.name for field in dataclasses.fields(tiny)} & {"fraction", "visit_fraction"}
    study = dataclasses.replace(study, method=dataclasses.replace(tiny, **dict.fromkeys(everyone, 1.0)))
    folder = play(study, tmp_path)
    weights, rows = outcome(folder)
    assert len(rows) == Study.from_file(folder.study_file).method.total_rounds
    assert all(torch.isfinite(value).all() for value in weights.values())
    refused = {site: why for row in rows for site, why in row["refused"].items()}
    assert not any(site.startswith("ordinary") for site in refused), refused
