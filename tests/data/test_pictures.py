"""Pictures of a federation: the numbers behind them and the text."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedsift.data.build import build
from fedsift.data.noise.base import noises
from fedsift.data.overview import portrait_of, text_of
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.base import sources
from tests.data.test_build import toy


def digits_data(sites: int = 6, noise: str = "fedcorr", **options):
    partition = partitions.get("bernoulli-dirichlet")(sites=sites, p=0.5)
    return build(sources.get("digits")(), partition, noises.get(noise)(**options), seed=2)


def test_counts_confusion_and_rates_agree_with_the_spread():
    federated = digits_data()
    portrait = portrait_of(federated)
    assert portrait.counts.sum() == portrait.sizes.sum() == 1348
    assert portrait.confusion.sum() == 1348
    wrong = portrait.confusion.sum() - np.trace(portrait.confusion)
    assert portrait.overall_rate == pytest.approx(wrong / 1348)
    for k, site in enumerate(federated.sites):
        assert portrait.counts[k].tolist() == np.bincount(federated.given[site], minlength=10).tolist()


def drawn(federated) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(text_of(portrait_of(federated), "a federation"))
    return console.file.getvalue()


def test_the_text_names_sites_rates_and_confusion():
    text = drawn(digits_data())
    assert "site-05" in text
    assert "nominal" in text
    assert "true labels (rows)" in text
    assert "of all labels differ from the truth" in text
    assert "... and 20 more sites" in drawn(digits_data(60))


def test_multi_label_and_unknown_truth():
    labels = np.zeros((24, 4), np.int64)
    labels[:, 1:] = 1
    multi = replace(toy(24, classes=4), labels=labels, multilabel=True)
    federated = build(multi, partitions.get("iid")(sites=2), noises.get("class-missing")(missing=2), seed=1)
    portrait = portrait_of(federated)
    assert portrait.confusion.shape == (4, 3)
    assert portrait.confusion[:, 2].sum() == 0
    lost = sum(int((federated.truth.clean[s] != federated.given[s]).sum()) for s in federated.sites)
    assert portrait.confusion[:, 1].sum() == lost
    assert "x" in drawn(federated)
    unknown = build(toy(24, trusted=False), partitions.get("iid")(sites=2), noises.get("clean")(), seed=1)
    assert portrait_of(unknown).overall_rate is None
    assert "nominal" not in drawn(unknown)
