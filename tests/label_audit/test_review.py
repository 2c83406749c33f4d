"""The plan and what verdicts say: arms, blindness, settling, and advice, against numbers by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import ConfigError, DataError
from fedsift.label_audit.review import (
    FLAGGED,
    UNFLAGGED,
    WORST,
    ReviewItem,
    ReviewPlan,
    decided,
    draw_plan,
    known_labels,
    outcomes,
    random_order,
    read_plan,
    settle,
    status,
)
from fedsift.label_audit.site_audit import CONVICTED, OPEN, WITHDRAWN
from fedsift.label_audit.verdicts import ReviewVerdict
from tests.label_audit.made import digits_audit, multilabel_audit, odd_audits

AUDIT, TRUE = digits_audit(3000, wrong=0.2, test=200)


def arms(plan: ReviewPlan) -> Counter[str]:
    return Counter(item.arm for item in plan.items)


def test_three_arms_of_a_hundred() -> None:
    plan = draw_plan(AUDIT)
    assert arms(plan) == {WORST: 100, FLAGGED: 100, UNFLAGGED: 100}
    rows, train = AUDIT.row_of, ~AUDIT.is_test
    flagged = int((AUDIT.flagged & train).sum())
    assert plan.sizes == {WORST: 100, FLAGGED: flagged - 100, UNFLAGGED: 2800 - flagged}
    worst = {item.id for item in plan.items if item.arm == WORST}
    order = [AUDIT.ids[k] for k in AUDIT.worst_first() if train[k] and AUDIT.flagged[k]]
    assert worst == set(order[:100])
    for item in plan.items:
        assert AUDIT.flagged[rows[item.id]] == (item.arm != UNFLAGGED)
        assert train[rows[item.id]]
    assert len({item.id for item in plan.items}) == 300


def test_the_same_seed_draws_the_same_and_a_longer_plan_keeps_the_shorter() -> None:
    short, again, other = draw_plan(AUDIT), draw_plan(AUDIT), draw_plan(AUDIT, seed=9)
    assert short == again and short.items != other.items
    longer = draw_plan(AUDIT, flagged=150, unflagged=300)
    kept = {item.id: item for item in longer.items}
    assert all(kept[item.id] == item for item in short.items)
    assert arms(longer) == {WORST: 100, FLAGGED: 150, UNFLAGGED: 300}


def test_the_queue_is_shuffled_over_the_arms() -> None:
    first = Counter(item.arm for item in draw_plan(AUDIT).items[:150])
    assert all(30 <= first[arm] <= 70 for arm in (WORST, FLAGGED, UNFLAGGED))


def test_the_blind_share() -> None:
    assert not any(item.blind for item in draw_plan(AUDIT, blind=0).items)
    assert all(item.blind for item in draw_plan(AUDIT, blind=1).items)
    share = np.mean([item.blind for item in draw_plan(AUDIT, unflagged=1000).items])
    assert 0.15 < share < 0.25


def test_a_wanted_precision_sets_the_numbers() -> None:
    plan = draw_plan(AUDIT, within=0.1)
    # about half wrong takes 93 (z² / 4w² - z²), fewer where the shares are nearer to 0 or 1
    assert 10 <= arms(plan)[FLAGGED] <= 93
    assert 10 <= arms(plan)[UNFLAGGED] <= 93
    assert len(draw_plan(AUDIT, within=0.05).items) > len(plan.items)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blind": 1.5}, "blind share"),
        ({"worst": -1}, "cannot be negative"),
        ({"within": 0.7}, "wanted precision"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        draw_plan(AUDIT, **options)


@pytest.mark.parametrize(
    "audit",
    [*odd_audits(), multilabel_audit(12)],
)
def test_small_and_odd_audits_have_a_plan_and_a_status(audit: Any, tmp_path: Path) -> None:
    plan = draw_plan(audit, within=0.05)
    assert len(plan.items) <= len(audit)
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert read_plan(tmp_path / "plan.json") == plan
    found = status(audit, plan, [])
    assert math.isnan(found.precision.share) and found.readers == {}


def test_a_plan_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedsift review plan"):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"items": [{"id": 1}]}')
    with pytest.raises(DataError, match="cannot be read as a review plan"):
        read_plan(tmp_path / "plan.json")


def verdict(name: str, decision: str, *labels: str, reader: str = "ann", adjudicates: bool = False) -> ReviewVerdict:
    return ReviewVerdict(name, decision, labels, reader, adjudicates=adjudicates)


def test_settling_two_readers() -> None:
    readings = [
        verdict("a", "given", "cat"),
        verdict("a", "given", "cat", reader="bob"),
        verdict("b", "given", "cat"),
        verdict("b", "proposal", "dog", reader="bob"),
        verdict("c", "cannot tell"),
        verdict("c", "other", "cow", reader="bob"),
        verdict("c", "other", "cow", reader="eve", adjudicates=True),
        verdict("d", "given", "cat"),
        verdict("d", "proposal", "dog"),  # ann changed her mind
    ]
    found = settle(readings)
    assert set(found.final) == {"a", "c", "d"} and found.open == ("b",)
    assert found.final["c"].labels == ("cow",) and found.final["d"].decision == "proposal"


def planned(
    counts: dict[str, tuple[int, int, int]], blind: tuple[str, ...] = ()
) -> tuple[ReviewPlan, list[ReviewVerdict]]:
    """A plan with verdicts: arm to (size, reviewed, wrong)."""
    items, said = [], []
    for arm, (_, reviewed, wrong) in counts.items():
        for k in range(reviewed):
            name = f"{arm}{k}"
            items.append(ReviewItem(name, arm, name in blind))
            said.append(verdict(name, "proposal" if k < wrong else "given", "dog" if k < wrong else "cat"))
    sizes = {arm: size for arm, (size, _, _) in counts.items()}
    return ReviewPlan("A", "f", 0, 0.2, sizes, tuple(items), ()), said


def test_precision_and_share_missed_by_hand() -> None:
    plan, said = planned({WORST: (100, 100, 90), FLAGGED: (300, 100, 51), UNFLAGGED: (2000, 60, 0)})
    found = status(AUDIT, plan, said)
    middle = found.arms[1]
    assert (round(100 * middle.low), round(100 * middle.high)) == (38, 64)
    assert found.precision.share == pytest.approx((90 + 300 * 0.51) / 400)
    assert found.missed.share == 0.0 and 0.1 < found.missed.high < 0.35
    assert (found.arms[2].low, round(100 * found.arms[2].high)) == (0.0, 9)  # as `wrong_of_all` has it by hand


def test_advice_says_how_many_more() -> None:
    plan, said = planned({WORST: (100, 100, 90), FLAGGED: (3000, 341, 174), UNFLAGGED: (2000, 60, 3)})
    advice = status(AUDIT, plan, said).advice
    # 174 / 341 = .51 needs 381 for ±5 points (see the tests of `needed`): 40 more
    assert advice[0] == "review 40 more of the flagged samples to know the precision of the list within ±5 points"
    assert advice[1].startswith("review ") and "unflagged" in advice[1]
    done = status(AUDIT, plan, said, within=0.2).advice
    assert done[0].startswith("enough flagged samples are reviewed")
    few, some = planned({WORST: (3, 3, 1), FLAGGED: (10, 4, 2), UNFLAGGED: (0, 0, 0)})
    assert status(AUDIT, few, some).advice[0].startswith("review 6 more")  # there are no more than that
    none, nothing = planned({WORST: (0, 0, 0), FLAGGED: (10, 0, 0), UNFLAGGED: (10, 0, 0)})
    first, second = status(AUDIT, none, nothing).advice
    assert "not known yet" in first and "not known before" in second


def test_cannot_tell_counts_for_nothing_and_strangers_are_counted_apart() -> None:
    plan, said = planned({WORST: (4, 4, 2), FLAGGED: (0, 0, 0), UNFLAGGED: (0, 0, 0)})
    said[3] = verdict("worst3", "cannot tell")
    found = status(AUDIT, plan, [*said, verdict("elsewhere", "given", "cat")])
    assert (found.arms[0].reviewed, found.arms[0].wrong, found.arms[0].cannot_tell) == (3, 2, 1)
    assert found.outside_plan == 1


def test_kappa_of_two_readers_and_what_is_left_to_adjudicate() -> None:
    plan, said = planned({WORST: (4, 4, 2), FLAGGED: (0, 0, 0), UNFLAGGED: (0, 0, 0)}, blind=("worst0",))
    second = [verdict(one.id, one.decision, *one.labels, reader="bob") for one in said]
    second[0] = verdict("worst0", "given", "cat", reader="bob")
    found = status(AUDIT, plan, [*said, *second])
    # ann: 2 dog, 2 cat; bob: 1 dog, 3 cat; agree on 3 of 4; chance (2*1 + 2*3) / 16 = .5; kappa .5
    [pair] = found.agreement
    assert (pair.samples, pair.agreed) == (4, 3) and pair.kappa == pytest.approx(0.5)
    assert found.to_adjudicate == ("worst0",) and "adjudicate" in found.advice[0]
    assert found.readers == {"ann": 4, "bob": 4}
    settled = status(
        AUDIT, plan, [*said, *second, verdict("worst0", "proposal", "dog", reader="eve", adjudicates=True)]
    )
    assert settled.to_adjudicate == () and settled.arms[0].wrong == 2
    assert settled.blind == {"reviewed": 1, "wrong": 1} and settled.shown == {"reviewed": 3, "wrong": 1}
    assert len(settled.agreement) == 1  # an adjudicator is no third reader


def test_a_perfect_reader_finds_what_is_true() -> None:
    """Reviewing everything gives the list's true precision and the true share missed, without any interval."""
    plan = draw_plan(AUDIT, worst=50, flagged=10**6, unflagged=10**6, blind=0)
    rows = AUDIT.row_of
    said = [
        verdict(item.id, "given" if TRUE[rows[item.id]] == AUDIT.given[rows[item.id]] else "other", "x")
        for item in plan.items
    ]
    found = status(AUDIT, plan, said)
    train, wrong = ~AUDIT.is_test, AUDIT.given != TRUE
    assert found.precision.share == pytest.approx(wrong[AUDIT.flagged & train].mean())
    assert found.precision.low == found.precision.high == pytest.approx(found.precision.share)
    assert found.missed.share == pytest.approx((wrong & ~AUDIT.flagged & train).sum() / (wrong & train).sum())


def test_what_recalibration_and_the_next_audit_get() -> None:
    plan = draw_plan(AUDIT, worst=4, flagged=2, unflagged=2)
    by_arm = {arm: [item.id for item in plan.items if item.arm == arm] for arm in (WORST, FLAGGED, UNFLAGGED)}
    a, b, c, _ = by_arm[WORST]
    d, e = by_arm[UNFLAGGED][0], by_arm[FLAGGED][0]
    outside = next(name for name in AUDIT.ids if name not in plan.arm_of())
    said = [
        verdict(a, "given", "digit 1"),
        verdict(b, "other", "digit 2"),
        verdict(c, "cannot tell"),
        verdict(d, "both", "digit 1", "digit 2"),
        verdict(e, "proposal", "digit 4"),
        verdict(outside, "other", "digit 3"),
    ]
    rows, wrong, weights = outcomes(AUDIT, plan, said)
    found = {AUDIT.ids[k]: (bool(w), float(x)) for k, w, x in zip(rows, wrong, weights)}
    # two of the four worst were told, so each stands for two; the others stand for their whole arm
    assert found == {
        a: (False, 2.0),
        b: (True, 2.0),
        d: (False, float(plan.sizes[UNFLAGGED])),
        e: (True, float(plan.sizes[FLAGGED])),
    }
    assert known_labels(AUDIT, said) == {
        a: ("digit 1",),
        b: ("digit 2",),
        e: ("digit 4",),
        outside: ("digit 3",),
    }


def test_the_random_part_is_the_beginning_of_one_order_of_the_site() -> None:
    plan = draw_plan(AUDIT)
    order = [AUDIT.ids[k] for k in random_order(AUDIT, plan.seed)]
    queue = [item.id for item in plan.items]
    assert sorted(order) == sorted(name for k, name in enumerate(AUDIT.ids) if not AUDIT.is_test[k])
    assert len(plan.random) >= 100 and plan.random == tuple(order[: len(plan.random)])
    assert order[len(plan.random)] not in queue
    assert [name for name in queue if name in plan.random] == list(plan.random)
    changed = replace(AUDIT, given=np.where(np.arange(len(AUDIT)) == 0, (AUDIT.given + 1) % 10, AUDIT.given))
    assert random_order(changed, plan.seed) != random_order(AUDIT, plan.seed)


def test_a_queue_that_is_read_until_decided_is_the_random_order_and_blind() -> None:
    plan = draw_plan(AUDIT, until_decided=True)
    assert tuple(item.id for item in plan.items) == plan.random and len(plan.random) == 400
    assert all(item.blind for item in plan.items) and plan.sizes[WORST] == 0
    with pytest.raises(ConfigError, match="leave the numbers out"):
        draw_plan(AUDIT, within=0.1, until_decided=True)
    few = draw_plan(odd_audits()[0], until_decided=True)
    assert len(few.items) == 1 and decided(odd_audits()[0], few, []).answer == OPEN


def test_verdicts_that_somebody_chose_do_not_enter() -> None:
    plan = draw_plan(AUDIT)
    chosen = [item.id for item in plan.items if item.id not in plan.random]
    every = [verdict(name, "proposal", "dog", reader=who) for name in chosen for who in ("ann", "bob", "eve")]
    found = decided(AUDIT, plan, every)
    assert (found.answer, found.labels, found.verdicts) == (OPEN, 0, 0)
    # what lies beyond the first that nobody has read does not enter either
    later = [verdict(name, "proposal", "dog", reader=who) for name in plan.random[1:] for who in ("ann", "bob")]
    assert decided(AUDIT, plan, later).labels == 0
    begun = decided(AUDIT, plan, [*later, verdict(plan.random[0], "cannot tell")])
    assert begun.labels == len(plan.random) - 1 and begun.answer == CONVICTED


def test_review_settles_both_ways_and_says_how_much_is_left() -> None:
    plan = draw_plan(AUDIT, until_decided=True)
    right = [verdict(name, "given", "cat") for name in plan.random]
    early = decided(AUDIT, plan, right[:20])
    assert early.answer == OPEN and early.expected is not None and not early.expected.convicted
    assert early.words == f"open: read {early.expected.verdicts} more to clear this site, at the present rate"
    done = decided(AUDIT, plan, right[:40])
    assert done.answer == WITHDRAWN and done.withdrawn >= 20 > done.convicted and done.expected is None
    wrong = [verdict(name, "proposal", "dog", reader=who) for name in plan.random[:3] for who in ("ann", "bob")]
    half = decided(AUDIT, plan, [*wrong[:2], verdict(plan.random[1], "proposal", "dog"), *right[2:8]])
    assert half.read_again == plan.random[:2] and "2 of them by another reader" in half.words
    assert half.expected is not None and half.expected.convicted
    assert decided(AUDIT, plan, [*wrong, *right[3:8]]).answer == CONVICTED
    # what the ledger has decided stands
    held = replace(AUDIT, finding=AUDIT.finding.settled(WITHDRAWN))
    assert decided(held, plan, [*wrong, *right[3:8]]).answer == WITHDRAWN


def test_a_reader_counts_once_a_label() -> None:
    plan = draw_plan(AUDIT, until_decided=True)
    name = plan.random[0]
    twice = [verdict(name, "proposal", "dog"), verdict(name, "proposal", "dog", adjudicates=True)]
    assert decided(AUDIT, plan, twice).verdicts == 1
    assert decided(AUDIT, plan, [*twice, verdict(name, "given", "cat", reader="bob")]).verdicts == 2
