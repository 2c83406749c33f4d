"""Leakage method by method: every field that leaves is looked at, by sites that answer as deployed ones, and none tells
more than the page says."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.test_site_data import write_site

from benchmarks.leakage.by_method import AGAIN, BLIND, MARGIN, figure, grown
from benchmarks.leakage.deployed import Left, told
from benchmarks.leakage.measure import as_shares, known
from benchmarks.leakage.methods import POLICIES, SEEDS, measured, policy_table, read_results
from benchmarks.leakage.replies import BY_CLASS, PREDICTED, PUBLIC, UNREAD, from_counts, lengths
from fedsift.label_audit.messages import LabelsCounted
from fedsift.methods._base import methods
from fedsift.models.factory import initial_weights
from fedsift.protocol.disclosure import declared_replies
from fedsift.protocol.messages import Reply, RequestEnvelope, RequestMoment, Weights
from fedsift.training.own_models import OwnEvaluated
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Indicators, Train


def replies_of_all() -> set[type[Reply]]:
    every = (declared_replies(methods.get(name)()).values() for name in methods.names())
    return {cls for stages in every for replies in stages for cls in replies}


def arrays_in(cls: type[Reply]) -> list[str]:
    """Fields with arrays that are no update, and updates that are no models."""
    hints = typing.get_type_hints(cls)
    found = []
    for entry in dataclasses.fields(cls):
        words = str(hints[entry.name])
        model = entry.metadata.get("update") and str(Weights) in words
        if "Tensor" in words and not model:
            found.append(f"{cls.__name__}.{entry.name}")
    return found


def test_every_array_that_leaves_is_attacked_or_named() -> None:
    fields = {name for cls in replies_of_all() for name in arrays_in(cls)}
    looked_at = {*BY_CLASS, *PUBLIC, PREDICTED, *UNREAD}
    assert sorted(fields - looked_at) == []
    assert sorted(looked_at - fields) == []
    assert set(UNREAD).isdisjoint({*BY_CLASS, *PUBLIC, PREDICTED})


# The attacks, by hand ------------------------------------------------------------------------------------------------


def test_what_is_lumped_is_spread_over_what_is_hidden() -> None:
    guess = from_counts(np.array([6.0, -1.0, -1.0]), np.array([False, True, True]), 4.0)
    np.testing.assert_allclose(guess, [0.6, 0.2, 0.2])
    nothing = from_counts(np.zeros(4), np.ones(4, bool), 0.0)
    np.testing.assert_allclose(nothing, [0.25] * 4)
    # equal shares are what anybody knows; the truth is everything
    secret = np.array([0.5, 0.5, 0.0, 0.0])
    assert (known(nothing, secret), known(secret, secret)) == (0.0, 1.0)


def test_counts_of_evaluation_and_audit_tell_the_mix() -> None:
    one = torch.tensor([6, 0, 2])
    evaluated = OwnEvaluated(one, one, torch.tensor([0, 0]), 0.1, 8, 0)
    np.testing.assert_allclose(BY_CLASS["OwnEvaluated.total"](evaluated), [0.75, 0.0, 0.25])
    sides = torch.tensor([[2, 6], [6, 2]])  # without and with each finding
    several = OwnEvaluated(sides, sides, torch.tensor([0, 0]), 0.1, 8, 0)
    np.testing.assert_allclose(BY_CLASS["OwnEvaluated.total"](several), [0.75, 0.25])
    lumped = LabelsCounted(torch.tensor([[[12, -1, -1]]]), torch.tensor([[12]]), torch.tensor([0]), 24)
    np.testing.assert_allclose(BY_CLASS["LabelsCounted.cells"](lumped), [0.5, 0.25, 0.25])


def test_losses_of_classes_that_are_withheld_say_that_they_are_rare() -> None:
    told_of = Indicators(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([True, False, True]), 20)
    np.testing.assert_allclose(BY_CLASS["Indicators.values"](told_of), [0.5, 0.0, 0.5])


# A deployed site -----------------------------------------------------------------------------------------------------


def left_under(folder: Path, policy: dict[str, Any]) -> Left:
    """One training visit to a site whose own process applies the policy."""
    folder.mkdir()
    opened = {"requests": ["Train"], "fields": ["Trained.weights", "Trained.samples", "Trained.loss"]}
    path = write_site(folder, policy={**opened, **policy, "min_count": 0})
    request = Train(initial_weights("mlp", (1, 2, 2), 3, seed=1), Recipe(epochs=3, lr=1.0))
    envelope = RequestEnvelope("leakage", "north", RequestMoment(1, "train", 0, 0), "", request)
    answer = told(path, envelope, "mlp")
    assert answer.failure == ""
    return Left("north", envelope.moment, request, answer.reply)


def test_the_sites_own_policy_stands_before_what_is_attacked(tmp_path: Path) -> None:
    [free] = lengths([left_under(tmp_path / "free", {})])
    clip = free / 2
    [clipped] = lengths([left_under(tmp_path / "clipped", {"clip": clip})])
    [noisy] = lengths([left_under(tmp_path / "noisy", {"clip": clip, "noise": 1.0})])
    assert clipped == pytest.approx(clip, rel=1e-4)
    assert noisy > 10 * clip  # sqrt(d) times it, of thousands of weights


def test_each_policy_adds_to_the_one_before_it() -> None:
    tables = [set(policy_table(policy, 1.0)) for policy in POLICIES]
    assert tables[0] == set()
    assert all(one < two for one, two in itertools.pairwise(tables))


# The results ---------------------------------------------------------------------------------------------------------


def test_every_method_was_measured_with_every_policy() -> None:
    found = read_results()
    assert set(found) == set(methods.names())
    for name, rows in found.items():
        assert set(rows) == set(POLICIES), name
        for policy in POLICIES:
            assert len(rows[policy]) == len(SEEDS), (name, policy)
            wanted = [set(policy_table(policy, 1.0))] * len(SEEDS)
            assert [set(row["policy"]) for row in rows[policy]] == wanted, (name, policy)
            assert all(row["replies"] > 0 for row in rows[policy]), (name, policy)


def test_only_declared_fields_left() -> None:
    """What was seen is within what is declared: the table of what is attacked rests on it."""
    for name, rows in read_results().items():
        replies = [cls for each in declared_replies(methods.get(name)()).values() for cls in each]
        declared = {f"{cls.__name__}.{entry.name}" for cls in replies for entry in dataclasses.fields(cls)}
        seen = {field for policy in rows.values() for row in policy for field in row["fields"]}
        assert seen <= declared, name


def row(labels: float, member: float) -> dict[str, Any]:
    return {"labels": {"Trained.weights, all": labels}, "member": {"Trained.weights, all": member}}


def test_a_figure_beyond_its_margin_is_named() -> None:
    kept = {policy: row(0.4, 0.6) for policy in POLICIES}
    within = {policy: row(0.4 + 0.9 * MARGIN["labels"], 0.6 + 0.9 * MARGIN["member"]) for policy in POLICIES}
    assert grown(within, kept) == []
    beyond = {**kept, "clipped": row(0.4 + 1.1 * MARGIN["labels"], 0.6)}
    [words] = grown(beyond, kept)
    assert words.startswith("clipped, labels: 0.510 by Trained.weights, all, kept 0.400")
    # a wrong guess that is less wrong tells nothing, and a field that was not there before does
    assert grown({policy: row(0.05, 0.5) for policy in POLICIES}, {policy: row(-2.0, 0.4) for policy in POLICIES}) == []
    none = {policy: {"labels": {}, "member": {}} for policy in POLICIES}
    assert len(grown(kept, none)) == 2 * len(POLICIES)
    assert grown(none, kept) == []


def test_the_best_attack_over_the_seeds_counts() -> None:
    rows = [{"labels": {"a": 0.1, "b": 0.5}}, {"labels": {"a": 0.9, "b": 0.3}}]
    best = figure(rows, "labels")
    assert best is not None and best[0] == "a" and best[1] == pytest.approx(0.5)
    assert figure([{"labels": {}}], "labels") is None
    assert BLIND["labels"] == known(as_shares(np.zeros(2)), np.array([1.0, 0.0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", AGAIN)
def test_no_method_tells_more_than_the_page_says(name: str) -> None:
    kept = {policy: rows[0] for policy, rows in read_results()[name].items()}
    assert grown(measured(name, SEEDS[0]), kept) == []
