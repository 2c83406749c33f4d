"""Building a federation: deterministic, complete, truth kept apart, every wrong input named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import numpy_generator
from fedsift.data.build import build, site_names
from fedsift.data.dataset import Dataset
from fedsift.data.noise.base import noises
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.base import sources
from fedsift.data.truth_ledger import TruthLedger, ledger


def toy(n: int = 120, classes: int = 3, test: int = 0, **more) -> Dataset:
    labels = np.arange(n + test) % classes
    return Dataset(
        name="toy",
        images=np.zeros((n + test, 1, 2, 2), np.uint8),
        labels=labels.astype(np.int64),
        classes=tuple(f"class {c}" for c in range(classes)),
        train=np.arange(n, dtype=np.int64),
        test=np.arange(n, n + test, dtype=np.int64),
        **more,
    )


def part(name: str, **options):
    return partitions.get(name)(**options)


def corrupt(name: str, **options):
    return noises.get(name)(**options)


def same(a, b) -> bool:
    return a.sites == b.sites and all(
        np.array_equal(a.rows[s], b.rows[s])
        and np.array_equal(a.given[s], b.given[s])
        and np.array_equal(a.held_out.get(s, ()), b.held_out.get(s, ()))
        for s in a.sites
    )


def test_the_same_seed_gives_the_same_federation_and_another_seed_another():
    digits = sources.get("digits")()
    first = build(digits, part("bernoulli-dirichlet", sites=8), corrupt("fedcorr"), seed=3)
    assert same(first, build(digits, part("bernoulli-dirichlet", sites=8), corrupt("fedcorr"), seed=3))
    assert not same(first, build(digits, part("bernoulli-dirichlet", sites=8), corrupt("fedcorr"), seed=4))


def test_the_partition_is_drawn_from_the_generator_of_its_name():
    """A change here would change every published federation."""
    federated = build(sources.get("digits")(), part("iid", sites=4), corrupt("clean"), seed=1)
    order = numpy_generator(1, "data", "partition").permutation(1348)
    for k, site in enumerate(federated.sites):
        expected = federated.dataset.train[np.sort(order[337 * k : 337 * (k + 1)])]
        assert np.array_equal(federated.rows[site], expected)


def test_a_partition_seed_of_its_own_holds_whatever_the_study_says():
    fixed = part("iid", sites=5, seed=100)
    one = build(toy(test=10), fixed, corrupt("symmetric"), seed=1)
    two = build(toy(test=10), fixed, corrupt("symmetric"), seed=2)
    assert all(np.array_equal(one.rows[s], two.rows[s]) for s in one.sites)
    assert any(not np.array_equal(one.given[s], two.given[s]) for s in one.sites)


def test_sites_hold_out_a_fifth_when_there_is_no_test_set():
    federated = build(toy(120), part("iid", sites=4), corrupt("fedcorr", rho=1.0), seed=1)
    for site in federated.sites:
        assert len(federated.held_out[site]) == 6
        assert len(federated.rows[site]) == 24
        assert not set(federated.held_out[site]) & set(federated.rows[site])
        assert len(federated.truth.clean_held_out[site]) == 6
        assert np.array_equal(federated.truth.clean_held_out[site], federated.dataset.labels[federated.held_out[site]])
    assert build(toy(120, test=30), part("iid", sites=4), corrupt("clean"), seed=1).held_out == {}


def test_one_sample_sites_keep_their_sample_and_are_noted():
    federated = build(toy(5), part("iid", sites=5), corrupt("clean"), seed=1)
    assert all(len(federated.rows[s]) == 1 and len(federated.held_out[s]) == 0 for s in federated.sites)
    assert any("too few samples" in note and "site-00" in note for note in federated.notes)
    two = build(toy(10), part("iid", sites=5), corrupt("clean"), seed=1)
    assert all(len(two.rows[s]) == len(two.held_out[s]) == 1 for s in two.sites)


def test_held_out_samples_are_corrupted_too_but_their_truth_is_kept():
    federated = build(toy(900), part("iid", sites=3), corrupt("symmetric", rate=1.0), seed=1)
    for site in federated.sites:
        assert (federated.held_out_given[site] != federated.truth.clean_held_out[site]).all()


def test_groups_are_never_on_both_sides_of_a_held_out_part():
    groups = np.array([f"patient {k % 40}" for k in range(120)])
    federated = build(toy(120, groups=groups), part("iid", sites=2, whole_groups=True), corrupt("clean"), seed=1)
    for site in federated.sites:
        assert not set(groups[federated.rows[site]]) & set(groups[federated.held_out[site]])
        assert len(federated.held_out[site])


def test_noise_first_then_partition_by_the_given_label():
    federated = build(toy(600, test=10), part("open-set", sites=6), corrupt("symmetric", rate=0.4), seed=1)
    for site in federated.sites:
        assert len(set(federated.given[site])) < 3
        assert np.array_equal(federated.truth.clean[site], federated.dataset.labels[federated.rows[site]])
    with pytest.raises(ConfigError, match="noise must come first"):
        build(toy(60, test=10), part("open-set", sites=6), corrupt("fedcorr"), seed=1)


def test_overlapping_sites_share_one_noise_realisation():
    federated = build(toy(200, test=10), part("overlapping", sites=3, size=120), corrupt("pair", rate=0.5), seed=1)
    labels_to_train_on: dict[int, int] = {}
    for site in federated.sites:
        for row, label in zip(federated.rows[site], federated.given[site]):
            assert labels_to_train_on.setdefault(int(row), int(label)) == label


def test_one_copy_of_the_images():
    dataset = toy(test=10)
    federated = build(dataset, part("iid", sites=4), corrupt("symmetric"), seed=1)
    assert federated.dataset.images is dataset.images


def test_a_class_that_nobody_holds_is_a_note():
    labels = np.zeros(30, np.int64)
    dataset = replace(toy(30, classes=3), labels=labels)
    federated = build(dataset, part("iid", sites=3), corrupt("clean"), seed=1)
    assert any("'class 2'" in note for note in federated.notes)


def test_a_label_out_of_range_names_sample_site_and_fix():
    dataset = toy(30, ids=np.array([f"img{k}" for k in range(30)]), sites=np.array(["bern"] * 30))
    dataset.labels[7] = 9
    with pytest.raises(DataError, match=r"sample 'img7' at site 'bern' has label 9.*extend `classes`"):
        build(dataset, part("iid", sites=3), corrupt("clean"), seed=1)


def test_noise_for_another_kind_of_labels_is_refused():
    multi = replace(toy(30), labels=np.zeros((30, 3), np.int64), multilabel=True)
    with pytest.raises(ConfigError, match="'fedcorr' is for multiclass data"):
        build(multi, part("iid", sites=3), corrupt("fedcorr"), seed=1)
    with pytest.raises(ConfigError, match="'class-missing' is for multilabel data"):
        build(toy(30), part("iid", sites=3), corrupt("class-missing"), seed=1)


def test_untrusted_data_have_no_truth_and_annotations_beside_the_truth_do():
    assert build(toy(30, trusted=False), part("iid", sites=3), corrupt("clean"), seed=1).truth is None
    assert build(toy(30), part("iid", sites=3), corrupt("as-given"), seed=1).truth is None
    annotated = toy(30)
    given = annotated.labels.copy()
    given[:3] = (given[:3] + 1) % 3
    federated = build(replace(annotated, given=given), part("iid", sites=1), corrupt("as-given"), seed=1, held_out=0.1)
    assert federated.truth is not None
    assert len(ledger(federated)) == 3
    with pytest.raises(DataError, match="not known"):
        ledger(build(toy(30, trusted=False), part("iid", sites=3), corrupt("clean"), seed=1))


def test_the_ledger_lists_every_change_and_survives_a_file(tmp_path):
    ids = np.array([f"img,{k}" for k in range(90)])  # a comma must survive the CSV
    federated = build(toy(90, ids=ids), part("iid", sites=3), corrupt("symmetric", rate=0.5), seed=1)
    book = ledger(federated)
    changed = sum(int((federated.given[s] != federated.truth.clean[s]).sum()) for s in federated.sites)
    changed += sum(
        int((federated.held_out_given[s] != federated.truth.clean_held_out[s]).sum()) for s in federated.sites
    )
    assert len(book) == changed > 0
    for change in book:
        where = federated.rows if change.part == "train" else federated.held_out
        assert where[change.site][change.position] == change.row
        assert federated.dataset.classes[federated.dataset.labels[change.row]] == change.true_label
        assert change.sample == ids[change.row]
    (tmp_path / "truth.csv").write_text(book.text(), "utf-8", newline="")
    assert TruthLedger.load(tmp_path / "truth.csv") == book
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a truth ledger"):
        TruthLedger.load(tmp_path / "other.csv")


def test_the_ledger_of_missing_annotations_says_missing():
    labels = np.ones((12, 4), np.int64)
    multi = replace(toy(12, classes=4), labels=labels, multilabel=True)
    federated = build(multi, part("iid", sites=2), corrupt("class-missing", missing=2), seed=1)
    book = ledger(federated)
    assert len(book) == 12 * 2
    assert {(c.true_label, c.given_label, c.kind) for c in book} == {("1", "0", "missing")}
    assert {c.entry for c in book} <= set(multi.classes)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 6), st.floats(0, 0.6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_size_ends_with_every_sample_somewhere_or_a_reason(n, sites, classes, held_out, seed):
    dataset = toy(n, classes)
    try:
        federated = build(dataset, part("iid", sites=sites), corrupt("fedcorr"), seed=seed, held_out=held_out)
    except DataError:
        assert sites > n
        return
    everything = np.concatenate([*federated.rows.values(), *federated.held_out.values()])
    assert np.array_equal(np.sort(everything), np.arange(n))


def test_site_names_sort_as_numbers():
    assert site_names(3) == ("site-00", "site-01", "site-02")
    names = site_names(1001)
    assert list(names) == sorted(names)
