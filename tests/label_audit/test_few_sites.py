"""Audits of one or two sites: nobody else's models say how far an honest one goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsift

JUDGED = {"heuristics": "always"}
"""As among real sites."""


def rows(sizes: list[int], wrong: float = 0.0) -> tuple[fedsift.Arrays, np.ndarray]:
    """Three well-parted classes; at the last site this share of the labels is another one. Also: which are."""
    rng = np.random.default_rng(0)
    count = sum(sizes)
    true = np.arange(count) % 3
    features = rng.normal(size=(count, 8)).astype(np.float32)
    features[:, :3] += 3 * np.eye(3, dtype=np.float32)[true]
    site = np.repeat([f"site-{number}" for number in range(len(sizes))], sizes)
    turned = (site == site[-1]) & (rng.random(count) < wrong)
    return fedsift.Arrays(features, np.where(turned, (true + 1) % 3, true), site=site), turned


@pytest.mark.parametrize("sizes", [[3], [60], [3, 4], [40, 3]])
def test_one_or_two_sites_are_judged(sizes: list[int], tmp_path: Path) -> None:
    """Linear models begin at zeros twice: what they go from there was taken for 28 times the usual step."""
    data, _ = rows(sizes)
    found = fedsift.audit(data, out=tmp_path / "audit", gate=JUDGED)
    assert [len(own.ids) for own in found.sites.values()] == sizes
    assert not any(len(own.issues) for own in found.sites.values())


def test_of_two_sites_the_one_with_wrong_labels_is_told(tmp_path: Path) -> None:
    data, turned = rows([200, 200], wrong=0.2)
    clean, noisy = fedsift.audit(data, out=tmp_path / "audit", gate=JUDGED).sites.values()
    assert not clean.finding.wrong_labels and not len(clean.issues)
    assert noisy.finding.wrong_labels
    assert noisy.rate.low <= turned.sum() / 200 <= noisy.rate.high
    listed = np.array([noisy.row_of[row.id] for row in noisy.issues])
    assert turned[200:][listed].mean() > 0.8 and len(listed) > 0.8 * turned.sum()


def test_a_network_is_named_as_a_run_names_it(tmp_path: Path) -> None:
    data, _ = rows([60])
    found = fedsift.audit(data, out=tmp_path / "audit", model={"name": "linear"}, rounds=2)
    assert len(found.sites["site-0"].ids) == 60
    for model in ({"name": "linear", "weights": "w.pt"}, lambda shape, classes: None):
        with pytest.raises(fedsift.FedsiftError, match="takes a network's name"):
            fedsift.audit(data, out=tmp_path / "other", model=model)
