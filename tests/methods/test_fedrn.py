"""FedRN: profiles, votes, the clean part that is trained on, and who sees whose model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.formulas.losses import over_prior
from fedsift.methods.divide_mix import clean_votes
from fedsift.methods.fedrn import (
    DescribeModel,
    FedRN,
    FedRNState,
    ModelProfile,
    NeighbourModel,
    TrainAmongNeighbours,
    TrainNeighbourModel,
    noise_picture,
    tuned_head,
)
from fedsift.protocol.disclosure import declared_replies, disclosure_rows
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.recipe import Recipe
from tests.methods.by_hand import plain_weights, site

SAMPLES = [[2.0, 0.0], [3.0, 0.5], [0.0, 2.0], [0.5, 3.0], [2.5, 0.2], [0.1, 2.2]]
GIVEN = [0, 0, 1, 1, 1, 1]  # the fifth is wrong
KNOWS = plain_weights([[3.0, 0.0], [0.0, 3.0]])
WRONG = plain_weights([[0.0, 3.0], [3.0, 0.0]])


# At a site -------------------------------------------------------------------------------------------------


def test_a_profile_by_hand() -> None:
    here, there = site(SAMPLES, GIVEN, classes=2), site(SAMPLES[:2], [0, 1], classes=2, name="there")
    told = DescribeModel(KNOWS, 2).answer(here)
    assert told.expertise == pytest.approx(5 / 6)
    picture = noise_picture(here)
    assert torch.equal(picture, noise_picture(there))
    expected = torch.softmax(3 * picture[0], -1)  # the network's weights are 3 on the diagonal
    assert told.output.tolist() == pytest.approx(expected.tolist())
    assert told.refusal(DescribeModel(None, 2), here.facts) is None
    assert "shape (2,), asked were (5,)" in (told.refusal(DescribeModel(None, 5), here.facts) or "")


def test_votes_flag_what_the_model_disowns() -> None:
    logits = torch.tensor(SAMPLES) * 3
    labels = torch.tensor(GIVEN)
    assert (clean_votes(logits, labels) > 0.5).tolist() == [True] * 4 + [False, True]
    # right labels alone, of unequal difficulty: the plain mixture doubts the harder half, the guarded one nobody
    easy, hard = [[9.0, 0.0]] * 6, [[0.4, 0.0], [0.5, 0.0]]
    sure = torch.tensor(easy + hard)
    right = torch.zeros(8, dtype=torch.int64)
    assert (clean_votes(sure, right) > 0.5).all()
    plain = clean_votes(sure, right, guarded=False, balanced=False)
    assert (plain > 0.5).tolist() == [True] * 6 + [False] * 2


def test_a_rare_class_is_not_wrong_for_being_rare() -> None:
    """Eighteen samples of class 0, predicted with 0.9, and two of class 1, predicted with 0.3 where 0.1 is their share:
    right labels all. z - log pi is log(0.3 / 0.1) against log(0.7 / 0.9), so that the model would give class 1 itself;
    a mixture over plain losses drops both, a class that nobody holds is left out of the comparison."""
    p = torch.tensor([[0.9, 0.06, 0.04]] * 18 + [[0.66, 0.3, 0.04]] * 2)
    labels = torch.tensor([0] * 18 + [1] * 2)
    assert (clean_votes(p.log(), labels, balanced=False) > 0.5).tolist() == [True] * 18 + [False] * 2
    assert clean_votes(p.log(), labels).tolist() == [1.0] * 20
    over = over_prior(p.log().double(), torch.tensor([18.0, 2.0, 0.0]).double())
    assert over[-1].tolist() == pytest.approx([np.log(0.66 / 0.9), np.log(3.0), -np.inf])


def test_of_one_class_alone_nothing_is_doubted() -> None:
    assert (
        clean_votes(torch.tensor([[3.0, 0.0]] * 4 + [[0.0, 3.0]]), torch.zeros(5).long(), False).tolist() == [1.0] * 5
    )
    assert clean_votes(torch.tensor([[0.0, 3.0]]), torch.tensor([0])).tolist() == [1.0]  # nor of one sample


def test_samples_that_are_all_alike_are_all_clean() -> None:
    assert clean_votes(torch.zeros(4, 2), torch.tensor([1, 1, 1, 1]), guarded=False).tolist() == [1.0] * 4


def test_a_visit_trains_on_what_looks_clean() -> None:
    here = site(SAMPLES, GIVEN, classes=2)
    request = TrainAmongNeighbours(KNOWS, Recipe(lr=0.01, batch_size=2), neighbours=(KNOWS,), scores=(0.5, 0.5))
    reply = request.answer(here)
    assert isinstance(reply, NeighbourModel)
    assert (reply.samples, reply.clean) == (6, 5)
    assert here.evidence.flagged is not None
    assert here.evidence.flagged.tolist() == [False] * 4 + [True, False]
    clean = [k for k in range(6) if k != 4]
    alone = site([SAMPLES[k] for k in clean], [GIVEN[k] for k in clean], classes=2)
    plain = TrainNeighbourModel(KNOWS, Recipe(lr=0.01, batch_size=2)).answer(alone)
    assert torch.equal(plain.weights["head.weight"], reply.weights["head.weight"])
    assert (plain.clean, reply.refusal(request, here.facts)) == (5, None)  # type: ignore[attr-defined]


def test_scores_decide_between_voices() -> None:
    """The received model has everything wrong; a neighbour that knows better outweighs it, or not."""
    for share, flagged in ((0.9, [False] * 4 + [True, False]), (0.1, None)):
        here = site(SAMPLES, GIVEN, classes=2)
        request = TrainAmongNeighbours(
            WRONG, Recipe(lr=1e-6), neighbours=(KNOWS,), scores=(1 - share, share), guarded=False
        )
        request.answer(here)
        assert here.evidence.flagged is not None
        assert (here.evidence.flagged.tolist() == flagged) == (flagged is not None)


def test_where_nothing_looks_clean_everything_is_trained_on() -> None:
    here = site(SAMPLES, GIVEN, classes=2)
    reply = TrainAmongNeighbours(KNOWS, Recipe(lr=0.01), least=1.0).answer(here)
    assert isinstance(reply, NeighbourModel)
    assert reply.clean == 6
    assert here.evidence.flagged is not None
    assert bool(here.evidence.flagged.all())


def test_scores_that_are_all_zero_count_alike() -> None:
    assert TrainAmongNeighbours(KNOWS, Recipe(), scores=(0.0, 0.0)).shares.tolist() == [0.5, 0.5]


def test_a_head_is_tuned_by_hand() -> None:
    """One step on one sample from zero: softmax is (1/2, 1/2), so W moves by lr (onehot - 1/2) x^T."""
    head = torch.zeros(2, 2), torch.zeros(2)
    weight, bias = tuned_head(
        torch.tensor([[2.0, 4.0]]), torch.tensor([0]), head, Recipe(lr=0.5), torch.Generator().manual_seed(0)
    )
    assert weight.tolist() == [[0.5, 1.0], [-0.5, -1.0]]
    assert bias.tolist() == [0.25, -0.25]
    assert not head[0].any()
    same, _ = tuned_head(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), head, Recipe(), torch.Generator())
    assert torch.equal(same, head[0])  # nothing is trusted: nothing is tuned


# At the server ---------------------------------------------------------------------------------------------


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, TrainNeighbourModel)
    number = int(name)
    profile = ModelProfile(number / 10, torch.tensor([1.0, number / 2]))
    return NeighbourModel({"w": torch.tensor([float(number)])}, 10, 0.5, (profile,), 10 - number)


def four() -> Scripted:
    return Scripted({str(k): 10 for k in range(1, 5)}, answer, {"w": torch.zeros(1)})


def test_the_warm_up_fills_the_book_and_neighbours_are_the_best() -> None:
    method, federation = FedRN(rounds=10, warm_up=2), four()
    state = method.train_plainly(method.start(federation), federation)  # type: ignore[arg-type]
    assert float(state.weights["w"]) == 2.5
    assert list(state.models) == ["1", "2", "3", "4"]
    assert state.expertise["3"] == pytest.approx(0.3)
    names, scores = method.neighbours_of("2", state)
    # cosines of (1, 1) with (1, 1/2), (1, 3/2), (1, 2): 0.9487, 0.9806, 0.9487, scaled to 0, 0.6216, 0
    assert names == ["3", "4"]
    assert scores == pytest.approx((0.6 / 3 + 0.4, 0.4 + 0.4 * 0.6216, 0.6), abs=1e-4)
    after = method.train_among_neighbours(state, federation.at(1))
    asked = federation.asked[-1]["2"]
    assert isinstance(asked, TrainAmongNeighbours)
    assert [float(own["w"]) for own in asked.neighbours] == [3.0, 4.0]
    assert federation.recorded["neighbours"]["2"] == ["3", "4"]
    assert after.level == pytest.approx({"1": 0.1, "2": 0.2, "3": 0.3, "4": 0.4})
    assert federation.found.level == after.level


def test_only_visited_sites_are_shown() -> None:
    """In the release a client that was never visited shows a random network."""
    method = FedRN(neighbours=3)
    state = FedRNState({"w": torch.zeros(1)}, {"1": {"w": torch.ones(1)}}, {"1": 0.5}, {"1": [1.0, 0.0]})
    assert method.neighbours_of("2", state) == ([], (1.0,))
    names, scores = method.neighbours_of("1", state)
    assert (names, scores) == ([], (1.0,))


def test_the_table_says_plainly_that_others_see_the_model() -> None:
    rows = disclosure_rows(declared_replies(FedRN()))
    [words] = [what for reply, name, what in rows if (reply, name) == ("NeighbourModel", "weights")]
    assert "OTHER SITES" in words
    assert not any(reply == "Trained" for reply, _, _ in rows)
    assert "each other's models" in FedRN.summary


def test_rounds_of_the_warm_up() -> None:
    assert [FedRN(rounds=t).t_w for t in (500, 100, 30, 6)] == [100, 20, 10, 3]
    with pytest.raises(ConfigError, match="must not exceed"):
        FedRN(rounds=3, warm_up=4)


def test_the_mean_vote_is_weighted() -> None:
    request = TrainAmongNeighbours(KNOWS, Recipe(), scores=(1.0, 3.0))
    assert np.average([[1.0], [0.0]], axis=0, weights=request.shares).tolist() == [0.25]
