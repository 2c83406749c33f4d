"""Real data, where they are at hand: set FEDSIFT_DATA to the folder that holds them. Run by `make test-slow`."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedsift.data.build import build
from fedsift.data.dataset import Dataset
from fedsift.data.download import DataNotFound
from fedsift.data.noise.base import noises
from fedsift.data.noise.cifar_n import ARRAYS, read_human_labels
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.base import sources

pytestmark = pytest.mark.slow


def at_hand(name: str, **options) -> Dataset:
    try:
        return sources.get(name)(**options).load()
    except DataNotFound as error:
        pytest.skip(str(error))


def test_ham10000_first_load_cached_load_natural_sites_and_lesions(tmp_path, capsys):
    start = time.perf_counter()
    first = at_hand("ham10000", size=64, cache=tmp_path)
    decoding = time.perf_counter() - start
    start = time.perf_counter()
    again = at_hand("ham10000", size=64, cache=tmp_path)
    cached = time.perf_counter() - start
    with capsys.disabled():
        print(f"\nHAM10000 at 64 pixels: first load {decoding:.1f} s, from the cache {cached:.2f} s")
    assert first.images.shape == (10015, 3, 64, 64)
    assert np.array_equal(first.images, again.images)
    assert cached < decoding
    assert not set(first.groups[first.train]) & set(first.groups[first.test])
    federated = build(first, partitions.get("natural")(), noises.get("clean")(), seed=1)
    assert federated.sites == ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
    whole = at_hand("ham10000", size=64, cache=tmp_path, own_split=True)
    assert not set(whole.groups[whole.train]) & set(whole.groups[whole.test])
    counts = {name: int((whole.sites == name).sum()) for name in federated.sites}
    assert counts == {"rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439}


def test_chest_xrays_are_split_by_patient_and_the_eight_findings_are_found():
    dataset = at_hand("chestxray14", view="all")
    assert set(dataset.classes) == {
        "Infiltration",
        "Effusion",
        "Atelectasis",
        "Nodule",
        "Consolidation",
        "Pneumothorax",
        "Cardiomegaly",
        "Fibrosis",
    }
    assert not set(dataset.groups[dataset.train]) & set(dataset.groups[dataset.test])
    federated = build(dataset, partitions.get("iid")(sites=8), noises.get("class-missing")(missing=5), seed=1)
    assert all(mask.sum() == 3 for mask in federated.annotated.values())


def test_human_labels_are_wrong_as_often_as_published():
    try:
        arrays = read_human_labels(None, "CIFAR-10")
    except DataNotFound as error:
        pytest.skip(str(error))
    rates = {name: (arrays[key] != arrays["clean_label"]).mean() for name, key in ARRAYS.items() if key in arrays}
    published = {
        "aggregate": 0.0903,
        "random1": 0.1723,
        "random2": 0.1812,
        "random3": 0.1764,
        "worst": 0.4021,
    }
    assert rates == pytest.approx(published, abs=3e-4)


def test_cifar10_and_its_human_labels_belong_together():
    cifar = at_hand("cifar10")
    try:
        federated = build(cifar, partitions.get("iid")(sites=100), noises.get("cifar-n")(labels="worst"), seed=1)
    except DataNotFound as error:
        pytest.skip(str(error))
    assert federated.truth.level["site-00"] == pytest.approx(0.4021, abs=5e-5)
