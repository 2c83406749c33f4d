"""Noise models: what they change, how often, and that nothing depends on the order of sites."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import numpy_generator
from fedsift.data.dataset import Dataset
from fedsift.data.noise.base import POOL, NoiseInput, noises
from fedsift.data.noise.class_missing import ClassMissing, draw_masks
from fedsift.data.noise.fedcorr import FedCorrNoise
from fedsift.data.noise.freeloader import Freeloader
from fedsift.data.noise.instance import InstanceNoise, corrupt_by, draw_without_replacement


def scene_of(clean: dict[str, np.ndarray], n_classes: int, seed: int = 0, **more) -> NoiseInput:
    def generator(*path):
        return numpy_generator(seed, "data", "noise", *path)

    return NoiseInput(
        {site: np.asarray(labels, np.int64) for site, labels in clean.items()}, n_classes, generator, **more
    )


def even(sites: int, size: int, n_classes: int) -> dict[str, np.ndarray]:
    return {f"site-{k:04d}": np.arange(size) % n_classes for k in range(sites)}


def within_three_errors(hits: float, n: int, p: float) -> None:
    """|hits/n - p| <= 3 standard errors of a share."""
    assert abs(hits / n - p) <= 3 * (p * (1 - p) / n) ** 0.5 + 1e-12, (hits / n, p)


# Realised rates against the definitions


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.4, 0.8])
@pytest.mark.parametrize("name", ["symmetric", "pair"])
def test_matrix_noise_flips_at_its_rate_to_the_right_classes(name, rate):
    clean = np.arange(40_000) % 10
    given = noises.get(name)(rate=rate).corrupt(scene_of({POOL: clean}, 10)).given[POOL]
    within_three_errors((given != clean).sum(), len(clean), rate)
    if name == "pair":
        assert set((given - clean)[given != clean] % 10) == {1}
    else:
        moves = np.bincount((given - clean)[given != clean] % 10, minlength=10)
        assert moves[0] == 0
        for step in range(1, 10):
            within_three_errors(moves[step], moves.sum(), 1 / 9)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_random_matrix_noise_follows_its_drawn_matrix(rate):
    clean = np.repeat(np.arange(5), 20_000)
    noise = noises.get("random")(rate=rate)
    scene = scene_of({POOL: clean}, 5)
    matrix = noise.matrix(5, scene.generator("all sites", "matrix"))
    assert np.abs(np.diagonal(matrix) - (1 - rate)).max() <= 0.05
    given_labels = noise.corrupt(scene).given[POOL]
    measured = np.array([np.bincount(given_labels[clean == c], minlength=5) / 20_000 for c in range(5)])
    within_three_errors((given_labels != clean).sum(), len(clean), 1 - np.diagonal(matrix).mean())
    error = np.sqrt(matrix * (1 - matrix) / 20_000)
    assert (np.abs(measured - matrix) <= 4 * error + 1e-12).all()


def test_fedcorr_chooses_sites_levels_and_labels_by_the_definition():
    scene = scene_of(even(3000, 40, 10), 10)
    noise = FedCorrNoise(rho=0.6, tau=0.5)
    corrupted = noise.corrupt(scene)
    of_noisy = (0.5 + 1) / 2
    wrong = 0.6 * of_noisy * (1 - 1 / 10)  # one redrawn label of ten is the true one again
    within_three_errors(len(corrupted.noisy), 3000, 0.6)
    levels = np.array([corrupted.level[site] for site in corrupted.noisy])
    assert levels.min() >= 0.5
    assert levels.max() <= 1.0
    assert abs(levels.mean() - of_noisy) <= 3 * (0.5 / 12**0.5) / len(levels) ** 0.5
    assert all(corrupted.level[site] == 0 for site in scene.sites if site not in corrupted.noisy)
    share = np.array([(corrupted.given[site] != scene.clean[site]).mean() for site in scene.sites])
    assert abs(share.mean() - wrong) <= 3 * share.std() / len(share) ** 0.5
    clean_sites = [site for site in scene.sites if site not in corrupted.noisy]
    assert all(np.array_equal(corrupted.given[site], scene.clean[site]) for site in clean_sites)


def test_fedcorr_in_the_released_form_uses_the_first_classes_only():
    scene = scene_of(even(20, 200, 30), 30)
    corrupted = FedCorrNoise(rho=1.0, tau=1.0, drawn_classes=10).corrupt(scene)
    assert max(labels.max() for labels in corrupted.given.values()) == 9


def test_exact_forms_hit_their_counts():
    scene = scene_of(even(20, 100, 10), 10)
    corrupted = FedCorrNoise(rho=0.29, tau=0.5, upper=0.5, sites="exact", samples="exact").corrupt(scene)
    assert len(corrupted.noisy) == 5
    # A redrawn label may hit the true class, so 50 drawn of 100 give at most 50 wrong ones.
    assert all(0 < (corrupted.given[s] != scene.clean[s]).sum() <= 50 for s in corrupted.noisy)
    flipped = noises.get("symmetric")(rate=0.29, scope="site", samples="exact").corrupt(scene)
    assert all((flipped.given[s] != scene.clean[s]).sum() == 30 for s in scene.sites)


def test_instance_noise_is_exact_and_never_keeps_the_true_label(tmp_path):
    rng = np.random.default_rng(0)
    clean = {f"s{k}": rng.integers(4, size=100) for k in range(10)}
    rows = {site: np.arange(100) + 100 * k for k, site in enumerate(clean)}
    images = rng.integers(0, 60, (1000, 1, 8, 8)).astype(np.uint8)
    labels = np.concatenate(list(clean.values()))
    images[np.arange(1000), 0, labels, 2:6] += 150  # the class can be seen
    dataset = Dataset("toy", images, labels, tuple("abcd"), np.arange(1000), np.arange(0))
    scene = scene_of(clean, 4, rows=rows, dataset=dataset)
    noise = InstanceNoise(rho=0.4, low=0.3, high=0.5, epochs=4, cache=tmp_path)
    corrupted = noise.corrupt(scene)
    assert len(corrupted.noisy) == 4
    for site in clean:
        wrong = int((corrupted.given[site] != clean[site]).sum())
        assert wrong == int(corrupted.level[site] * 100 + 1e-9)
        assert (0.3 <= corrupted.level[site] < 0.5) == (site in corrupted.noisy)
    again = noise.corrupt(scene)  # from the cache
    assert all(np.array_equal(again.given[site], corrupted.given[site]) for site in clean)
    assert len(list((tmp_path / "annotators").glob("*.npy"))) == 4


def test_instance_noise_prefers_hard_samples_and_likely_labels():
    soft = np.tile([0.98, 0.01, 0.01], (200, 1))
    soft[:50] = [0.3, 0.6, 0.1]
    labels = np.zeros(200, np.int64)
    hard = [(corrupt_by(soft, labels, 40, np.random.default_rng(seed)) != labels).nonzero()[0] for seed in range(20)]
    assert np.mean([(chosen < 50).mean() for chosen in hard]) > 0.8
    new = np.concatenate([corrupt_by(soft, labels, 40, np.random.default_rng(seed))[:50] for seed in range(20)])
    within_three_errors((new == 1).sum(), (new > 0).sum(), 6 / 7)


def test_soft_labels_come_from_a_file(tmp_path):
    labels = np.array([0, 1, 2, 0, 1, 2])
    dataset = Dataset(
        "toy", np.zeros((6, 1, 2, 2), np.uint8), labels, tuple("abc"), np.arange(6), np.arange(0),
        ids=np.array([f"id{k}" for k in range(6)]),
    )  # fmt: skip
    scene = scene_of({"s": labels}, 3, rows={"s": np.arange(6)}, dataset=dataset)
    table = "id,c,a,b\n" + "".join(f"id{k},0.2,0.5,0.3\n" for k in reversed(range(6)))
    (tmp_path / "soft.csv").write_text(table)
    corrupted = InstanceNoise(rho=1.0, low=1.0, high=1.0, soft_labels=tmp_path / "soft.csv").corrupt(scene)
    assert (corrupted.given["s"] != labels).all()
    np.save(tmp_path / "soft.npy", np.full((4, 3), 1 / 3))
    with pytest.raises(DataError, match="4 rows"):
        InstanceNoise(soft_labels=tmp_path / "soft.npy").corrupt(scene)


def test_freeloaders_are_random_and_the_rest_is_clean():
    scene = scene_of(even(10, 5000, 10), 10)
    corrupted = Freeloader(count=2).corrupt(scene)
    assert len(corrupted.noisy) == 2
    for site in scene.sites:
        wrong = (corrupted.given[site] != scene.clean[site]).sum()
        if site in corrupted.noisy:
            within_three_errors(wrong, 5000, 0.9)
        else:
            assert wrong == 0
    shuffled = Freeloader(sites=("site-0003",), labels="shuffled").corrupt(scene)
    assert shuffled.noisy == ("site-0003",)
    assert np.array_equal(np.bincount(shuffled.given["site-0003"]), np.bincount(scene.clean["site-0003"]))
    with pytest.raises(ConfigError, match="there is no site 'site-99'"):
        Freeloader(sites=("site-99",)).corrupt(scene)


def test_class_missing_masks_labels_and_covers_every_class():
    clean = {f"s{k}": np.ones((6, 5), np.int64) for k in range(5)}
    corrupted = ClassMissing(missing=4).corrupt(scene_of(clean, 5))
    assert corrupted.annotated is not None
    masks = np.array(list(corrupted.annotated.values()))
    assert (masks.sum(axis=1) == 1).all()
    assert (masks.sum(axis=0) == 1).all()
    for site in clean:
        assert np.array_equal(corrupted.given[site], clean[site] * corrupted.annotated[site])
        assert (corrupted.given[site] != clean[site]).mean() == pytest.approx(0.8)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_masks_have_exact_rows_and_full_coverage_or_a_reason(sites, classes, missing, seed):
    kept = classes - missing
    rng = np.random.default_rng(seed)
    if kept <= 0 or sites * kept < classes:
        with pytest.raises(ConfigError):
            draw_masks(sites, classes, missing, rng)
        return
    masks = draw_masks(sites, classes, missing, rng)
    assert (masks.sum(axis=1) == kept).all()
    assert masks.any(axis=0).all()


def test_hot_and_cool_classes():
    masks = draw_masks(6, 8, 5, np.random.default_rng(0), hot=[2], cool=[4, 5])
    assert masks[:, 2].all()
    assert masks[:, [4, 5]].sum(axis=0).tolist() == [1, 1]
    assert (masks.sum(axis=1) == 3).all()
    with pytest.raises(ConfigError, match="hot"):
        draw_masks(8, 8, 7, np.random.default_rng(0), hot=[1, 2])


# Extremes and order


@pytest.mark.parametrize("name", ["symmetric", "pair", "random", "fedcorr", "freeloader"])
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_extremes_one_sample_one_site_rate_zero_and_one(name, classes):
    options = {"rho": (0.0, 1.0), "rate": (0.0, 1.0), "count": (0, 1)}
    cls = noises.get(name)
    key = next(key for key in options if key in {field.name for field in dataclasses.fields(cls)})
    for value in options[key]:
        for size in (0, 1, 5):
            clean = {"only": np.arange(size) % classes}
            corrupted = cls(**{key: value}).corrupt(scene_of(clean, classes))
            given_labels = corrupted.given["only"]
            assert given_labels.shape == (size,)
            assert size == 0 or 0 <= given_labels.min() <= given_labels.max() < classes
            if not value:
                assert np.array_equal(given_labels, clean["only"])
                assert corrupted.noisy == ()


@pytest.mark.parametrize(
    "noise",
    [
        FedCorrNoise(),
        FedCorrNoise(sites="exact", samples="exact"),
        Freeloader(count=3),
        noises.get("symmetric")(scope="site"),
        noises.get("random")(scope="site"),
    ],
    ids=["fedcorr", "fedcorr exact", "freeloader", "symmetric", "random"],
)
def test_the_order_of_sites_changes_nothing(noise):
    clean = even(12, 50, 6)
    forward = noise.corrupt(scene_of(clean, 6, seed=5))
    backward = noise.corrupt(scene_of(dict(reversed(clean.items())), 6, seed=5))
    assert set(forward.noisy) == set(backward.noisy)
    assert forward.level == backward.level
    for site in clean:
        assert np.array_equal(forward.given[site], backward.given[site])
    other = noise.corrupt(scene_of(clean, 6, seed=6))
    assert any(not np.array_equal(forward.given[site], other.given[site]) for site in clean)


@given(st.integers(1, 40), st.data())
@settings(max_examples=100, deadline=None)
def test_drawing_without_replacement_takes_exactly_the_count(n, data):
    weights = np.array(data.draw(st.lists(st.sampled_from([0.0, 1e-9, 0.5, 3.0]), min_size=n, max_size=n)))
    count = data.draw(st.integers(0, n))
    chosen = draw_without_replacement(weights, count, np.random.default_rng(0))
    assert len(np.unique(chosen)) == count
    positive = int((weights > 0).sum())
    assert (weights[chosen] > 0).sum() == min(count, positive)


def test_rates_outside_zero_and_one_are_refused():
    for bad in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="rate in"):
            FedCorrNoise(rho=bad)
        with pytest.raises(ConfigError, match="rate in"):
            noises.get("pair")(rate=bad)
    with pytest.raises(ConfigError, match="below"):
        InstanceNoise(low=0.7, high=0.5)
    with pytest.raises(ConfigError, match="below"):
        FedCorrNoise(tau=0.7, upper=0.5)
