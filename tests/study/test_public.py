"""Public samples in a study, and networks for sites in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.build import PublicSettings
from fedsift.data.dataset import Dataset
from fedsift.study.running import open_in_process
from fedsift.study.study import Study

FOUR = {"name": "iid", "sites": 4}


def _study(**tables: Any) -> Study:
    return Study.from_table({"partition": FOUR, "method": {"name": "rhfl"}, **tables})


def test_a_share_of_the_training_pool_is_set_aside_before_it_is_spread() -> None:
    study = _study(public={"from_train": 0.2})
    federated = study.load_data()
    assert federated.public is not None
    whole = study.source.load()
    given_away = np.concatenate([federated.rows[site] for site in federated.sites])
    assert not set(given_away) & set(federated.public.rows)
    assert set(given_away) | set(federated.public.rows) == set(whole.train)
    assert len(federated.public.rows) == pytest.approx(0.2 * len(whole.train), abs=2)
    assert any("set aside" in note for note in federated.notes)
    again = study.load_data().public
    assert again is not None
    assert np.array_equal(again.rows, federated.public.rows)


def test_every_site_has_the_same_public_samples() -> None:
    study = _study(public={"from_train": 0.1})
    fed = open_in_process(study, study.load_data(), "r")
    digests = {facts.public_digest for facts in fed.facts.values()}
    assert len(digests) == 1
    assert fed.public is not None
    assert digests == {fed.public.digest()}
    assert {facts.public for facts in fed.facts.values()} == {len(fed.public)}


def test_a_digest_tells_order_and_content_apart() -> None:
    study = _study(public={"from_train": 0.1})
    public = open_in_process(study, study.load_data(), "r").public
    assert public is not None
    turned = type(public)(public.pool, public.rows.flip(0), public.mean, public.std)
    brighter = type(public)((public.pool + 1).to(torch.uint8), public.rows, public.mean, public.std)
    assert len({public.digest(), turned.digest(), brighter.digest()}) == 3


def test_public_samples_from_a_file_without_labels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (30, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", pictures=images)
    study = _study(public={"path": str(tmp_path / "public.npz"), "images": "pictures", "samples": 12})
    public = study.load_data().public
    assert public is not None
    assert len(public.rows) == 12
    assert public.shape == (1, 8, 8)
    assert Study.from_table(study.to_table()) == study
    missing = _study(public={"path": str(tmp_path / "public.npz")})
    with pytest.raises(DataError, match=r"no array 'images': it holds pictures"):
        missing.load_data()


def test_public_samples_from_a_named_dataset() -> None:
    study = _study(public={"name": "digits", "test_fraction": 0.5, "samples": 20})
    public = study.load_data().public
    assert public is not None
    assert len(public.rows) == 20
    assert Study.from_table(study.to_table()) == study


def test_groups_are_public_or_private_as_a_whole() -> None:
    images = np.zeros((40, 1, 2, 2), np.uint8)
    patients = np.repeat(np.arange(10), 4)
    data = Dataset("x", images, np.arange(40) % 2, ("a", "b"), np.arange(40), np.arange(0), groups=patients)
    left, public = PublicSettings(from_train=0.3).take(data, seed=1)
    assert len(public.rows) > 0
    assert not set(patients[left.train]) & set(patients[public.rows])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "exactly one"),
        ({"from_train": 0.1, "path": "x.npz"}, "exactly one"),
        ({"from_train": 1.5}, "public.from_train"),
        ({"from_train": 0.1, "samples": -1}, "public.samples"),
        ({"nam": "digits"}, "public.nam"),
        ({"name": "digit"}, "Did you mean 'digits'"),
        ({"name": "digits", "from_train": 0.1}, "public.from_train"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _study(public=table)


def test_public_samples_of_another_shape_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", images=np.zeros((5, 9, 9, 3), np.uint8))
    with pytest.raises(DataError, match=r"\(3, 9, 9\).*\(1, 8, 8\)"):
        _study(public={"path": str(tmp_path / "public.npz")}).load_data()


def test_a_method_that_needs_public_samples_gets_a_tenth_when_none_are_named() -> None:
    assert _study().public == PublicSettings(from_train=0.1)
    assert Study.from_table({"method": {"name": "fedavg"}}).public is None
    assert "public" in _study().to_table()
    assert "public" not in Study.from_table({}).to_table()


def test_networks_in_turn() -> None:
    study = _study(model={"cycle": ["cnn", "mlp", "lenet5"], "sites": {"site-01": "cnn"}})
    fed = open_in_process(study, study.load_data(), "r")
    assert [facts.model for facts in fed.facts.values()] == ["cnn", "cnn", "lenet5", "cnn"]
    assert Study.from_table(study.to_table()) == study
    with pytest.raises(ConfigError, match="unknown model 'mpl'"):
        _study(model={"cycle": ["cnn", "mpl"]})


def test_a_method_that_averages_refuses_different_networks() -> None:
    study = _study(model={"cycle": ["cnn", "mlp"]}, method={"name": "fedavg"})
    with pytest.raises(ConfigError, match=r"'fedavg' does not fit: it needs the same network.*rhfl"):
        study.load_data()
    _study(model={"cycle": ["mlp"]}, method={"name": "fedavg"}).load_data()
