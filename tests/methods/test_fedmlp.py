"""FedMLP's server side: what it asks, how it averages, and that every switch does something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods.fedmlp import (
    TAGS,
    ClassPrototypes,
    FedMLP,
    FedMLPState,
    MakePrototypes,
    TagCounts,
    TagMissing,
)
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import Reply, Request, SiteFacts
from fedsift.protocol.notebook import evidence_of
from fedsift.runtime.in_process import InProcess
from fedsift.testing import Script, Scripted
from fedsift.training.objective import BinaryCrossEntropy, LabelsAndTeacher, MissingTo, PartialClass
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import PLAIN, plain_weights
from tests.promises.federations import contract_study, play

FACTS = [
    SiteFacts("a", 10, model=PLAIN, annotated=(0,)),
    SiteFacts("b", 30, model=PLAIN, annotated=(1,)),
    SiteFacts("c", 60, model=PLAIN, annotated=(0, 1)),
]
"""Three classes; nobody annotates the last."""


def portrait_of(site: str) -> ClassPrototypes:
    """Site a: class 0; b: class 1; c: both, but no positives of class 0."""
    rows = {
        "a": ([[[1.0, 1.0], [2.0, 2.0]]], [[True, True]], [0.5, 0.1]),
        "b": ([[[4.0, 0.0], [0.0, 8.0]]], [[True, True]], [1.0, 0.3]),
        "c": (
            [[[8.0, 8.0], [0.0, 0.0]], [[1.0, 3.0], [0.0, 2.0]]],
            [[True, False], [True, True]],
            [0.2],
        ),
    }[site]
    return ClassPrototypes(torch.tensor(rows[0]), torch.tensor(rows[1]), torch.tensor(rows[2], dtype=torch.float64))


def answering(
    portraits: Callable[[str], ClassPrototypes] = portrait_of, new: int = 1
) -> Callable[[str, Request[Any]], Reply]:
    samples = {fact.name: fact.samples for fact in FACTS}

    def answer(site: str, request: Request[Any]) -> Reply:
        assert isinstance(request, Train)
        parts = tuple(
            TagCounts(new, 3) if isinstance(part, TagMissing) else portraits(site) for part in request.besides
        )
        value = {"a": 1.0, "b": 2.0, "c": 3.0}[site]
        return Trained(plain_weights([[value, 0.0]] * 3), samples[site], value, parts)

    return answer


def script(answer: Script) -> Scripted:
    weights = plain_weights([[0.0, 0.0]] * 3)
    return Scripted(FACTS, answer, weights, classes=3, multilabel=True)


def stub(**options: Any) -> Scripted:
    return script(answering(**options))


def after_first_round(method: FedMLP, **options: Any) -> tuple[FedMLPState, Scripted]:
    federation = stub(**options)
    state = method.start(federation)  # type: ignore[arg-type]
    return method.train_with_tags(state, federation), federation  # type: ignore[arg-type]


def test_models_are_averaged_by_size() -> None:
    state, _ = after_first_round(FedMLP())
    assert state.weights["head.weight"][0, 0].item() == pytest.approx((10 * 1 + 30 * 2 + 60 * 3) / 100)


def test_prototypes_are_averaged_over_the_sites_that_hold_them() -> None:
    state, _ = after_first_round(FedMLP())
    # class 0 absent: a (10) and c (60); present: a alone; class 1: b (30) and c (60)
    np.testing.assert_allclose(state.prototypes[0, 0], (10 * np.ones(2) + 60 * 8 * np.ones(2)) / 70)
    np.testing.assert_allclose(state.prototypes[0, 1], [2, 2])
    np.testing.assert_allclose(state.prototypes[1, 0], [(30 * 4 + 60 * 1) / 90, 60 * 3 / 90])
    assert state.held.tolist() == [[True, True], [True, True], [False, False]]
    equal, _ = after_first_round(FedMLP(prototype_weights="equal"))
    np.testing.assert_allclose(equal.prototypes[0, 0], [4.5, 4.5])
    np.testing.assert_allclose(equal.prototypes[1, 1], [0, 5])


def test_difficulty_is_averaged_over_the_sites_that_miss_a_class() -> None:
    state, federation = after_first_round(FedMLP())
    # a misses 1 and 2 (0.5, 0.1), b misses 0 and 2 (1.0, 0.3), c misses 2 (0.2)
    np.testing.assert_allclose(state.difficulty, [1.0, 0.5, (10 * 0.1 + 30 * 0.3 + 60 * 0.2) / 100])
    assert federation.recorded["difficulty"] == state.difficulty.tolist()


def test_difficulty_over_active_sites() -> None:
    def active(site: str) -> ClassPrototypes:
        shares = {"a": [0.5], "b": [1.0], "c": [0.2, 0.6]}[site]
        return replace(portrait_of(site), difficulty=torch.tensor(shares, dtype=torch.float64))

    state, federation = after_first_round(FedMLP(difficulty_over="active"), portraits=active)
    # nobody annotates class 2: it keeps the 1 that it started with
    np.testing.assert_allclose(state.difficulty, [(10 * 0.5 + 60 * 0.2) / 70, (30 * 1.0 + 60 * 0.6) / 90, 1.0])
    [visit] = federation.requests
    assert isinstance(visit, Train)
    assert isinstance(visit.then[0], MakePrototypes)
    assert visit.then[0].difficulty_over == "active"


def test_what_no_reply_brings_keeps_its_last_value() -> None:
    state, _ = after_first_round(FedMLP())
    alone = script(lambda site, request: answering()(site, request) if site == "c" else None)
    later = FedMLP().train_with_tags(state, alone)
    np.testing.assert_allclose(later.prototypes[0, 1], state.prototypes[0, 1])
    np.testing.assert_allclose(later.prototypes[0, 0], [8, 8])
    np.testing.assert_allclose(later.difficulty, [state.difficulty[0], state.difficulty[1], 0.2])


def test_only_the_last_round_of_stage_1_asks_for_portraits() -> None:
    method = FedMLP(rounds=3, warm_up=2)
    federation = stub()
    state = method.start(federation)  # type: ignore[arg-type]
    for index in range(2):
        federation.round = Round("warm up", index, index)
        state = method.train_on_annotated(state, federation)
    first, last = federation.requests
    assert isinstance(first, Train)
    assert isinstance(last, Train)
    assert first.besides == ()
    assert [type(part) for part in last.besides] == [MakePrototypes]
    assert first.recipe.views == 2
    assert state.held[0].tolist() == [True, True]


def test_views_switch() -> None:
    federation = stub()
    method = FedMLP(views=1)
    method.train_on_annotated(method.start(federation), federation)
    [visit] = federation.requests
    assert isinstance(visit, Train)
    assert visit.recipe.views == 1


def second_visit(**switches: Any) -> Train:
    """The visit of a stage-2 round after one that brought portraits."""
    method = FedMLP(**switches)
    state, federation = after_first_round(method)
    method.train_with_tags(state, federation)
    visit = federation.requests[-1]
    assert isinstance(visit, Train)
    return visit


def test_a_second_stage_visit_tags_trains_and_portrays_in_one() -> None:
    visit = second_visit()
    assert [type(part) for part in visit.before] == [TagMissing]
    assert [type(part) for part in visit.then] == [MakePrototypes]
    assert visit.recipe.views == 1
    [tagging] = visit.before
    assert isinstance(tagging, TagMissing)
    assert (tagging.t0, tagging.t1, tagging.min_select) == (0.005, 0.01, 0)
    np.testing.assert_allclose(tagging.difficulty, [1.0, 0.5, 0.22])
    assert tagging.prototypes.shape == (3, 2, 2)


def test_switch_mld() -> None:
    visit = second_visit(mld=False)
    assert visit.besides == ()


def test_switch_st() -> None:
    [tagging] = second_visit(st=False).before
    assert isinstance(tagging, TagMissing)
    assert tagging.difficulty.tolist() == [1.0, 1.0, 1.0]


def test_switches_of_the_losses() -> None:
    def loss(**switches: Any) -> Any:
        return second_visit(**switches).recipe.objective.terms

    assert loss() == ((1.0, LabelsAndTeacher(1.0, "samples", "joint")),)
    assert loss(wpc=False) == ((1.0, LabelsAndTeacher(0.0, "samples", "joint")),)
    assert loss(cr=False) == ((1.0, PartialClass(1.0, "samples", "known")),)
    assert loss(cr=False, wpc=False) == ((1.0, BinaryCrossEntropy()),)
    assert loss(tau=0.0, prior_over="known", cr_norm="separate") == ((1.0, LabelsAndTeacher(0.0, "known", "separate")),)
    assert loss(cr=False, wpc_norm="classes") == ((1.0, PartialClass(1.0, "samples", "classes")),)
    assert FedMLP().first_loss().terms == ((1.0, PartialClass()),)
    assert FedMLP(wpc=False).first_loss().terms == ((1.0, BinaryCrossEntropy()),)
    assert FedMLP(stage1_consistency=True).first_loss().terms == (
        (1.0, PartialClass()),
        (1.0, MissingTo()),
    )


def test_the_other_parameters_reach_the_sites() -> None:
    recipe = Recipe(augment=Augment(flip=True))
    visit = second_visit(
        t0=0.1, t1=0.2, min_select=3, low=0.1, high=0.9, least_members=4, statistics_on="train", local=recipe
    )
    tagging, portray = visit.besides
    assert isinstance(tagging, TagMissing)
    assert isinstance(portray, MakePrototypes)
    assert (tagging.t0, tagging.t1, tagging.min_select, tagging.augment) == (0.1, 0.2, 3, recipe.augment)
    assert (portray.low, portray.high, portray.least_members, portray.augment) == (
        0.1,
        0.9,
        4,
        recipe.augment,
    )
    plain_tagging, _ = second_visit(local=recipe).besides
    assert isinstance(plain_tagging, TagMissing)
    assert plain_tagging.augment is None


def test_fraction() -> None:
    federation = stub()
    method = FedMLP(fraction=0.34)
    state = method.train_with_tags(method.start(federation), federation)
    [chosen] = federation.choose(0.34)
    assert federation.asked_of(Train) == [chosen]
    assert state.weights["head.weight"][0, 0].item() == {"a": 1.0, "b": 2.0, "c": 3.0}[chosen]


def test_a_stall_is_told_and_a_class_without_annotator_too() -> None:
    _, federation = after_first_round(FedMLP(), new=0)
    assert any("min_select" in text for text in federation.warnings)
    assert any("no site annotates 'c2'" in text for text in federation.warnings)
    assert len(federation.warnings) == 2
    _, moving = after_first_round(FedMLP(), new=1)
    assert not any("min_select" in text for text in moving.warnings)
    assert moving.recorded["tags_new"] == 3
    assert moving.recorded["tags_left"] == 9


@pytest.mark.parametrize(
    "wrong", [{"warm_up": 501}, {"warm_up": -1}, {"t0": 1.5}, {"low": -0.1}, {"views": 0}, {"min_select": -1}]
)
def test_impossible_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedMLP(**wrong)


def test_a_network_without_a_head_is_refused() -> None:
    federation = stub()
    federation.weights = {"fc.weight": torch.zeros(3, 2)}
    with pytest.raises(ConfigError, match="'head'"):
        FedMLP().start(federation)  # type: ignore[arg-type]


# On real digits with four findings, one of them annotated at a site


class Kept(InProcess):
    """Remembers the last federation made, to look into the notebooks after a run."""

    last: InProcess

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Kept.last = self


def test_tags_on_real_digits_are_right(tmp_path: Path) -> None:
    """Each site annotates one of four findings; about half of all entries are positive."""
    torch.set_num_threads(1)
    study = contract_study("fedmlp", tmp_path, noise={"name": "class-missing", "missing": 3})
    local = replace(study.train, lr=0.1, epochs=4, momentum=0.9)
    method = FedMLP(rounds=5, warm_up=4, t0=0.05, t1=0.05, local=local)
    play(replace(study, method=method), tmp_path, Kept)
    federation, right = Kept.last, []
    for site in federation.sites:
        tags = federation.notebooks[site][TAGS].numpy()
        truth, annotated = federation.federated.truth, federation.facts[site].annotated
        assert truth is not None
        assert annotated is not None
        assert (tags[:, annotated] == -1).all()
        assert (tags == 1).any()
        assert (tags == 0).any()
        right.append((tags[tags >= 0] == truth.clean[site][tags >= 0]).mean())
        labels_to_train_on = evidence_of(federation.notebooks[site]).labels.numpy()  # type: ignore[union-attr]
        assert (labels_to_train_on[:, annotated] == federation.federated.given[site][:, annotated]).all()
    assert np.mean(right) > 0.9
