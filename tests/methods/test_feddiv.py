"""FedDiv: what a site makes of the filter, sample by sample, and what the server makes of the sites' filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsift.methods.feddiv import (
    CONSISTENT,
    USUAL,
    VISITS,
    FedDiv,
    FedDivState,
    FilterLabels,
    FilterRules,
    FitFilter,
    FittedFilter,
    SuspectCount,
    TrainBehindFilter,
    TrainedBehindFilter,
    sift,
)
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import ClassBalance, CrossEntropy, Objective, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import plain_weights, site

START = plain_weights([[3.0, 0.0], [0.0, 3.0]])
"""Says the larger coordinate, with p = 0.95 for (1, 0): a loss of 0.049 for its own label, 3.05 for the other."""
FILTER = torch.tensor([[0.05, 3.0], [0.1, 0.1], [0.7, 0.3]], dtype=torch.float64)
ROWS = [[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 10
GIVEN = [0] * 7 + [1] * 3 + [1] * 10
"""Samples 7, 8 and 9 are labelled wrong."""


def here(rows: Any = ROWS, given: Any = GIVEN, **more: Any) -> Any:
    return site(rows, given, classes=2, **more)


def visit(epochs: int = 2, mixture: Tensor = FILTER, **rules: Any) -> TrainBehindFilter:
    recipe = Recipe(epochs=epochs, lr=1e-6, objective=as_objective(CrossEntropy()))
    return TrainBehindFilter(START, recipe, filter=mixture, rules=FilterRules(**rules))


def trained_on(request: TrainBehindFilter, place: Any) -> tuple[list[int], list[int]]:
    """Positions and labels of the first part of a visit."""
    job = request.job(place)
    return ([], []) if job is None else (job.site.samples.rows.tolist(), job.site.given.tolist())


def test_wrong_labels_are_found_and_clear_ones_relabelled() -> None:
    place = here()
    rows, labels = trained_on(visit(), place)
    assert rows == list(range(20)) and labels == [0] * 10 + [1] * 10
    found = place.evidence
    assert found.flagged.nonzero().flatten().tolist() == [7, 8, 9]
    assert found.proposed.tolist() == [0] * 10 + [1] * 10
    assert found.labels is None, "every visit relabels afresh"
    assert (found.suspicion[7:10] > 0.99).all() and (found.suspicion[:7] < 0.01).all()


def test_a_label_that_the_model_itself_would_give_is_not_doubted() -> None:
    """A filter for which a loss of 0.05 is noisy: only the model's own word stands against it."""
    strict = torch.tensor([[0.001, 0.05], [1e-6, 0.1], [0.5, 0.5]], dtype=torch.float64)
    place = here()
    sift(place, torch.tensor(ROWS) @ START["head.weight"].T, strict, FilterRules())
    assert place.evidence.flagged.nonzero().flatten().tolist() == [7, 8, 9]
    sift(place, torch.tensor(ROWS) @ START["head.weight"].T, strict, FilterRules(guarded=False))
    assert bool(place.evidence.flagged.all())


def test_an_unsure_answer_is_no_label() -> None:
    place = here()
    assert trained_on(visit(zeta=0.96), place)[0] == [*range(7), *range(10, 20)]
    assert place.evidence.flagged.sum() == 3
    assert place.evidence.proposed.tolist() == GIVEN, "suspect, no proposal"
    assert trained_on(visit(relabel=False), here())[0] == [*range(7), *range(10, 20)]


def test_a_clean_site_trains_on_everything_as_given() -> None:
    few = [0] * 9 + [1] + [1] * 10
    place = here(given=few)
    assert trained_on(visit(), place) == (list(range(20)), few)
    assert place.evidence.flagged.sum() == 1, "a tenth is not above a tenth"


def test_consistency_drops_what_the_site_says_of_everything() -> None:
    """p_hat of class 1 at 1e-4 gives it a bonus of 4.6, more than the margin of 3: all are class 1 then."""
    place = here()
    place.notebook[USUAL] = torch.tensor([1 - 1e-4, 1e-4], dtype=torch.float64)
    rows, labels = trained_on(visit(), place)
    assert rows == list(range(10, 20)) and labels == [1] * 10
    assert trained_on(visit(pcs=False), place)[0] == list(range(20))
    assert trained_on(visit(xi=0.3), place)[0] == list(range(20))


def test_a_kept_sample_keeps_its_given_label() -> None:
    """Sample 0 is clean by a filter that believes large losses, though the model says otherwise."""
    wide = torch.tensor([[0.05, 9.0], [4.0, 0.1], [0.7, 0.3]], dtype=torch.float64)
    rows, labels = trained_on(visit(mixture=wide, noisy_above=0.0), here())
    assert rows == list(range(20)) and labels == GIVEN


def test_once_a_visit_the_last_visit_s_labels_count() -> None:
    place = here()
    request = visit(pcs_when="visit")
    assert trained_on(request, place)[0] == list(range(20)), "the first visit keeps all"
    place.notebook[CONSISTENT] = torch.ones(20, dtype=torch.int64)
    assert trained_on(request, place)[0] == list(range(10, 20))


def test_relabelling_may_wait_for_some_visits() -> None:
    place = here()
    request = visit(pcs_after=1)
    assert trained_on(request, place)[0] == [*range(7), *range(10, 20)]
    request.answer(place)
    assert place.notebook[VISITS] == 1
    assert trained_on(request, place)[0] == list(range(20))


def test_samples_are_chosen_before_every_epoch() -> None:
    """Two epochs are two parts; the second looks at the network that the first one left."""
    place, request = here(), visit()
    job = request.job(place)
    assert job is not None and job.recipe.epochs == 1

    class Stub:
        weights = plain_weights([[0.0, 0.0], [9.0, 9.0]])

    again = request.further(place, Stub())  # type: ignore[arg-type]
    assert again is not None and again.site.samples.rows.tolist() == list(range(10, 20))
    assert again.purpose != job.purpose
    assert request.further(place, Stub()) is None  # type: ignore[arg-type]
    clean_site = visit().job(here(given=[0] * 10 + [1] * 10))
    assert clean_site is not None and clean_site.recipe.epochs == 2


@pytest.mark.parametrize("given", [[1] * 10 + [0] * 10, [0] * 10 + [1] * 10])
def test_all_flagged_and_nothing_flagged(given: list[int]) -> None:
    place = here(given=given)
    reply = visit(relabel=False).answer(place)
    wrong = given[0] == 1
    assert torch.equal(reply.weights["head.weight"], START["head.weight"]) == wrong
    assert reply.samples == 20 and bool(place.evidence.flagged.all()) == wrong
    assert (reply.loss == 0.0) == wrong


def test_the_reply_carries_the_site_s_filter_and_the_notebook_its_usual_prediction() -> None:
    place = here()
    reply = visit().answer(place)
    assert isinstance(reply, TrainedBehindFilter)
    assert reply.refusal(visit(), replace(place.facts, samples=20)) is None
    assert float(reply.filter[2, 1]) == pytest.approx(3 / 20, abs=1e-3)
    assert float(reply.filter[0, 1]) == 3.0, "three members are nobody"
    np.testing.assert_allclose(place.notebook[USUAL].numpy(), [0.5, 0.5], atol=1e-6)
    bad = replace(reply, filter=torch.zeros(2, 2))
    assert "(3, 2)" in str(bad.refusal(visit(), replace(place.facts, samples=20)))


def test_constant_losses_and_one_sample_call_everything_clean() -> None:
    for rows, given in (([[1.0, 0.0]] * 4, [1] * 4), ([[1.0, 0.0]], [1])):
        place = here(rows, given)
        own = FitFilter(START).answer(place)
        found = sift(place, torch.tensor(rows) @ START["head.weight"].T, own.filter, FilterRules())
        assert found.noise == 0.0
        reply = visit(mixture=own.filter).answer(place)
        assert bool(torch.isfinite(reply.filter).all())


def test_a_class_that_the_site_lacks_wins_nothing() -> None:
    place = here([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 2, [0] * 8)
    place.notebook[USUAL] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    rows, _ = trained_on(visit(phat_over="held", noisy_above=0.0, zeta=0.5), place)
    assert rows == list(range(8)), "the model's own label of the last two survives, nothing else turns into class 1"
    assert trained_on(visit(noisy_above=0.0, zeta=0.5), place)[0] == [6, 7], "with the floor alone class 1 wins all"


def test_the_list_of_suspects_says_how_many() -> None:
    place = here()
    assert FilterLabels(START, FILTER).answer(place) == SuspectCount(3)


# The server ---------------------------------------------------------------------------------------------------


def table(low: float, high: float, noisy: float) -> Tensor:
    return torch.tensor([[low, high], [0.1, 0.2], [1 - noisy, noisy]], dtype=torch.float64)


OWN = {"a": table(0.1, 2.0, 0.05), "b": table(0.3, 3.0, 0.4), "c": table(0.2, 4.0, 0.6)}
SIZES = {"a": 10, "b": 30, "c": 60}


def answer(name: str, request: Request[Any]) -> Reply:
    if isinstance(request, FitFilter):
        return FittedFilter(OWN[name], SIZES[name])
    if isinstance(request, FilterLabels):
        return SuspectCount(SIZES[name] // 10 if name == "a" else SIZES[name] // 2)
    if isinstance(request, TrainBehindFilter):
        return TrainedBehindFilter({"w": torch.ones(1)}, SIZES[name], 1.0, filter=2 * OWN[name])
    assert isinstance(request, Train)
    return Trained({"w": request.weights["w"] + 1}, SIZES[name], 1.0)


def scripted() -> Scripted:
    return Scripted(SIZES, answer, {"w": torch.zeros(1)})


def test_the_warm_up_visits_every_site_once_in_each_iteration() -> None:
    federation, method = scripted(), FedDiv(iterations=2, visit_fraction=1 / 3)
    state = method.start(federation)
    for index in range(6):
        state = method.warm_up(state, federation.at(index))
    visits = [list(asked) for asked in federation.asked]
    assert sorted(visits[:3]) == sorted(visits[3:]) == [["a"], ["b"], ["c"]]
    assert float(state.weights["w"]) == 6.0, "each goes on from the last one's model"


def test_the_first_filter_is_the_mean_of_the_sites_own() -> None:
    federation, method = scripted(), FedDiv()
    state = method.fit_first_filter(FedDivState({"w": torch.zeros(1)}), federation)
    torch.testing.assert_close(state.filter, 0.1 * OWN["a"] + 0.3 * OWN["b"] + 0.6 * OWN["c"])
    assert federation.found.noisy == ("b", "c")
    assert federation.found.level == pytest.approx({"a": 0.05, "b": 0.4, "c": 0.6})


@pytest.mark.parametrize(("kind", "mean"), [("federated", 2.0), ("round_only", 2.0), ("local", 2.0)])
def test_whose_filter_a_site_gets(kind: Any, mean: float) -> None:
    federation, method = scripted(), FedDiv(filter=kind, fraction=0.34)
    state = method.fit_first_filter(FedDivState({"w": torch.zeros(1)}), federation)
    state = method.train_filtered(state, federation.at(0))
    [(name, request)] = federation.asked[-1].items()
    assert isinstance(request, TrainBehindFilter)
    before = 0.1 * OWN["a"] + 0.3 * OWN["b"] + 0.6 * OWN["c"]
    torch.testing.assert_close(request.filter, OWN[name] if kind == "local" else before)
    new = {**OWN, name: 2 * OWN[name]}
    after = sum(SIZES[site] / 100 * own for site, own in new.items())
    after = 2 * OWN[name] if kind == "round_only" else after
    shares = after[2] / after[2].sum()
    torch.testing.assert_close(state.filter, torch.stack([after[0], after[1], shares]))


def test_delta_hat_names_the_noisy_sites_at_the_end() -> None:
    federation = scripted()
    FedDiv().list_suspects(FedDivState({"w": torch.zeros(1)}), federation)
    assert federation.found.noisy == ("b", "c")
    assert federation.found.level == pytest.approx({"a": 0.1, "b": 0.5, "c": 0.5})


def test_the_loss_and_the_forms() -> None:
    assert FedDiv().loss() == Objective(((1.0, CrossEntropy()), (1.0, ClassBalance())))
    assert FedDiv(**FedDiv.forms["iid"]).loss() == as_objective(CrossEntropy())
    released = FedDiv(**FedDiv.forms["released"]).rules
    assert (released.xi, released.momentum, released.pcs_after, released.scale) == (
        0.2,
        0.5,
        5,
        "site_minmax",
    )
