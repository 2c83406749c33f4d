"""JointOpt and DivideMix centralised: a federation of one site, from the study to the summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promises.federations import contract_study, play


@pytest.mark.parametrize("name", ["joint-opt", "dividemix"])
def test_one_site_is_the_central_method(name: str, tmp_path: Path) -> None:
    one = {"name": "iid", "sites": 1}
    train = {"epochs": 4, "batch_size": 32, "lr": 0.05, "momentum": 0.9}
    study = contract_study(name, tmp_path, partition=one, noise={"name": "clean"}, train=train)
    folder = play(study, tmp_path)
    summary = folder.read_json("summary.json")
    assert summary["sites"] == 1
    assert summary["oracle"] is None
    assert summary["accuracy"]["best"] > 0.5, "ten classes: chance is 0.1"


def test_a_summary_says_what_was_given(tmp_path: Path) -> None:
    study = contract_study(
        "co-teaching",
        tmp_path,
        method={"name": "co-teaching", "noise_rate": 0.2},
        partition={"name": "iid", "sites": 2},
    )
    assert play(study, tmp_path).read_json("summary.json")["oracle"] == "noise rate 0.2 given"
