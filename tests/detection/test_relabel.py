"""FedCorr's correction rules, derived by hand and against a plain transcription."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError
from fedsift.methods._forgetting import forget_rate
from fedsift.methods.fedcorr import clean_set, relabel, relabel_all, relabel_sites
from fedsift.methods.power_of_choice import power_of_choice


def transcription(labels, losses, noisy, probs, ratio, theta, form):  # type: ignore[no-untyped-def]
    n = len(labels)
    if form == "paper":
        pool, count = sorted(noisy), int(ratio * len(noisy) + 1e-9)
    else:
        pool, count = range(n), int(n * (len(noisy) / n) * ratio)
    candidates = sorted(pool, key=lambda j: (-losses[j], j))[:count]
    new = list(labels)
    for j in candidates:
        top = max(probs[j])
        if top >= theta if form == "paper" else top > theta:
            new[j] = list(probs[j]).index(top)
    return candidates, new


@given(seed=st.integers(0, 10_000), n=st.integers(1, 30), form=st.sampled_from(["paper", "official"]))
@settings(max_examples=50, deadline=None)
def test_relabel(seed: int, n: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    labels, losses = rng.integers(0, 3, n), rng.integers(0, 6, n) / 4  # ties on purpose
    noisy = np.flatnonzero(rng.random(n) < 0.5)
    probs = rng.dirichlet(np.ones(3), n)
    ratio, theta = float(rng.choice([0.0, 0.29, 0.5, 1.0])), float(rng.choice([0.0, 0.5, 0.9]))
    done = relabel(labels, losses, noisy, probs, ratio, theta, form)  # type: ignore[arg-type]
    candidates, new = transcription(labels, losses, noisy, probs, ratio, theta, form)
    assert done.candidates.tolist() == candidates
    assert done.labels.tolist() == new
    assert set(done.changed.tolist()) <= set(done.relabelled.tolist()) <= set(candidates)
    untouched = np.setdiff1d(np.arange(n), done.relabelled)
    assert (done.labels[untouched] == labels[untouched]).all()


def test_the_count_forgives_rounding_in_the_paper_only() -> None:
    labels, losses, probs = np.zeros(100), np.arange(100.0), np.tile([0.0, 1.0], (100, 1))
    noisy = np.arange(100)
    assert len(relabel(labels, losses, noisy, probs, 0.29, 0.5, "paper").candidates) == 29
    assert len(relabel(labels, losses, noisy, probs, 0.29, 0.5, "official").candidates) == 28


def test_threshold_is_inclusive_in_the_paper_only() -> None:
    probs = [[0.5, 0.5], [0.1, 0.9]]
    assert relabel_all([1, 0], probs, 0.5, "paper").labels.tolist() == [0, 1]
    assert relabel_all([1, 0], probs, 0.5, "official").labels.tolist() == [1, 1]


def test_given_labels_are_not_changed_in_place() -> None:
    labels = np.array([0, 0])
    relabel_all(labels, [[0.0, 1.0], [0.0, 1.0]], 0.5)
    assert labels.tolist() == [0, 0]


def test_a_site_without_samples() -> None:
    done = relabel([], [], [], np.zeros((0, 3)), 0.5, 0.5)
    assert done.labels.tolist() == []
    assert relabel_all([], np.zeros((0, 3)), 0.5).labels.tolist() == []


def test_clean_set() -> None:
    noise = [0.0, 0.05, 0.1, 0.2]
    assert clean_set(noise, 0.1) == ([0, 1, 2], [3])
    assert clean_set(noise, 0.1, strict=True) == ([0, 1], [2, 3])
    assert clean_set([0.6, 0.3, 0.3, 0.9], 0.1, fallback=2) == ([1, 2], [0, 3])
    assert clean_set([0.6, 0.3], 0.1, fallback=9) == ([0, 1], [])


def test_sites_relabelled_after_finetuning() -> None:
    assert relabel_sites([0.0, 0.08, 0.3], 0.1, [2, 1], "paper") == [2]
    assert relabel_sites([0.0, 0.08, 0.3], 0.1, [2, 1], "official") == [1, 2]
    with pytest.raises(ConfigError, match="relabel"):
        relabel_sites([0.0], 0.1, [], "both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="relabel form"):
        relabel_all([0], [[1.0]], 0.5, "both")  # type: ignore[arg-type]


def test_power_of_choice_takes_the_largest_losses() -> None:
    assert power_of_choice([4, 0, 2], [1.0, 9.0, 3.0, 9.0, 3.0], 2) == [2, 4]
    assert power_of_choice([1], [0.0, 1.0], 5) == [1]


def test_forget_rate() -> None:
    assert forget_rate(5, 0.2, 10) == pytest.approx(0.1)
    assert forget_rate(9, 0.2, 10, "official") == pytest.approx(0.2)
    assert forget_rate(0, 0.2, 1, "official") == forget_rate(0, 0.2, 0) == 0.2
    with pytest.raises(ConfigError, match="forget_rate"):
        forget_rate(0, 0.2, 10, "linear")  # type: ignore[arg-type]
