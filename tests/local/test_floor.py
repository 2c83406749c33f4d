"""A site's floor: of fewer samples nothing is told, and those who read the replies take it for absence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.contract.messages import Moment, SiteFacts
from fedsift.local.requests import Evaluate, Evaluated, Indicate, counted
from fedsift.local.site import Samples, Site
from fedsift.models import initial_weights
from fedsift.signals.label_counts import lumped_counts

FLOOR = 10


def test_classes_below_the_floor_leave_in_a_lump_that_is_not() -> None:
    right, total, rest = lumped_counts([40, 3, 0, 12], [50, 4, 0, 15], FLOOR)
    # 4 + 0 samples are too few for a lump: the next smallest class, of 15, joins
    assert right.tolist() == [40, 0, 0, 0]
    assert total.tolist() == [50, 0, 0, 0]
    assert rest.tolist() == [15, 19]


def test_a_class_of_which_few_are_right_is_lumped_too() -> None:
    right, total, rest = lumped_counts([2, 20], [30, 30], FLOOR)
    assert (right.tolist(), total.tolist(), rest.tolist()) == ([0, 0], [0, 0], [22, 60])
    assert lumped_counts([2, 0], [30, 30], FLOOR)[2].tolist() == [0, 60]  # even together too few to tell


def test_nothing_is_lumped_without_need() -> None:
    for floor in (0, 1, FLOOR):
        right, total, rest = lumped_counts([10, 0, 20], [11, 0, 20], floor)
        assert (right.tolist(), total.tolist(), rest.tolist()) == ([10, 0, 20], [11, 0, 20], [0, 0])
    assert lumped_counts([1, 2], [2, 2], 0)[2].tolist() == [0, 0]


def test_a_class_goes_with_both_its_sides() -> None:
    # positives of class 0 are few; its negatives would tell them, since both make up all samples
    right, total, rest = lumped_counts([[80, 4], [50, 40]], [[95, 5], [55, 45]], FLOOR)
    assert right.tolist() == [[0, 0], [50, 40]]
    assert total.tolist() == [[0, 0], [55, 45]]
    assert rest.tolist() == [84, 100]


@pytest.mark.parametrize("floor", [0, 2, 5, 10, 40])
@pytest.mark.parametrize("sides", [1, 2])
def test_no_small_count_leaves_and_none_is_lost(floor: int, sides: int) -> None:
    random = np.random.default_rng(floor + 100 * sides)
    for _ in range(200):
        shape = (5, sides) if sides == 2 else (5,)
        total = random.integers(0, 30, shape)
        right = random.binomial(total, 0.8)
        kept, sizes, rest = lumped_counts(right, total, floor)
        assert sizes.sum() + rest[1] == total.sum()
        for told in (kept, sizes, rest[:1], rest[1:] if total.sum() >= floor else rest[:0]):
            assert not ((told > 0) & (told < floor)).any()
        assert (kept <= sizes).all()
        assert rest[0] <= rest[1]


def site(labels: list[int], smallest: int, multilabel: bool = False) -> Site:
    given = torch.tensor(labels)
    pool = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(3))
    samples = Samples(pool, torch.arange(len(labels)))
    return Site(
        SiteFacts("north", len(labels), held_out=len(labels), model="mlp", classes=3),
        samples,
        given,
        ("a", "b", "c"),
        Moment(1, "find", 0, 0),
        held_out=samples,
        held_out_given=given,
        smallest=smallest,
    )


def test_a_loss_over_few_samples_is_as_good_as_none() -> None:
    weights = initial_weights("mlp", (4,), 3, 1)
    asked = Indicate(weights, 3)
    free, careful = asked.answer(site([0] * 12 + [1] * 4, 0)), asked.answer(site([0] * 12 + [1] * 4, FLOOR))
    assert free.held.tolist() == [True, True, False]
    assert careful.held.tolist() == [True, False, False]
    assert careful.values[0] == free.values[0]
    assert careful.values[1:].tolist() == [0.0, 0.0]


def test_evaluation_keeps_the_floor_and_a_small_part_is_not_judged() -> None:
    weights = initial_weights("mlp", (4,), 3, 1)
    own = site([0] * 30 + [1] * 25 + [2] * 3, FLOOR)
    reply = Evaluate(weights).answer(own)
    assert reply.refusal(Evaluate(weights), own.facts) is None
    assert reply.samples == 58
    assert 3 not in reply.total.tolist()
    few = Evaluate(weights).answer(site([0] * 9, FLOOR))
    assert (few.samples, int(few.total.sum())) == (0, 0)


def test_accuracy_counts_what_was_lumped() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0] * 20 + [1] * 10 + [0] * 5), 3).float()
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 5)
    free = Evaluated(*counted(logits, labels, multilabel=False))
    careful = Evaluated(*counted(logits, labels, multilabel=False, floor=FLOOR))
    assert careful.rest.tolist() == [10, 15]
    assert int(free.right.sum()) == int(careful.right.sum() + careful.rest[0]) == 30
