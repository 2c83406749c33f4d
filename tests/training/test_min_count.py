"""A site's floor: of fewer samples nothing is told, and those who read the replies take it for absence."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch

from fedsift.formulas.metrics import accuracy, mean_of_defined, recall_per_class
from fedsift.formulas.small_counts import lumped_counts, right_bounds
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import Samples, Site
from fedsift.training.requests import Evaluate, Evaluated, Indicate, LocalSite, counted

MIN_COUNT = 10


def test_classes_below_the_minimum_count_leave_in_a_lump_that_is_not() -> None:
    right, total, rest = lumped_counts([40, 3, 0, 12], [50, 4, 0, 15], MIN_COUNT)
    # 4 + 0 samples are too few for a lump: the next smallest class, of 15, joins
    assert right.tolist() == [40, 0, 0, 0]
    assert total.tolist() == [50, 0, 0, 0]
    # 15 right ones would be told as 20, which is more than there are
    assert rest.tolist() == [19, 19]


def test_few_right_ones_are_told_as_none_or_as_the_minimum_count() -> None:
    right, total, rest = lumped_counts([4, 5, 9, 11, 0], [30] * 5, MIN_COUNT)
    assert (right.tolist(), total.tolist(), rest.tolist()) == ([0, 10, 10, 11, 0], [30] * 5, [0, 0])


@pytest.mark.parametrize("right", [[50, 47, 0], [8, 47, 3], [0, 47, 0], [0, 0, 3], [50, 0, 3], [1, 1, 1], [0, 0, 0]])
def test_no_model_changes_which_classes_are_lumped(right: list[int]) -> None:
    # told apart by one model and together by the next, 50, 47 and the sum of 100 would leave a class of 3
    kept, total, rest = lumped_counts(right, [50, 47, 3], MIN_COUNT)
    assert (total.tolist(), int(rest[1])) == ([50, 0, 0], 50)
    assert kept.tolist() == [0 if right[0] == 1 else 10 if right[0] == 8 else right[0], 0, 0]
    # a model that always says class 1 does not show that the other 3 of the lump are wrong
    assert int(rest[0]) == {50: 50, 47: 50}.get(sum(right[1:]), 0)


def test_a_crafted_model_does_not_count_a_lumped_class_by_its_loss() -> None:
    labels = torch.tensor([0] * 50 + [1] * 47 + [2] * 3)
    told = []
    for k in range(3):
        bias = torch.zeros(3)
        bias[k] = -300.0
        told.append(counted(bias.expand(100, 3).contiguous(), labels, multilabel=False, min_count=MIN_COUNT)[3])
    # class 0 alone is told: its loss is capped, or ln 2 where the other two classes are the unlikely ones
    assert told == [10.0, 0.69, 0.69]


def test_a_loss_that_is_no_number_is_the_largest() -> None:
    logits = torch.zeros(20, 2)
    logits[0] = float("nan")
    loss = counted(logits, torch.tensor([0] * 10 + [1] * 10), multilabel=False, min_count=MIN_COUNT)[3]
    assert loss == round((10.0 + 19 * np.log(2)) / 20, 2)


def test_the_loss_of_several_labels_is_of_the_classes_that_are_told() -> None:
    labels = torch.zeros(40, 3, dtype=torch.int64)
    labels[:20, 0], labels[:4, 1], labels[:10, 2] = 1, 1, 1
    logits = torch.zeros(40, 3)
    logits[:, 1] = -300.0  # 4 of 40 would add 30 to the mean
    right, total, rest, loss, samples, _ = counted(logits, labels, multilabel=True, min_count=MIN_COUNT)
    # the 4 positives of class 1 and the 10 of class 2 make 14: class 0 alone is told
    assert total.tolist() == [[20, 20], [0, 0], [0, 0]]
    assert (right.tolist()[0], rest.tolist(), samples) == ([20, 0], [70, 80], 40)
    assert loss == 0.69


def test_one_class_of_few_positives_tells_nothing() -> None:
    labels = torch.tensor([[1]] * 4 + [[0]] * 40)
    found = counted(torch.full((44, 1), -1.0), labels, multilabel=True, min_count=MIN_COUNT)
    # the right ones of a model that always says no would be the negatives, 40 of 44
    assert [part.tolist() for part in found[:3]] == [[[0, 0]], [[0, 0]], [0, 0]]
    assert found[3:] == (0.0, 0, MIN_COUNT)


@pytest.mark.parametrize("min_count", [0, 1])
def test_without_a_minimum_count_nothing_is_rounded(min_count: int) -> None:
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(5)) * 40
    labels = torch.arange(30) % 3
    found = counted(logits, labels, multilabel=False, min_count=min_count)
    assert found[3] == float(torch.nn.functional.cross_entropy(logits, labels)) > 10.0
    several = torch.nn.functional.one_hot(labels, 3)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, several.float())
    assert counted(logits, several, multilabel=True, min_count=min_count)[3] == float(loss)


def test_nothing_is_lumped_without_need() -> None:
    for min_count in (0, 1, MIN_COUNT):
        right, total, rest = lumped_counts([10, 0, 20], [11, 0, 20], min_count)
        assert (right.tolist(), total.tolist(), rest.tolist()) == ([10, 0, 20], [11, 0, 20], [0, 0])
    assert lumped_counts([1, 2], [2, 2], 0)[2].tolist() == [0, 0]


def test_a_class_goes_with_both_its_sides() -> None:
    # positives of class 0 are few; its negatives would tell them, since both make up all samples. Alone in the lump
    # they would be told by a model that always says no, so the class with the next fewest joins
    right, total, rest = lumped_counts([[80, 4], [50, 40], [60, 30]], [[95, 5], [55, 45], [65, 35]], MIN_COUNT)
    assert right.tolist() == [[0, 0], [50, 40], [0, 0]]
    assert total.tolist() == [[0, 0], [55, 45], [0, 0]]
    assert rest.tolist() == [170, 200]  # 174 right


@pytest.mark.parametrize("min_count", [0, 2, 5, 10, 40])
@pytest.mark.parametrize("sides", [1, 2])
def test_no_small_count_leaves_and_none_is_lost(min_count: int, sides: int) -> None:
    random = np.random.default_rng(min_count + 100 * sides)
    for _ in range(200):
        shape = (5, sides) if sides == 2 else (5,)
        total = random.integers(0, 30, shape)
        right = random.binomial(total, 0.8)
        kept, sizes, rest = lumped_counts(right, total, min_count)
        if not sizes.any() and not rest.any():  # all classes together are too few, on one side at least
            assert (total.reshape(5, -1).sum(0) < min_count).any()
            continue
        assert sizes.sum() + rest[1] == total.sum()
        for told in (kept, sizes, rest[:1], rest[1:] if total.sum() >= min_count else rest[:0]):
            assert not ((told > 0) & (told < min_count)).any()
        assert (kept <= sizes).all()
        assert rest[0] <= rest[1]


@pytest.mark.parametrize("min_count", [0, 2, 3, 5, 10])
@pytest.mark.parametrize("sides", [1, 2])
def test_the_truth_lies_between_the_bounds_of_what_was_sent(min_count: int, sides: int) -> None:
    random = np.random.default_rng(min_count + 100 * sides)
    exact = 0
    for _ in range(300):
        shape = (3, 4, 2) if sides == 2 else (3, 4)
        total = random.integers(0, 40, shape) * (random.random((3, 4, 1) if sides == 2 else (3, 4)) < 0.8)
        right = random.binomial(total, random.choice([0.1, 0.5, 0.95]))
        sent = [lumped_counts(r, t, min_count) for r, t in zip(right, total)]
        told = [k for k, (_, sizes, rest) in enumerate(sent) if sizes.sum() + rest[1] == total[k].sum() > 0]
        if not told:
            continue
        bounds = reduce(add, (right_bounds(*sent[k], min_count) for k in told))
        hits, sizes = right[told].sum(0), total[told].sum(0)
        pairs = [(bounds.accuracy, accuracy(hits, sizes))]
        recall = recall_per_class(hits, sizes)
        if sides == 2:
            pairs.append((bounds.balanced, mean_of_defined(recall.mean(1))))
        else:
            pairs.append((bounds.balanced, mean_of_defined(recall)))
        pairs += zip(zip(*(side.ravel() for side in bounds.recall)), recall.ravel())
        for (low, high), true in pairs:
            assert np.isnan(true) or low - 1e-12 <= true <= high + 1e-12
        if min_count == 0:
            exact += bounds.accuracy == (accuracy(hits, sizes),) * 2
    assert min_count or exact >= 290


def test_bounds_by_hand() -> None:
    # 3 of 40 right is sent as 0, 7 of 30 as 10, 20 of 50 as it is; 12 of 16 of the others as 10
    bounds = right_bounds([0, 10, 20, 0, 0], [40, 30, 50, 0, 0], [10, 16], MIN_COUNT)
    assert (bounds.low.tolist(), bounds.high.tolist()) == ([0, 5, 20, 0, 0], [4, 10, 20, 0, 0])
    assert bounds.rest == (5, 14, 16)
    assert bounds.accuracy == (30 / 136, 48 / 136)
    low, high = bounds.recall
    np.testing.assert_allclose(low, [0, 5 / 30, 0.4, 0, 0])
    np.testing.assert_allclose(high, [0.1, 10 / 30, 0.4, 1, 1])
    np.testing.assert_allclose(bounds.balanced, [(5 / 30 + 0.4) / 5, (0.1 + 10 / 30 + 0.4 + 2) / 5])


def site(labels: list[int], min_count: int, multilabel: bool = False) -> Site:
    given = torch.tensor(labels)
    pool = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(3))
    samples = Samples(pool, torch.arange(len(labels)))
    return LocalSite(
        SiteFacts("north", len(labels), held_out=len(labels), model="mlp", classes=3),
        samples,
        given,
        ("a", "b", "c"),
        RequestMoment(1, "find", 0, 0),
        held_out=samples,
        held_out_given=given,
        min_count=min_count,
    )


def test_a_loss_over_few_samples_is_as_good_as_none() -> None:
    weights = initial_weights("mlp", (4,), 3, 1)
    asked = Indicate(weights, 3)
    free, careful = asked.answer(site([0] * 12 + [1] * 4, 0)), asked.answer(site([0] * 12 + [1] * 4, MIN_COUNT))
    assert free.held.tolist() == [True, True, False]
    assert careful.held.tolist() == [True, False, False]
    assert careful.values[0] == free.values[0]
    assert careful.values[1:].tolist() == [0.0, 0.0]


def test_evaluation_keeps_the_minimum_count_and_a_small_part_is_not_judged() -> None:
    weights = initial_weights("mlp", (4,), 3, 1)
    own = site([0] * 30 + [1] * 25 + [2] * 3, MIN_COUNT)
    reply = Evaluate(weights).answer(own)
    assert reply.refusal(Evaluate(weights), own.facts) is None
    assert reply.samples == 58
    assert 3 not in reply.total.tolist()
    few = Evaluate(weights).answer(site([0] * 9, MIN_COUNT))
    assert (few.samples, int(few.total.sum())) == (0, 0)


def test_accuracy_counts_what_was_lumped() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0] * 20 + [1] * 10 + [0] * 5), 3).float()
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 5)
    free = Evaluated(*counted(logits, labels, multilabel=False))
    careful = Evaluated(*counted(logits, labels, multilabel=False, min_count=MIN_COUNT))
    assert careful.rest.tolist() == [10, 15]
    assert int(free.right.sum()) == int(careful.right.sum() + careful.rest[0]) == 30
