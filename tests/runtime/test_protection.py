"""How the gate judges an update beside the others, on updates whose lengths and directions are worked out by hand."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsift.protocol.messages import RequestEnvelope, RequestMoment, Weights
from fedsift.runtime.gate import protection as gate
from fedsift.runtime.gate.protection import (
    KEPT_LENGTHS,
    GateLimits,
    Protection,
    UpdateNorms,
    agreements,
    bounded_shares,
    fair_share,
    fair_sizes,
    flattened,
    relative_length,
    remaining,
    reversal_is_attack,
    shares_within,
    turning_is_attack,
    usual_norm_for,
)
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained

START: Weights = {
    "w": torch.tensor([3.0, 0.0, 0.0, 4.0]),
    "bn.running_var": torch.tensor([1.0, 2.0, 3.0, 4.0]),
}
"""||w|| = 5."""


def judged(
    updates: Mapping[str, Any],
    protection: Protection | None = None,
    begun: Mapping[str, torch.Tensor] = START,
    stage: str = "train",
    **limits: Any,
) -> dict[str, str]:
    """Refusals of updates of `w`, given as four numbers that are added to START; begun: the model that was sent."""
    protection = protection or Protection(GateLimits(**limits))
    request = Train(dict(begun), Recipe())
    replies = {
        site: Trained(
            {"w": START["w"] + torch.tensor(change), "bn.running_var": START["bn.running_var"] * 1.1}, 10, 0.5
        )
        for site, change in updates.items()
    }
    envelopes = {site: RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", request) for site in updates}
    return protection.refusals(stage, replies, envelopes, lambda site: ("bn.running_var",))


def one(length: float, direction: int = 0) -> list[float]:
    return [length if position == direction else 0.0 for position in range(4)]


def test_lengths_are_measured_by_the_model_that_was_sent() -> None:
    model = {"w": START["w"] + torch.tensor(one(2.0))}
    assert relative_length(model, START, ["w"]) == pytest.approx(2 / 5)
    assert relative_length({"w": torch.full((4,), 2.0)}, {"w": torch.zeros(4)}, ["w"]) == pytest.approx(4.0)


def test_agreement_is_the_cosine_with_all_others_alike() -> None:
    """u = (1, 0), (0, 2), (-3, 0): beside the unit sum of the others (-1, 1), (0, 0), (1, 1)."""
    zero = {"w": torch.zeros(2)}
    models = [{"w": torch.tensor(u)} for u in ([1.0, 0.0], [0.0, 2.0], [-3.0, 0.0])]
    found = agreements(models, [zero] * 3, ["w"])
    assert found == pytest.approx([-1 / math.sqrt(2), 0.0, -1 / math.sqrt(2)])
    assert agreements([zero, zero, models[0]], [zero] * 3, ["w"]) == pytest.approx([0.0, 0.0, 0.0])


def test_too_long_beside_the_cohort() -> None:
    """Among five replies the limit is 6 times the median, 1."""
    found = judged({"a": one(1.0), "b": one(1.1), "c": one(0.9), "d": one(1.0), "e": one(7.0)})
    assert list(found) == ["e"] and "length 1.4 is 7.0 times the usual 0.2" in found["e"]
    assert not judged({"a": one(1.0), "b": one(1.1), "c": one(0.9), "d": one(1.0), "e": one(5.0)})
    off = {"norm_factor": 0, "against": 0}
    assert not judged({"a": one(1.0), "b": one(1.1), "c": one(0.9), "d": one(1.0), "e": one(7.0)}, **off)


def test_among_three_the_limit_is_the_same() -> None:
    assert not judged({"a": one(1.0), "b": one(1.1), "c": one(6.5)})
    assert list(judged({"a": one(1.0), "b": one(1.0), "c": one(6.5)})) == ["c"]


def test_in_a_new_stage_a_site_may_go_on_as_it_went_in_the_last_one() -> None:
    """Two of three sites have nothing left to learn; the third goes on as before, 10 times as far as they."""
    protection = Protection(GateLimits(replays=False))
    judged({site: one(1.0) for site in "abc"}, protection)
    protection.lengths = {key.replace("train", "before"): known for key, known in protection.lengths.items()}
    later = {"a": one(0.1), "b": one(0.1)}
    assert not judged({**later, "c": one(1.0)}, protection)
    protection.lengths = {key: at for key, at in protection.lengths.items() if key.startswith("before")}
    assert list(judged({**later, "c": one(4.0)}, protection)) == ["c"], "6 times min(peak 1, own 1 / 2)"
    assert list(judged({**later, "d": one(1.0)}, protection)) == ["d"], "nobody knows it"


def test_one_site_alone_is_measured_by_the_stage() -> None:
    protection = Protection()
    assert not judged({"a": one(29.0)}, protection), "5.8 times the model, and nobody can say yet what is usual"
    for site in "bcd":
        assert not judged({site: one(1.0)}, protection)
    assert list(judged({"e": one(19.0)}, protection)) == ["e"], "18 times: as in the smallest cohort, of three"
    again = Protection()
    again.recall(protection.memory())
    assert again.memory() == protection.memory()
    assert list(judged({"e": one(7.0)}, again)) == ["e"], "a resumed run judges as one that never stopped"


def test_sites_that_come_one_by_one_may_go_as_far_as_they_went_when_most_are_held_back() -> None:
    """FedCorr's first stage: from its second iteration on a proximal term ties most sites to a tenth of their way. The
    others are honest, and 5 of the 7 latest updates would say that 1 is ten times too long."""
    protection = Protection(GateLimits(replays=False))
    for site in "abcdefg":
        assert not judged({site: one(1.0)}, protection)
    for _ in range(2 * KEPT_LENGTHS // 5):
        for site in "abcde":
            assert not judged({site: one(0.1)}, protection)
    assert statistics.median(length for length, _ in protection.lengths["train/0"].recent) == pytest.approx(0.1 / 5)
    memory = json.dumps(protection.memory())

    def refused(site: str, length: float) -> bool:
        again = Protection(protection.limits)
        again.recall(json.loads(memory))
        return list(judged({site: one(length)}, again)) == [site]

    assert not refused("f", 2.5), "its own length was 1: half of that, six times"
    assert refused("f", 3.5)
    assert not refused("late", 5.0), "comes for the first time: six times what others began with"
    assert refused("late", 7.0)
    assert refused("a", 15.0)


def test_one_site_that_comes_again_and_again_is_no_cohort() -> None:
    protection = Protection(GateLimits(replays=False))
    for _ in range(5):
        assert not judged({"a": one(0.1)}, protection)
    assert not judged({"b": one(2.0)}, protection), "a site whose data the model has not seen goes further"
    judged({"c": one(0.1)}, protection)
    assert list(judged({"d": one(2.0)}, protection)) == ["d"], "three sites have been here"


def test_where_one_lone_site_after_another_goes_far_that_is_usual() -> None:
    """A model was corrupted, and honest sites mend it: the third of them is believed. Two attackers in a row are
    not."""
    protection = Protection(GateLimits(replays=False))
    for site in "abc":
        assert not judged({site: one(0.1)}, protection)
    assert list(judged({"d": one(2.0)}, protection)) == ["d"]
    again = Protection(GateLimits(replays=False))
    again.recall(json.loads(json.dumps(protection.memory())))
    assert list(judged({"e": one(2.2)}, again)) == ["e"]
    assert list(judged({"d": one(2.0)}, again)) == ["d"], "its own earlier one is no witness"
    assert not judged({"f": one(2.1)}, again)


def test_the_first_update_of_a_lone_site_is_measured_by_the_model_that_was_sent() -> None:
    """||w|| = 5, the limit is 6 times as much; from zeros there is nothing to measure by."""
    assert "6.2 times the usual 1" in judged({"a": one(31.0)})["a"]
    assert list(judged({"a": one(1.0), "b": one(1e9)})) == ["b"], "two are no cohort either"
    assert not judged({"a": one(31.0)}, norm_factor=0)
    nothing: Weights = {"w": torch.zeros(4)}
    request = Train(nothing, Recipe())
    replies = {"a": Trained({"w": torch.arange(4.0) * 100}, 10, 0.5)}
    envelopes = {"a": RequestEnvelope("run", "a", RequestMoment(1, "train", 0, 0), "", request)}
    assert not Protection().refusals("train", replies, envelopes, lambda site: ())


def test_whoever_comes_late_may_go_as_far_as_the_others_when_they_began() -> None:
    """Sites began with 1 and are down to 0.01: a late one goes 1 and 5 where the request says so; 7 is too far, and so
    is 1 for a site that was there before."""

    @dataclasses.dataclass(frozen=True)
    class Late(Train):
        late: ClassVar[bool] = True

    def judge(kind: type[Train], protection: Protection, updates: Mapping[str, float]) -> list[str]:
        request = kind(START, Recipe())
        replies = {
            site: Trained({**START, "w": START["w"] + torch.tensor(one(far))}, 10, 0.5) for site, far in updates.items()
        }
        envelopes = {
            site: RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", request) for site in updates
        }
        return list(protection.refusals("train", replies, envelopes, lambda site: ("bn.running_var",)))

    little = dict.fromkeys("abcde", 0.01)
    for kind, far, refused in ((Late, 1.0, []), (Late, 5.0, []), (Late, 7.0, ["z"]), (Train, 1.0, ["z"])):
        protection = Protection(GateLimits(replays=False))
        assert judge(kind, protection, dict.fromkeys("abcde", 1.0)) == []
        assert judge(kind, protection, {**little, "z": far}) == refused
    protection = Protection(GateLimits(replays=False))
    judge(Late, protection, dict.fromkeys("abcde", 1.0))
    assert judge(Late, protection, {**little, "e": 4.0}) == ["e"], "6 times half of its own way"


def test_a_new_stage_of_few_sites_allows_twice_what_the_others_did() -> None:
    protection = Protection()
    judged({"a": one(1.0), "b": one(1.0), "c": one(1.0)}, protection)
    protection.lengths = {key.replace("train", "before"): known for key, known in protection.lengths.items()}
    assert not judged({"a": one(11.0)}, protection)
    assert list(judged({"b": one(13.0)}, protection)) == ["b"]


def test_a_site_may_go_on_as_it_began_when_the_others_have_learnt() -> None:
    """Five sites move by 1, then four of them by 0.1: the fifth is not refused for going on, a stranger is."""
    protection = Protection(GateLimits(replays=False))
    assert not judged({site: one(1.0) for site in "abcde"}, protection)
    later = {site: one(0.1) for site in "abcd"}
    assert not judged({**later, "e": one(1.0)}, protection)
    assert list(judged({**later, "f": one(1.0)}, protection)) == ["f"]
    assert list(judged({**later, "e": one(4.0)}, protection)) == ["e"], "further than it ever went"


AGREED = {
    "a": [1.0, 0.1, 0.0, 0.0],
    "b": [1.0, -0.1, 0.0, 0.0],
    "c": [1.0, 0.0, 0.1, 0.0],
    "d": one(1.0),
    "e": one(1.1),
}


def test_against_a_cohort_that_agrees() -> None:
    assert "5.0 usual lengths against" in judged({**AGREED, "z": one(-5.0)})["z"]
    assert not judged({**AGREED, "z": one(-4.0)})
    apart = {"a": one(1.0, 0), "b": one(1.0, 1), "c": one(1.0, 2)}
    assert not judged({**apart, "d": [-1.0, -1.0, -1.0, 0.0]}), "sites that agree on nothing cannot be opposed"


def test_a_site_that_goes_back_in_the_first_exchange_is_left_out_until_the_end() -> None:
    """The median way along is 1: -0.7 is beyond the limit of 0.6, -0.5 is within it."""
    protection = Protection(GateLimits(replays=False), opening=True)
    assert not judged({**AGREED, "z": one(-0.5)}, protection)
    assert not judged({**AGREED, "z": one(-2.0)}, protection), "learnt models are pulled back by wrong labels too"
    protection = Protection(GateLimits(replays=False), opening=True)
    found = judged({**AGREED, "z": one(-0.7)}, protection)
    assert list(found) == ["z"] and "0.70 times as far against the cohort's direction" in found["z"]
    again = Protection(GateLimits(replays=False), opening=True)
    again.recall(protection.memory())
    assert not again.opening
    assert judged({**AGREED, "z": one(1.0)}, again) == found, "whatever it sends later"


@pytest.mark.parametrize("declared", [10, 20, 40, 1000, 12000])
def test_a_declared_size_hides_no_turned_sign(declared: int) -> None:
    """The site takes as many steps as the others, and says that its way back is short for a site of its size."""
    start: Weights = {"w": START["w"]}
    request = Train(start, Recipe(batch_size=10, momentum=0.0))
    ways = {**{site: (way, 10) for site, way in AGREED.items()}, "z": (one(-1.0), declared)}
    replies = {site: Trained({"w": start["w"] + torch.tensor(way)}, size, 0.5) for site, (way, size) in ways.items()}
    envelopes = {site: RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", request) for site in ways}
    found = Protection(opening=True).refusals("train", replies, envelopes, lambda site: ())
    assert list(found) == ["z"] and "1.00 times as far against" in found["z"]


def test_no_site_counts_for_more_than_all_others_or_three_times_its_share() -> None:
    assert [fair_share(n) for n in (1, 2, 6, 10, 100)] == [0.5, 0.5, 0.5, 0.3, 0.03]
    declared = {**dict.fromkeys("abcd", 270), "z": 12000}
    assert fair_sizes(declared, 1.0) == {}, "a coordinator that knows its sites"
    assert fair_sizes(declared, fair_share(5)) == {**declared, "z": 1080}, "half of the whole"
    ten = {**dict.fromkeys("abcdefghi", 70), "z": 12000}
    assert fair_sizes(ten, fair_share(10))["z"] == 270, "0.3 of 9 * 70 / 0.7"
    assert GateLimits().share(10, simulated=True) == 1.0
    assert GateLimits().share(10, simulated=False) == 0.3
    assert GateLimits(largest_share=1.0).share(10, simulated=False) == 1.0


def test_only_a_first_update_of_a_cohort_that_agrees_tells_an_attack() -> None:
    def first(updates: Mapping[str, Any], opening: bool = True, **limits: Any) -> dict[str, str]:
        return judged(updates, Protection(GateLimits(**limits), opening=opening))

    assert list(first({**AGREED, "z": one(-1.0)})) == ["z"]
    assert not first({**AGREED, "z": one(-1.0)}, opposed=0)
    assert not first({**AGREED, "z": one(-1.0)}, opening=False)
    sideways = {"a": one(1.0, 0), "b": one(1.0, 1), "c": one(1.0, 2), "d": one(1.0, 3)}
    assert not first({**sideways, "z": [-0.5, -0.5, -0.5, -0.5]}), "these sites have no common direction"


def test_a_site_that_turns_round_is_left_out_until_the_end() -> None:
    """Everybody's cosine is near 1. Z went along by 1 of the others' agreement and goes back by 1: an attack. One that
    went along by half, as honest sites with wrong labels do at most, may go back as far as it likes."""

    def known(before: list[float], judges: bool = True, **limits: Any) -> Protection:
        protection = Protection(GateLimits(replays=False, **limits), judges_turns=judges)
        assert not judged({**AGREED, "z": before}, protection)
        return protection

    protection = known(one(1.0))
    found = judged({**AGREED, "z": one(-0.2)}, protection)
    assert list(found) == ["z"] and "1.00 of their agreement), then turned round (-1.01)" in found["z"]
    again = Protection(GateLimits(replays=False), judges_turns=True)
    again.recall(json.loads(json.dumps(protection.memory())))
    assert judged({**AGREED, "z": one(1.0)}, again) == found, "whatever it sends later, and after a restart"
    half = [0.5, math.sqrt(0.75), 0.0, 0.0]  # a cosine of 0.5
    assert not judged({**AGREED, "z": one(-1.0)}, known(half))
    assert not judged({**AGREED, "z": [-0.5, 0.0, 0.0, math.sqrt(0.75)]}, known(one(1.0))), "it goes back by half"
    assert not judged({**AGREED, "z": one(-1.0)}, known(one(1.0), turned=0))
    assert not judged({**AGREED, "z": one(-1.0)}, known(one(1.0), judges=False)), "two classes, or several labels"


def rounds_of(protection: Protection, count: int, asked: str = "abcdez", **updates: Any) -> list[dict[str, str]]:
    """Exchanges in which a to e go along by 0.05 and all of `asked` are asked."""
    request = Train({"w": START["w"]}, Recipe())
    small = {site: [0.05 * number for number in way] for site, way in AGREED.items()} | updates
    replies = {site: Trained({"w": START["w"] + torch.tensor(way)}, 10, 0.5) for site, way in small.items()}
    envelopes = {site: RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", request) for site in asked}
    return [protection.refusals("train", replies, envelopes, lambda site: ()) for _ in range(count)]


def test_a_site_that_comes_back_is_measured_as_one_that_begins() -> None:
    """The others go 0.05 by now and went 1 when they began: an update of 1 is 20 times too long for who was there, and
    usual for who was away for so many exchanges. It counts for half of a fair share three times, then in full."""
    limits = GateLimits(replays=False, readmit_after=4)

    def known() -> Protection:
        protection = Protection(limits)
        assert not judged({**AGREED, "z": one(1.0)}, protection)
        return protection

    present = known()
    assert rounds_of(present, 3, z=one(0.05)) == [{}, {}, {}]
    assert "times the usual" in rounds_of(present, 1, z=one(5.0))[0]["z"]
    short = known()
    assert rounds_of(short, 3) == [{}, {}, {}]
    assert list(rounds_of(short, 1, z=one(5.0))[0]) == ["z"], "three are not four"
    away = known()
    assert rounds_of(away, 4) == [{}] * 4
    again = Protection(limits)
    again.recall(json.loads(json.dumps(away.memory())))
    assert "times the usual" in rounds_of(again, 1, z=one(7.0))[0]["z"], "more than six times what is usual at first"
    assert [rounds_of(away, 1, z=one(5.0))[0], away.absences.share("z", 6)] == [{}, 0.5 / 6]
    shares = []
    for _ in range(3):
        assert rounds_of(away, 1, z=one(0.05)) == [{}]
        shares.append(away.absences.share("z", 6))
    assert shares == [0.5 / 6, 0.5 / 6, 1.0]
    assert away.absences.share("a", 6) == 1.0


def test_a_first_model_that_comes_late_is_measured_as_that_of_one_who_begins() -> None:
    protection = Protection(GateLimits(replays=False))
    assert not judged(AGREED, protection)
    assert rounds_of(protection, 2) == [{}, {}]
    far = copy.deepcopy(protection)
    assert rounds_of(protection, 1, z=one(5.0)) == [{}] and protection.absences.share("z", 6) == 0.5 / 6
    assert list(rounds_of(far, 1, z=one(7.0))[0]) == ["z"] and far.absences.waits == {"z": 20}


def test_who_is_not_asked_is_not_away() -> None:
    protection = Protection(GateLimits(replays=False, readmit_after=4))
    assert not judged({**AGREED, "z": one(1.0)}, protection)
    assert rounds_of(protection, 9, asked="abcde") == [{}] * 9
    assert list(rounds_of(protection, 1, z=one(5.0))[0]) == ["z"]


def test_a_left_out_site_is_tried_again_and_comes_back_if_it_goes_along() -> None:
    def left_out() -> Protection:
        protection = Protection(GateLimits(replays=False, readmit_after=3), judges_turns=True)
        assert not judged({**AGREED, "z": one(1.0)}, protection)
        found = judged({**AGREED, "z": one(-1.0)}, protection)
        assert "turned round" in found["z"]
        assert [list(each) for each in rounds_of(protection, 2, z=one(0.05))] == [["z"], ["z"]], "until it is tried"
        return protection

    honest = left_out()
    assert rounds_of(honest, 1, z=one(0.05)) == [{}] and honest.absences.share("z", 6) == 0.5 / 6
    assert rounds_of(honest, 3, z=one(0.05)) == [{}, {}, {}] and honest.absences.share("z", 6) == 1.0
    turned = left_out()
    found = rounds_of(turned, 1, z=one(-0.05))[0]["z"]
    assert "tried again" in found and "turned round" in found
    tries = [each["z"].startswith("the site was tried") for each in rounds_of(turned, 12, z=one(-0.05))]
    assert tries == [False] * 5 + [True] + [False] * 6, "after three, then six, then twelve"
    again = left_out()
    assert rounds_of(again, 1, z=one(0.05)) == [{}]
    assert "turned round" in rounds_of(again, 1, z=one(-0.05))[0]["z"], "who comes back and turns again is out again"


def test_who_is_refused_is_tried_beside_others_alone() -> None:
    """A site that comes one by one has nobody to go along with."""
    protection = Protection(GateLimits(replays=False, readmit_after=2), judges_turns=True)
    assert not judged({**AGREED, "z": one(1.0)}, protection)
    assert list(judged({**AGREED, "z": one(-1.0)}, protection)) == ["z"]
    for _ in range(5):
        assert "turned round" in judged({"z": one(0.1)}, protection)["z"]
    assert rounds_of(protection, 1, z=one(0.05)) == [{}]


def test_a_cohort_without_a_direction_tells_nobody_s_turn() -> None:
    protection = Protection(GateLimits(replays=False), judges_turns=True)
    assert not judged({**AGREED, "z": one(1.0)}, protection)
    sideways = {site: one(1.0, number % 4) for number, site in enumerate("abcd")}
    assert not judged({**sideways, "z": one(-1.0)}, protection)
    assert not judged({**AGREED, "z": one(-1.0)}, protection), "what it did two exchanges ago tells nothing"
    assert gate.shares({"a": 0.4, "b": 0.45, "c": 0.4}) == {}
    assert gate.shares({"a": 0.6, "b": 0.9, "c": -0.6}) == pytest.approx({"a": 1.0, "b": 1.5, "c": -1.0})
    assert [gate.turn(*ways) for ways in ((1.0, -0.7), (0.2, -3.0), (-1.0, -1.0), (1.0, 1.0))] == [
        0.7,
        0.2,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("classes", "multilabel", "given", "told", "turns"),
    [
        (5, False, False, True, True),
        (4, False, False, False, False),
        (2, False, False, False, False),
        (9, True, False, False, True),
        (3, True, False, False, False),
        (9, False, True, False, True),
    ],
)
def test_wrong_labels_of_few_classes_look_like_an_attack(
    classes: int, multilabel: bool, given: bool, told: bool, turns: bool
) -> None:
    assert reversal_is_attack(classes, multilabel, given) is told
    assert turning_is_attack(classes, multilabel) is turns


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_wrong_labels_pull_an_untaught_model_back_by_one_in_k_minus_one(classes: int) -> None:
    """Softmax of zero weights, one feature a class: the gradient of right labels is -(I - 1/K), whose product with the
    gradient of labels that are shifted by one is -1 / (K - 1) of its product with itself; the same for labels drawn
    from all other classes, in the mean."""
    right = np.eye(classes) - 1 / classes
    shifted = np.roll(np.eye(classes), 1, axis=1) - 1 / classes
    drawn = (1 - np.eye(classes)) / (classes - 1) - 1 / classes
    for wrong in (shifted, drawn):
        assert (wrong * right).sum() / (right * right).sum() == pytest.approx(-1 / (classes - 1))


def test_a_site_of_more_samples_may_go_further() -> None:
    """Batches of 10: sites of 10 samples take one step of length 1, a site of 100 takes ten: up to 6 * 10 is usual."""
    start: Weights = {"w": torch.tensor([3.0, 0.0, 0.0, 4.0])}
    request = Train(start, Recipe(batch_size=10, momentum=0.0))

    def judge(length: float, samples: int, **sizes: int) -> list[str]:
        updates = {**dict.fromkeys("abcd", (1.0, 10)), "z": (length, samples)}
        replies = {
            site: Trained({"w": start["w"] + torch.tensor(one(far))}, count, 0.5)
            for site, (far, count) in updates.items()
        }
        envelopes = {
            site: RequestEnvelope("run", site, RequestMoment(1, "train", 0, 0), "", request) for site in updates
        }
        return list(Protection(sizes=sizes).refusals("train", replies, envelopes, lambda site: ()))

    assert judge(59.0, 100) == [] and judge(61.0, 100) == ["z"]
    assert judge(23.0, 100, z=40) == [] and judge(25.0, 100, z=40) == ["z"], "as far as its size counts"
    assert judge(5.0, 10) == [] and judge(7.0, 10) == ["z"]
    assert judge(5.0, 1) == [] and judge(7.0, 1) == ["z"], "fewer samples narrow nothing"


def test_usual_lengths_are_stretched_to_a_site_s_reach() -> None:
    """Lengths 1, 2 and 8 of reach 1, 2 and 4: for reach 4 they stand for 4, 4 and 8, for reach 1 for themselves."""
    ways = [(1.0, 1.0), (2.0, 2.0), (8.0, 4.0)]
    assert usual_norm_for(4.0, ways) == 4.0
    assert usual_norm_for(1.0, ways) == 2.0
    lengths = UpdateNorms()
    lengths.note({"a": (1.0, 1.0), "b": (2.0, 2.0), "c": (8.0, 4.0)}, 3)
    lengths.note({"a": (0.1, 1.0), "b": (0.2, 2.0), "c": (0.3, 4.0)}, 3)
    assert lengths.peak == ways
    assert lengths.usual("c", (3.0, 4.0), 0.1) == 4.0, "min(peak, own / 2) = min(4, 8 / 2)"
    assert lengths.usual("a", (3.0, 1.0), 0.1) == 0.5, "min(peak, own / 2) = min(2, 1 / 2)"
    assert lengths.usual("new", (3.0, 1.0), 0.1) == 0.1
    assert UpdateNorms.recalled(json.loads(json.dumps(lengths.memory()))) == lengths


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_flat_tensors_are_refused_from_the_first_reply_on(value: float) -> None:
    flat = [value - float(number) for number in START["w"]]
    found = judged({"a": flat})
    assert f"'w' holds {value:.3g} throughout" in found["a"]
    assert not judged({"a": flat}, flat=False)
    assert flattened({"w": torch.zeros(4)}, {"w": torch.zeros(4)}) == [], "sent so"
    assert flattened({"w": torch.zeros(3)}, {"w": torch.arange(3.0)}) == [], "a few numbers may be equal"


def test_a_model_that_has_nearly_vanished_is_refused() -> None:
    """||w|| = 5: 0.45 is less than a tenth of it, 0.55 is not."""
    small = {site: [length * n / 5 - n for n in (3.0, 0.0, 0.0, 4.0)] for site, length in (("a", 0.45), ("b", 0.55))}
    found = judged(small)
    assert found == {"a": "the model has shrunk to 0.09 of the one that was sent"}
    assert remaining({"w": torch.ones(4)}, {"w": torch.zeros(4)}, ["w"]) == 1.0
    assert not judged(small, flat=False)


LATER = {name: tensor + 0.25 for name, tensor in START.items()}


def test_a_model_that_was_sent_before_is_a_replay() -> None:
    protection = Protection()
    assert not judged({"a": one(1.0), "b": one(1.1)}, protection)
    assert "sent before" in judged({"a": one(1.0), "b": one(1.2)}, protection, LATER)["a"]
    assert not judged({"c": one(1.1)}, protection, LATER), "another site may well come to the same"
    again = Protection()
    again.recall(protection.memory())
    assert list(judged({"b": one(1.1)}, again, LATER)) == ["b"]


def test_a_model_that_is_trained_again_from_the_same_place_is_no_replay() -> None:
    """A site of two samples ends where it ended before: it is asked the same, and answers the same."""
    protection = Protection()
    for _ in range(2):
        assert not judged({"a": one(1.0), "b": one(1.1)}, protection)
    assert "sent before" in judged({"a": one(1.0)}, protection, LATER)["a"]


def test_lengths_from_zeros_tell_nothing_about_others() -> None:
    """Three rounds of steps of 0.2 of the model, then one from zeros, which has no length to be a share of."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in START.items()}
    protection = Protection(GateLimits(norm_factor=6.0))
    for length in (0.1, 0.11, 0.12):
        assert not judged({"a": one(length), "b": one(1.1 * length)}, protection, stage="search")
    assert not judged({"a": one(50.0), "b": one(60.0)}, protection, zeros)
    assert "times the usual" in judged({"a": one(51.0)}, protection)["a"], "from a model it is still too far"


def test_a_model_that_comes_back_as_it_was_sent_is_no_replay() -> None:
    request = Train(START, Recipe())
    envelope = RequestEnvelope("run", "a", RequestMoment(1, "train", 0, 0), "", request)
    protection = Protection()
    for _ in range(2):
        assert not protection.refusals("train", {"a": Trained(START, 10, 0.5)}, {"a": envelope}, lambda site: ())


def test_a_negative_variance_is_refused() -> None:
    request = Train(START, Recipe())
    reply = Trained({**START, "bn.running_var": torch.tensor([1.0, -1.0, 1.0, 2.0])}, 10, 0.5)
    envelope = RequestEnvelope("run", "a", RequestMoment(1, "train", 0, 0), "", request)
    found = Protection().refusals("train", {"a": reply}, {"a": envelope}, lambda site: ("bn.running_var",))
    assert "negative variance" in found["a"]


@pytest.mark.parametrize(
    ("sizes", "bounds", "wanted"),
    [
        ({"a": 10, "b": 10, "c": 980}, {"c": 0.5}, {"a": 10, "b": 10, "c": 20}),
        ({"a": 100, "b": 100}, {}, {"a": 100, "b": 100}),
        ({"a": 60, "b": 900, "c": 900}, {"b": 0.4, "c": 0.4}, {"a": 60, "b": 120, "c": 120}),
        ({"a": 5, "b": 900}, {"a": 0.3, "b": 0.3}, {"a": 5, "b": 5}),
        ({"a": 1000, "b": 10}, {"b": 0.5}, {"a": 1000, "b": 10}),
    ],
)
def test_no_site_counts_for_more_than_its_share(
    sizes: dict[str, int], bounds: dict[str, float], wanted: dict[str, int]
) -> None:
    assert shares_within(sizes, {site: bounds.get(site, 1.0) for site in sizes}) == wanted


def test_a_bounded_share_changes_the_reply_and_no_other() -> None:
    replies = {site: Trained(START, size, 0.5) for site, size in {"a": 10, "b": 10, "c": 980}.items()}
    found = bounded_shares(replies, lambda site: 0.5)
    assert [reply.samples for reply in found.values()] == [10, 10, 20]
    assert found["a"] is replies["a"] and found["c"].weights is START
    assert bounded_shares(replies, lambda site: 1.0) == replies
    assert dataclasses.replace(found["c"], samples=980) == replies["c"]
