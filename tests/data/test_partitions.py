"""Partitions: every sample once, no empty site, an end in every extreme."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.partitions.base import Pool, partitions
from fedsift.data.partitions.bernoulli_dirichlet import BernoulliDirichlet, draw_holders
from fedsift.data.partitions.iid import Iid
from fedsift.data.partitions.natural import Natural
from fedsift.data.partitions.open_set import OpenSet, draw_open_rows
from fedsift.data.partitions.overlapping import Overlapping


def pool_of(labels, n_classes: int, **columns) -> Pool:
    return Pool(np.asarray(labels, np.int64), tuple(f"class {c}" for c in range(n_classes)), **columns)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_each_once(rows, n: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(n))


pools = st.integers(1, 12).flatmap(
    lambda classes: st.tuples(
        st.just(classes), st.lists(st.integers(0, classes - 1), min_size=1, max_size=80), st.integers(1, 30)
    )
)


@given(pools, st.floats(0.01, 1.0), st.sampled_from([1e-4, 0.1, 1.0, 100.0]), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_bernoulli_dirichlet_assigns_each_sample_once_and_fills_every_site(pool, p, alpha, seed):
    classes, labels, sites = pool
    partition = BernoulliDirichlet(sites, p, alpha)
    if sites > len(labels):
        with pytest.raises(DataError, match=f"{len(labels)} samples cannot fill {sites} sites"):
            partition.assign(pool_of(labels, classes), rng(seed))
        return
    rows = partition.assign(pool_of(labels, classes), rng(seed)).rows
    assert len(rows) == sites
    assert_each_once(rows, len(labels))
    assert min(len(part) for part in rows) >= 1


@given(pools, st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_iid_sizes_differ_by_at_most_one(pool, seed):
    classes, labels, sites = pool
    rows = Iid(sites, allow_empty=True).assign(pool_of(labels, classes), rng(seed)).rows
    assert_each_once(rows, len(labels))
    sizes = [len(part) for part in rows]
    assert max(sizes) - min(sizes) <= 1


@given(
    pools,
    st.sampled_from(["uniform", "dirichlet"]),
    st.sampled_from([0.02, 0.5, 0.98]),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_open_set_never_repeats_a_sample_and_no_site_sees_all_classes(pool, allocation, q, seed):
    classes, labels, sites = pool
    partition = OpenSet(sites, q=q, allocation=allocation)
    if classes == 1:
        with pytest.raises(ConfigError, match="one class"):
            partition.assign(pool_of(labels, classes), rng(seed))
        return
    if sites > len(labels):
        with pytest.raises(DataError):
            partition.assign(pool_of(labels, classes), rng(seed))
        return
    placement = partition.assign(pool_of(labels, classes), rng(seed))
    together = np.concatenate(placement.rows)
    assert len(np.unique(together)) == len(together)
    assert min(len(part) for part in placement.rows) >= 1
    unused = len(labels) - len(together)
    if unused:
        assert any("no site sees class" in note for note in placement.notes)


def test_open_set_uniform_shares_are_floor_or_ceiling():
    labels = np.repeat(np.arange(4), 50)
    rows = OpenSet(7, allocation="uniform").assign(pool_of(labels, 4), rng(3)).rows
    table = np.array([np.bincount(labels[part], minlength=4) for part in rows])
    for c in range(4):
        held = table[:, c][table[:, c] > 0]
        assert held.max() - held.min() <= 1
    assert (table > 0).sum(axis=1).max() < 4


def test_open_set_reads_q_from_a_table(tmp_path):
    q = np.zeros((3, 4))
    q[:, :2] = [[1, 0], [0, 1], [1, 0]]
    np.savetxt(tmp_path / "q.csv", q, delimiter=",")
    labels = np.repeat(np.arange(4), 6)
    placement = OpenSet(3, q_table=tmp_path / "q.csv").assign(pool_of(labels, 4), rng())
    assert [sorted(set(labels[part])) for part in placement.rows] == [[0], [1], [0]]
    assert len([note for note in placement.notes if "no site sees" in note]) == 2


def test_open_set_can_force_a_holder_for_every_class():
    labels = np.repeat(np.arange(6), 10)
    for seed in range(20):
        rows = OpenSet(4, q=0.15, every_class=True).assign(pool_of(labels, 6), rng(seed)).rows
        assert_each_once(rows, 60)


def test_a_class_that_nobody_drew_gets_a_holder_and_is_named():
    labels = np.repeat(np.arange(10), 5)
    placement = BernoulliDirichlet(2, p=0.01).assign(pool_of(labels, 10), rng())
    assert_each_once(placement.rows, 50)
    assert any("class" in note and "holds it now" in note for note in placement.notes)


def test_more_sites_than_the_dirichlet_would_fill_are_topped_up_and_said_so():
    labels = np.zeros(40, np.int64)
    placement = BernoulliDirichlet(40, p=1.0, alpha=0.01).assign(pool_of(labels, 1), rng())
    assert [len(part) for part in placement.rows] == [1] * 40
    assert any("drew no sample and got one each" in note for note in placement.notes)


def test_empty_sites_pass_only_when_asked():
    labels = np.zeros(3, np.int64)
    rows = BernoulliDirichlet(5, allow_empty=True).assign(pool_of(labels, 1), rng()).rows
    assert sorted(len(part) for part in rows)[0] == 0
    with pytest.raises(DataError, match="use at most 3 sites"):
        Iid(5).assign(pool_of(labels, 1), rng())


def test_holder_rows_and_columns_are_never_empty():
    for p in (1e-6, 0.05, 1.0):
        holds, _ = draw_holders(50, 7, p, rng())
        assert holds.any(axis=1).all()
        assert holds.any(axis=0).all()


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_open_rows_end_even_where_redrawing_never_would(q):
    rows = draw_open_rows(np.full((30, 5), q), rng())
    assert rows.any(axis=1).all()
    assert not rows.all(axis=1).any()


def test_overlapping_draws_share_samples_but_never_repeat_inside():
    rows = Overlapping(4, size=60).assign(pool_of(np.zeros(100), 1), rng()).rows
    assert all(len(np.unique(part)) == 60 for part in rows)
    assert len(np.unique(np.concatenate(rows))) < 240
    apart = Overlapping(4, size=25, disjoint=True).assign(pool_of(np.zeros(100), 1), rng()).rows
    assert_each_once(apart, 100)
    with pytest.raises(DataError, match="fewer than 240"):
        Overlapping(4, size=60, disjoint=True).assign(pool_of(np.zeros(100), 1), rng())


def test_natural_sites_come_from_the_column_in_alphabetical_order():
    sites = np.array(["vienna", "bern", "vienna", "", "graz", "bern"])
    placement = Natural(minimum=2).assign(pool_of(np.zeros(6), 1, sites=sites), rng())
    assert placement.names == ("bern", "vienna")
    assert [part.tolist() for part in placement.rows] == [[1, 5], [0, 2]]
    assert any("graz" in note for note in placement.notes)
    assert any("name no site" in note for note in placement.notes)
    with pytest.raises(DataError, match="site column"):
        Natural().assign(pool_of(np.zeros(6), 1), rng())


def test_whole_groups_stay_together():
    groups = np.array([f"patient {k // 3}" for k in range(60)])
    rows = Iid(4, whole_groups=True).assign(pool_of(np.zeros(60), 1, groups=groups), rng()).rows
    assert_each_once(rows, 60)
    homes = [set(groups[part]) for part in rows]
    assert sum(len(home) for home in homes) == len(set(groups))
    assert [len(part) for part in rows] == [15] * 4
    with pytest.raises(DataError, match="20 groups cannot fill 21 sites"):
        Iid(21, whole_groups=True).assign(pool_of(np.zeros(60), 1, groups=groups), rng())


def test_multi_label_data_are_refused_where_classes_are_dealt_out():
    pool = Pool(np.zeros((10, 3), np.int64), ("a", "b", "c"))
    for partition in (BernoulliDirichlet(2), OpenSet(2)):
        with pytest.raises(ConfigError, match="multi-label"):
            partition.assign(pool, rng())
    assert_each_once(Iid(3).assign(pool, rng()).rows, 10)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bernoulli-dirichlet", {"p": 0.0}),
        ("bernoulli-dirichlet", {"alpha": 0.0}),
        ("open-set", {"q": 1.0}),
        ("iid", {}),
    ],
)
def test_impossible_parameters_are_refused(name, options):
    with pytest.raises(ConfigError):
        partitions.get(name)(sites=0 if name == "iid" else 4, **options)


@pytest.mark.parametrize("name", ["iid", "bernoulli-dirichlet", "open-set"])
def test_fifty_thousand_samples_spread_over_a_thousand_sites(name):
    labels = rng().integers(10, size=50_000)
    rows = partitions.get(name)(sites=1000).assign(pool_of(labels, 10), rng()).rows
    assert min(len(part) for part in rows) >= 1
    assert_each_once(rows, 50_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "bernoulli-dirichlet", "open-set"])
def test_that_takes_under_two_seconds(name):
    labels = rng().integers(10, size=50_000)
    start = time.perf_counter()
    partitions.get(name)(sites=1000).assign(pool_of(labels, 10), rng())
    assert time.perf_counter() - start < 2.0
