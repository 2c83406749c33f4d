"""One group against two: rates over many simulated federations, and odd cases by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from tests.detection.loss_tables import CLASSES, Table, federation, papers_split

from fedsift.core.errors import ConfigError, DataError
from fedsift.detection import group_test as groups
from fedsift.detection import group_test as tested
from fedsift.detection.group_test import excess_losses, site_scores
from fedsift.detection.indicators import normalise
from fedsift.detection.mixtures import split_values


def alarms(sites: int, effect: float, federations: int) -> int:
    found = 0
    for seed in range(federations):
        rng = np.random.default_rng((sites, seed))
        table, _ = federation(rng, sites, 0, effect=effect)
        found += len(tested.tested_split(table, rng, 0.05, draws=199, shakes=0).noisy) > 0
    return found


@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_sixty_clean_federations_raise_no_more_alarms_than_stated(effect: float) -> None:
    assert alarms(10, effect, 60) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("sites", [10, 20])
@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_clean_federations_raise_no_more_alarms_than_stated(sites: int, effect: float) -> None:
    assert alarms(sites, effect, 200) <= 10


@pytest.mark.parametrize("sites", [10, 20])
def test_the_papers_split_alarms_always(sites: int) -> None:
    tables = [federation(np.random.default_rng((sites, seed)), sites, 0)[0] for seed in range(10)]
    assert all(len(papers_split(table)) for table in tables)


@pytest.mark.parametrize("shape", ["normal", "t5", "gamma"])
@pytest.mark.parametrize("sites", [10, 20])
def test_one_value_a_site_keeps_the_rate_whatever_the_shape(shape: str, sites: int) -> None:
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng((7, sites, seed))
        draw = {
            "normal": lambda r: r.normal(5, 2, sites),
            "t5": lambda r: r.standard_t(5, sites),
            "gamma": lambda r: r.gamma(4.0, 3.0, sites),
        }[shape]
        alarms += len(tested.tested_split(draw(rng)[:, None], rng, 0.05, draws=199, shakes=0).noisy) > 0
    assert alarms / 200 <= 0.05


def recalls(sites: int, level: tuple[float, float], effect: float, federations: int) -> tuple[float, float, float]:
    """Recall of the test, its precision, and the recall of the paper's split at 40 % noisy sites."""
    ours = named = theirs = 0
    noisy = int(0.4 * sites)
    for seed in range(federations):
        rng = np.random.default_rng((11, sites, seed))
        table, bad = federation(rng, sites, noisy, *level, effect=effect)
        found = tested.tested_split(table, rng, draws=499, shakes=0).noisy
        ours, named = ours + int(bad[found].sum()), named + len(found)
        theirs += int(bad[papers_split(table)].sum())
    return ours / (noisy * federations), ours / max(named, 1), theirs / (noisy * federations)


@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_recall_at_ten_sites_in_small(effect: float) -> None:
    recall, precision, papers = recalls(10, (0.3, 0.5), effect, 25)
    assert recall >= papers
    assert recall >= 0.75
    assert precision >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("level", [(0.3, 0.5), (0.5, 0.7)])
@pytest.mark.parametrize("sites", [10, 20])
@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_recall_at_40_percent_noisy_sites_is_no_worse_than_the_papers(
    sites: int, level: tuple[float, float], effect: float
) -> None:
    recall, precision, papers = recalls(sites, level, effect, 300 if sites == 10 else 100)
    assert recall >= papers
    assert recall >= (0.9 if effect < 0.2 or sites == 20 else 0.82)
    assert precision >= 0.97


def test_recall_of_one_value_a_site_at_40_percent() -> None:
    """LID scores: clean sites at 10 +- 0.5, noisy ones at 14 to 18."""
    ours = theirs = 0
    for seed in range(40):
        rng = np.random.default_rng((13, seed))
        scores = rng.normal(10, 0.5, 20)
        scores[:8] += rng.uniform(4, 8, 8)
        ours += int((tested.tested_split(scores[:, None], rng, draws=499, shakes=0).noisy < 8).sum())
        theirs += int((split_values(scores).noisy < 8).sum())
    assert ours >= theirs
    assert ours == 40 * 8


@pytest.mark.slow
def test_it_is_fast() -> None:
    table, _ = federation(np.random.default_rng(1), 20, 8)
    started = time.process_time()
    tested.tested_split(table, np.random.default_rng(2))
    assert time.process_time() - started < 1.0


# Scores


def test_lacking_a_class_is_neither_good_nor_bad() -> None:
    """A site whose values are all in the middle scores in the middle, however few classes it holds. Filling by the
    column's minimum would make the one that lacks most look cleanest."""
    rng = np.random.default_rng(5)
    table = rng.normal(0, 1, (12, 6))
    table[0] = np.median(table[1:], axis=0)
    few = table.copy()
    few[0, 1:] = np.nan
    whole, part = site_scores(table), site_scores(few)
    assert abs(whole[0]) < 0.3
    assert abs(part[0]) < 0.3
    assert normalise(few).values[0].sum() < normalise(table).values[0].sum() - 1


def test_a_site_with_one_class_needs_to_be_further_out() -> None:
    """The same mean deviation counts less from one class than from six."""
    table = np.random.default_rng(6).normal(0, 1, (40, 6))
    table[0] = table[1] = 1.5
    table[1, 1:] = np.nan
    score = site_scores(table)
    assert 1 < score[1] < 0.7 * score[0]


def test_one_class_counts_with_its_place_only_so_far() -> None:
    rng = np.random.default_rng(8)
    table = rng.normal(0, 1, (12, 5))
    table[0, 0] = 1e6
    assert abs(site_scores(table)[0]) < 10


def test_scores_do_not_depend_on_the_classes_units() -> None:
    table, _ = federation(np.random.default_rng(3), 15, 5)
    scaled = table * np.linspace(1, 50, CLASSES) + np.linspace(-3, 3, CLASSES)
    np.testing.assert_allclose(site_scores(scaled), site_scores(table), rtol=1e-9)


# Scores of losses


def lossy(sites: int = 12, classes: int = 6, spread: float = 0.03) -> Table:
    """Losses of one group: a level for each class from easy to hard, a little error."""
    rng = np.random.default_rng(31)
    return np.linspace(0.1, 1.0, classes) * np.exp(rng.normal(0, spread, (sites, classes)))


def test_wrong_labels_stand_out_and_difficult_samples_do_not() -> None:
    """The same rise of the mean loss: once added to every class alike, once by a factor."""
    table = lossy()
    table[0] += 0.2
    table[1] *= 1 + 0.2 / np.linspace(0.1, 1.0, 6).mean()
    score = excess_losses(table)
    assert score[0] == max(score)
    assert score[0] > 2.5
    assert score[1] < 1
    assert abs(site_scores(table)[1] - site_scores(table)[0]) < 0.5


def test_losses_in_other_units_score_alike() -> None:
    table, _ = federation(np.random.default_rng(3), 15, 5)
    np.testing.assert_allclose(excess_losses(3.7 * table), excess_losses(table), rtol=1e-6)


def test_a_clean_site_that_holds_one_class_scores_in_the_middle() -> None:
    """Whichever class that is; added to every loss of it, the same excess counts less than over six classes."""
    table = lossy(spread=0.1)
    for k in range(6):
        few = table.copy()
        few[0, np.arange(6) != k] = np.nan
        few[0, k] = np.median(table[1:, k])
        assert abs(excess_losses(few)[0]) < 0.5
    table[0] = table[1] = np.median(table, axis=0) + 0.3
    table[1, :5] = np.nan
    score = excess_losses(table)
    assert 0 < score[1] < 0.7 * score[0]


def test_a_loss_that_two_sites_have_or_that_is_nothing_says_nothing() -> None:
    table = lossy()
    more = np.column_stack([table, np.full(12, np.nan), np.zeros(12)])
    more[:2, 6] = 1e6
    np.testing.assert_allclose(excess_losses(more), excess_losses(table), rtol=1e-9)
    assert np.isnan(excess_losses(np.zeros((8, 3)))).all()


def test_the_score_that_tells_more_decides() -> None:
    """What is added at sites of unlike difficulty shows in the excess; a factor, sites being alike, in the effect."""
    rng = np.random.default_rng(41)
    table = lossy() * np.exp(rng.normal(0, 0.3, 12))[:, None]
    table[:4] += 0.3
    found = tested.tested_split(table, np.random.default_rng(1))
    assert found.noisy.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(found.score, excess_losses(table))
    alike = lossy()
    alike[:4] *= 2
    found = tested.tested_split(alike, np.random.default_rng(1))
    assert found.noisy.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(found.score, site_scores(alike))


def test_negative_values_are_no_losses() -> None:
    table = lossy() - 5
    table[:4] += 2
    found = tested.tested_split(table, np.random.default_rng(1))
    np.testing.assert_array_equal(found.score, site_scores(table))


# The test itself


def test_best_split_by_hand() -> None:
    """(0, 0, 4, 4) about 2: SS = 16, perfectly parted; (0, 1, 4, 5): SS = 17, within 1, gain 2 log 17 - 4 log 2."""
    gain, size = groups.best_split(np.array([0.0, 1.0, 4.0, 5.0]))
    assert gain == pytest.approx(2 * math.log(17) - 4 * math.log(2))
    assert size == 2
    assert groups.best_split(np.array([4.0, 0.0, 0.0, 0.0]))[1] == 3


def test_straightening_keeps_order_and_removes_skew() -> None:
    values = np.random.default_rng(4).gamma(2.0, size=200)
    straight = groups.unskew(values)
    assert (np.argsort(straight) == np.argsort(values)).all()

    def skew(x: Table) -> float:
        return float((((x - x.mean()) / x.std()) ** 3).mean())

    assert abs(skew(straight)) < abs(skew(values)) / 2


def test_the_probability_of_two_groups() -> None:
    """Sellke, Bayarri and Berger: p = 0.05 supports at most 1 / (1 + 0.407) = 0.711."""
    assert groups.two_groups(0.05) == pytest.approx(0.711, abs=1e-3)
    assert groups.two_groups(0.5) == 0.5
    assert groups.two_groups(0.001) > 0.98


def test_probabilities_rise_with_the_score() -> None:
    scores = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 9.0, 9.5, 10.0, 10.6])
    found = tested.tested_split(scores[:, None], np.random.default_rng(1))
    assert found.noisy.tolist() == [6, 7, 8, 9]
    order = np.argsort(scores)
    assert (np.diff(found.probability[order]) >= -1e-12).all()
    assert found.probability[9] > 0.9
    assert found.probability[0] < 0.01


def test_a_stricter_rate_asks_for_more_evidence() -> None:
    rng = np.random.default_rng(21)
    scores = np.concatenate([rng.normal(0, 1, 6), rng.normal(5.5, 1, 4)])[:, None]
    found = tested.tested_split(scores, np.random.default_rng(1), 0.5)
    assert len(found.noisy)
    assert not len(tested.tested_split(scores, np.random.default_rng(1), found.p_value / 2).noisy)


def test_the_same_generator_gives_the_same_answer() -> None:
    table, _ = federation(np.random.default_rng(2), 12, 4)
    one, two = (tested.tested_split(table, np.random.default_rng(9)) for _ in range(2))
    assert one.p_value == two.p_value
    np.testing.assert_array_equal(one.probability, two.probability)


# Odd cases


@pytest.mark.parametrize("table", [np.ones((8, 3)), np.zeros((3, 2)), np.zeros((0, 2)), np.zeros((5, 0))])
def test_nothing_to_part(table: Table) -> None:
    found = tested.tested_split(table, np.random.default_rng(1))
    assert found.noisy.tolist() == []
    assert found.p_value == 1.0
    assert len(found.probability) == len(table)


def test_a_site_without_values_is_neither_clean_nor_noisy() -> None:
    table, _ = federation(np.random.default_rng(4), 12, 4)
    table[3] = np.nan
    found = tested.tested_split(table, np.random.default_rng(1))
    assert np.isnan(found.probability[3])
    assert 3 not in found.noisy


def test_a_class_that_two_sites_hold_says_nothing() -> None:
    table = np.random.default_rng(1).normal(size=(10, 4))
    table[2:, 0] = np.nan
    table[0, 0] = 1e9
    np.testing.assert_allclose(site_scores(table), site_scores(table[:, 1:]), rtol=1e-12)


def test_wrong_arguments_are_refused() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(DataError, match="sites by classes"):
        tested.tested_split(np.zeros(5), rng)
    with pytest.raises(DataError, match="infinite"):
        tested.tested_split(np.array([[1.0], [np.inf]]), rng)
    with pytest.raises(ConfigError, match="false_alarm = 0"):
        tested.tested_split(np.zeros((5, 1)), rng, 0.0)


# Borderline -------------------------------------------------------------------------------------------------------


def test_a_clear_verdict_is_not_borderline() -> None:
    rng = np.random.default_rng(0)
    table, bad = federation(rng, 20, 5)
    found = tested.tested_split(table, rng)
    assert found.noisy.tolist() == np.flatnonzero(bad).tolist()
    assert found.p_value < 0.05 / tested.NEAR
    assert found.steadiness >= tested.STEADY
    assert not found.borderline
    assert found.threshold == 0.05


@pytest.mark.parametrize(
    ("p", "borderline"),
    [
        (0.001, False),
        (0.024, False),
        (0.026, True),
        (0.05, True),
        (0.099, True),
        (0.101, False),
        (1.0, False),
    ],
)
def test_borderline_is_within_a_factor_two_of_the_threshold(p: float, borderline: bool) -> None:
    none, nothing = np.array([], np.int64), np.array([])
    assert tested.GroupTest(none, p, nothing, nothing, 0.05, steadiness=1.0).borderline is borderline
    assert tested.GroupTest(none, p, nothing, nothing, 0.05, steadiness=0.89).borderline


def test_near_the_threshold_the_verdict_is_borderline_on_both_sides() -> None:
    table, _ = federation(np.random.default_rng(8), 12, 0)
    p = tested.tested_split(table, np.random.default_rng(1), shakes=0).p_value
    assert 0.002 < p < 0.45
    for threshold in (p, p * 1.01, p / 1.01, p * 1.9, p / 1.9):
        found = tested.tested_split(table, np.random.default_rng(1), threshold, shakes=0)
        assert found.borderline
        assert bool(len(found.noisy)) == (p <= threshold)


def test_a_site_between_the_groups_makes_the_verdict_borderline() -> None:
    clear = np.array([1.0, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.0, 3.0, 3.02, 2.98, 3.01])
    unsure = np.append(clear, 1.8)
    found = tested.tested_split(clear[:, None], np.random.default_rng(0))
    assert found.noisy.tolist() == [8, 9, 10, 11]
    assert not found.borderline
    found = tested.tested_split(unsure[:, None], np.random.default_rng(0))
    assert found.p_value < 0.05 / tested.NEAR
    assert found.steadiness < tested.STEADY
    assert found.borderline


def test_shaking_leaves_the_verdict_and_its_p_as_they_are() -> None:
    table, _ = federation(np.random.default_rng(5), 15, 3)
    with_shakes = tested.tested_split(table, np.random.default_rng(2))
    without = tested.tested_split(table, np.random.default_rng(2), shakes=0)
    assert with_shakes.p_value == without.p_value
    np.testing.assert_array_equal(with_shakes.noisy, without.noisy)
    np.testing.assert_array_equal(with_shakes.probability, without.probability)
