"""FedClean: disputes at a site, their settling, what sites train on and what they count for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsift.methods.co_teaching import TrainCoTaught
from fedsift.methods.fedclean import (
    LOCAL,
    PARTS,
    FedClean,
    FedCleanState,
    SamplePart,
    SettleByAgreement,
    SettleByModel,
    SortByOwnLearner,
    TrainedOnParts,
    TrainingCount,
    TrainOnParts,
)
from fedsift.methods.joint_opt import TrainJointly
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from tests.methods.by_hand import plain_weights, site

START = plain_weights([[1.0, -1.0], [-1.0, 1.0]])
ROWS = [[4.0, 0.0]] * 20 + [[0.0, 4.0]] * 20
GIVEN = [0] * 16 + [1] * 4 + [1] * 16 + [0] * 4
"""Eight labels are wrong: 16 to 19 and 36 to 39."""
WRONG = [16, 17, 18, 19, 36, 37, 38, 39]


def method(**more: Any) -> FedClean:
    return FedClean(cnll_epochs=4, cnll_warm=2, local=Recipe(epochs=2, batch_size=10, lr=0.01), **more)


def sorted_site(cnll: Any = "joint-opt") -> Any:
    own = method(cnll=cnll)
    place = site(ROWS, GIVEN, classes=2)
    reply = SortByOwnLearner(START, START, own.learner_parts()).answer(place)
    assert reply == TrainingCount(32)
    return place


@pytest.mark.parametrize("cnll", ["joint-opt", "co-teaching", "none"])
def test_a_site_disputes_what_its_own_learner_contradicts(cnll: Any) -> None:
    place = sorted_site(cnll)
    parts = place.notebook[PARTS]
    assert (parts == SamplePart.DISPUTED).nonzero().flatten().tolist() == WRONG
    assert place.notebook[LOCAL].tolist() == [0] * 20 + [1] * 20
    assert place.evidence.flagged.nonzero().flatten().tolist() == WRONG
    assert place.evidence.labels is None, "the learner's own labels only served to dispute"
    assert set(place.notebook) == {PARTS, LOCAL, "evidence"}, "its pages are gone"


def test_the_learners_are_the_methods_themselves() -> None:
    co_taught, jointly = method(cnll="co-teaching").learner_parts(), method().learner_parts()
    assert [type(part) for part in co_taught] == [TrainCoTaught] * 4
    assert [part.ramp for part in co_taught if isinstance(part, TrainCoTaught)] == [0.5, 1.0, 1.0, 1.0]
    assert [type(part) for part in jointly] == [Train, TrainJointly]
    assert [part.recipe.epochs for part in jointly] == [2, 2]
    assert all(part.recipe.mixup == 0 for part in (*co_taught, *jointly))


def test_parts_of_a_learner_go_on_from_each_other() -> None:
    """Four parts of one epoch have other batches each, and end elsewhere than the first alone."""
    parts = method(cnll="co-teaching").learner_parts()
    place = site(ROWS, GIVEN, classes=2)
    request = SortByOwnLearner(START, START, parts)
    first = request.job(place)
    moved = {name: value + 1 for name, value in START.items()}

    class Stub:
        weights, twin, loss, rows = moved, None, 0.0, {}

    place.workbench["learner"] = type("Quiet", (), {"reply": staticmethod(lambda *_: None)})
    again = request.further(place, Stub())  # type: ignore[arg-type]
    assert again is not None and again.weights is moved and again.purpose != first.purpose


def test_both_models_together_correct_and_the_given_labels_stay_at_hand() -> None:
    place = sorted_site()
    sharp = plain_weights([[2.0, -2.0], [-2.0, 2.0]])
    # ten disputed samples at least, of which the global model is sure of some: two of them by hand
    parts = place.notebook[PARTS].clone()
    parts[:6] = int(SamplePart.DISPUTED)
    place.notebook[PARTS], place.notebook[LOCAL] = parts, place.notebook[LOCAL].clone()
    assert SettleByAgreement(sharp, 0.5).answer(place) == TrainingCount(26 + 4)
    parts = place.notebook[PARTS]
    first = (parts == SamplePart.FIRST).nonzero().flatten().tolist()
    assert len(first) == 4 and set(first) <= set(WRONG), "half of G1, all of them wrong"
    truth = torch.tensor([0] * 20 + [1] * 20)
    assert place.labels[first].tolist() == truth[first].tolist()
    assert place.given.tolist() == GIVEN
    assert SettleByModel(sharp, 1.0, 0.9).answer(place).used == 40
    parts = place.notebook[PARTS]
    assert (parts == SamplePart.SECOND).sum() == 4 and (parts == SamplePart.CLEARED).nonzero().flatten().tolist() == [
        *range(6)
    ]
    assert torch.equal(place.labels, truth)
    assert place.evidence.flagged.nonzero().flatten().tolist() == WRONG
    assert bool((place.evidence.suspicion[WRONG] > 10).all())


def test_too_few_disputes_are_left_open() -> None:
    place = sorted_site()
    assert SettleByAgreement(START, 1.0).answer(place) == TrainingCount(32)
    assert place.evidence.flagged.nonzero().flatten().tolist() == WRONG
    assert SettleByModel(START, 1.0, 0.0).answer(place) == TrainingCount(32)


def test_sites_train_on_their_parts_under_corrected_labels() -> None:
    place = sorted_site()
    recipe = Recipe(epochs=1, lr=0.01)
    job = TrainOnParts(START, recipe, use=(int(SamplePart.AGREED),)).job(place)
    assert job is not None and job.site.samples.rows.tolist() == [i for i in range(40) if i not in WRONG]
    nothing = TrainOnParts(START, recipe, use=(int(SamplePart.FIRST),))
    reply = nothing.answer(place)
    assert reply == TrainedOnParts(START, 32, 0.0), "nothing new: the model as it was, what counts so far"
    place.notebook[PARTS] = torch.zeros(40, dtype=torch.int64)
    none = TrainOnParts(START, recipe).answer(place)
    assert none.samples == 0 and none.refusal(nothing, replace(place.facts, samples=40)) is None


def test_one_sample_is_enough_to_train_on() -> None:
    place = sorted_site()
    place.notebook[PARTS] = torch.tensor([int(SamplePart.AGREED)] + [0] * 39)
    reply = TrainOnParts(START, Recipe(epochs=1, lr=0.5)).answer(place)
    assert reply.samples == 1 and not torch.equal(reply.weights["head.weight"], START["head.weight"])


# The server ---------------------------------------------------------------------------------------------------

SIZES = {"a": 10, "b": 40}
SORTED = FedCleanState({"w": torch.zeros(1)}, ("a", "b"))


def scripted(used: dict[str, int]) -> Scripted:
    def answer(name: str, request: Request[Any]) -> Reply:
        if isinstance(request, TrainOnParts):
            return TrainedOnParts({"w": torch.tensor([{"a": 1.0, "b": 5.0}[name]])}, used[name], 1.0)
        return TrainingCount(used[name])

    return Scripted(SIZES, answer, {"w": torch.zeros(1)})


@pytest.mark.parametrize(
    ("used", "assa", "want"),
    [({"a": 9, "b": 3}, True, 2.0), ({"a": 9, "b": 3}, False, 4.2), ({"a": 0, "b": 0}, True, 4.2)],
)
def test_sites_count_by_what_they_use(used: dict[str, int], assa: bool, want: float) -> None:
    """(9 x 1 + 3 x 5) / 12 = 2; by size (10 x 1 + 40 x 5) / 50 = 4.2, also where nobody uses anything."""
    federation = scripted(used)
    own = FedClean(assa=assa, fraction=1.0)
    state = own.train_on_agreed(SORTED, federation)
    assert float(state.weights["w"]) == pytest.approx(want)


@pytest.mark.parametrize(("data", "first", "second"), [("union", {1, 2}, {1, 2, 3, 4}), ("new_only", {2}, {3, 4})])
def test_what_sites_train_on_after_a_correction(data: Any, first: set[int], second: set[int]) -> None:
    federation, own = scripted({"a": 1, "b": 1}), FedClean(stage_data=data, fraction=1.0)
    own.train_after_first(SORTED, federation)
    own.train_after_second(SORTED, federation)
    got = [asked["a"] for asked in federation.asked]
    assert [set(request.use) for request in got if isinstance(request, TrainOnParts)] == [first, second]


def test_the_share_that_is_disputed_is_found_and_none_is_an_alarm() -> None:
    federation, own = scripted({"a": 5, "b": 40}), FedClean()
    own.sort_labels(own.start(federation), federation)
    assert federation.found.level == pytest.approx({"a": 0.5, "b": 0.0}) and federation.found.noisy == ()
    assert federation.recorded["samples_used"] == 45 and not federation.warnings
    quiet = scripted({"a": 10, "b": 40})
    own.sort_labels(own.start(quiet), quiet)
    assert "by heart" in quiet.warnings[0]


def test_a_site_that_missed_the_sorting_takes_no_part() -> None:
    federation, own = scripted({"a": 5, "b": 40}), FedClean(fraction=1.0)
    answer = federation.answer
    federation.answer = lambda name, request: None if name == "a" else answer(name, request)
    state = own.sort_labels(own.start(federation), federation)
    assert state.sorted == ("b",) and federation.found.unmeasured == ("a",)
    federation.answer = answer
    own.train_on_agreed(state, federation)
    own.settle_by_model(state, federation)
    assert [list(asked) for asked in federation.asked[1:]] == [["b"], ["b"]]


def test_the_stages_follow_the_switches_and_an_oracle_is_named() -> None:
    names = [stage.name for stage in FedClean(correct_1=False, rounds_2=0).stages() if stage.rounds]
    assert names == ["local learners", "undisputed labels", "sub-stage II", "after sub-stage II"]
    assert FedClean(cnll="co-teaching", noise_rate=0.4).oracle == "noise rate 0.4 given"
    assert FedClean(noise_rate=0.4).oracle is None, "JointOpt needs none"
