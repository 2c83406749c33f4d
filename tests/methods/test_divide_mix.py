"""DivideMix: who is believed, which labels are made, what a mixed batch costs; all by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import DataError
from fedsift.detection.mixtures import clean_probability
from fedsift.methods._two_networks import TrainedPair, TrainPair
from fedsift.methods.divide_mix import GUESSES, LABELLED, DividedTerm, DivideMix, TrainDivided, made_labels
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import PerSample, View
from fedsift.training.recipe import Recipe
from tests.methods.by_hand import plain_weights, site


class TestWhoIsBelieved:
    def test_two_groups(self) -> None:
        w = clean_probability(np.r_[np.linspace(0, 0.1, 30), np.linspace(4, 5, 10)])
        assert (w[:30] > 0.99).all()
        assert (w[30:] < 0.01).all()

    @pytest.mark.parametrize("seed", range(6))
    def test_as_the_mixture_of_the_release_does(self, seed: int) -> None:
        """scikit-learn starts from one run of k-means, we from the best split: the same start but for ties."""
        from sklearn.mixture import GaussianMixture

        draw = np.random.default_rng(seed)
        values = np.r_[draw.gamma(1.0, 0.2, size=60), draw.normal(2.0, 0.5, size=25)]
        scaled = ((values - values.min()) / (values.max() - values.min())).reshape(-1, 1)
        fit = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, n_init=1, random_state=0).fit(scaled)
        want = fit.predict_proba(scaled)[:, fit.means_.argmin()]
        np.testing.assert_allclose(clean_probability(values), want, atol=1e-8)

    def test_what_cannot_be_parted_is_believed(self) -> None:
        assert clean_probability([]).tolist() == []
        assert clean_probability([2.0]).tolist() == [1.0]
        assert clean_probability([2.0] * 5).tolist() == [1.0] * 5
        with pytest.raises(DataError, match="finite"):
            clean_probability([1.0, np.nan])


class TestLabels:
    given = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    own = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).double()
    other = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).double()

    def test_refined_and_guessed(self) -> None:
        """Believed with .8: .8 (1, 0) + .2 (.5, .5) = (.9, .1), sharpened (.81, .01) / .82. Not believed: the networks'
        mean (.3, .7), sharpened (.09, .49) / .58."""
        labels, labelled = made_labels(self.given, torch.tensor([0.8, 0.3]).double(), self.own, self.other)
        want = torch.tensor([[0.81 / 0.82, 0.01 / 0.82], [0.09 / 0.58, 0.49 / 0.58]]).double()
        torch.testing.assert_close(labels, want)
        assert labelled.tolist() == [1.0, 0.0]

    @pytest.mark.parametrize("belief", [0.0, 1.0])
    def test_all_flagged_and_none(self, belief: float) -> None:
        labels, labelled = made_labels(self.given, torch.full((2,), belief).double(), self.own, self.other)
        torch.testing.assert_close(labels.sum(-1), torch.ones(2).double())
        assert labelled.tolist() == [belief, belief]


def seen(labelled: list[float]) -> View:
    z = torch.log(torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]]).double())
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]]).double()
    extras = {GUESSES: labels, LABELLED: torch.tensor(labelled).double()}
    return View(z, torch.zeros_like(z), torch.tensor([1.0, 1.0, 1.0]).double(), extras=extras)


class TestParts:
    def test_each_part_has_its_loss(self) -> None:
        view = seen([1.0, 1.0, 0.0])
        assert float(DividedTerm("labelled").value(view)) == pytest.approx(-(np.log(0.8) + np.log(0.6)) / 2)
        assert float(DividedTerm("unlabelled").value(view)) == pytest.approx(0.04)

    def test_a_mixed_row_belongs_to_what_it_has_most_of(self) -> None:
        """Shares of a labelled sample after mixing: .7 counts as labelled, .4 does not."""
        view = seen([0.7, 0.4, 0.4])
        assert float(DividedTerm("labelled").value(view)) == pytest.approx(-np.log(0.8))
        assert float(DividedTerm("unlabelled").value(view)) == pytest.approx((0.16 + 0.04) / 2)

    def test_an_empty_part_costs_nothing(self) -> None:
        assert float(DividedTerm("unlabelled").value(seen([1.0] * 3))) == 0
        assert float(DividedTerm("labelled").value(seen([0.0] * 3))) == 0


def test_each_network_is_divided_by_the_other() -> None:
    """The first network fits all labels but the last, the second all but the first: each doubts what it does not fit,
    for the other's sake."""
    rows = np.eye(6).tolist()
    here = site(rows, [0] * 6, classes=2)
    fits = [[9.0] * 5 + [-9.0], [-9.0] + [9.0] * 5]
    weights = [plain_weights([fit, [0.0] * 6]) for fit in fits]
    request = TrainDivided(weights[0], Recipe(objective=1.0 * DividedTerm()), twin=weights[1])
    job = request.job(here)
    assert job.twin is not None
    first, second = job.extras[LABELLED], job.twin.extras[LABELLED]
    assert isinstance(first, PerSample) and isinstance(second, PerSample)
    assert first.rows.tolist() == [0.0] + [1.0] * 5
    assert second.rows.tolist() == [1.0] * 5 + [0.0]
    flagged = here.evidence.flagged
    assert flagged is not None and flagged.tolist() == [True] + [False] * 4 + [True]
    reply = request.answer(here)
    assert isinstance(reply, TrainedPair)
    assert all(torch.isfinite(value).all() for value in (*reply.weights.values(), *reply.twin.values()))


def test_a_rare_class_is_divided_beside_its_share() -> None:
    """Two samples of twenty are of class 1; half of each class is easier than the other half. The mixture over plain
    losses takes the rare ones for wrong; judged beside their share the easier half of each class is believed."""
    easy = [[1.0, 0.3]] * 9 + [[1.0, -0.3]]
    hard = [[1.0, -0.3]] * 9 + [[1.0, 0.3]]
    given = [0] * 9 + [1]
    here = site(easy + hard, given + given, classes=2)
    shares = plain_weights([[np.log(9), 1.0], [0.0, 0.0]])
    for balanced, labelled in ((False, ([1.0] * 9 + [0.0]) * 2), (True, [1.0] * 10 + [0.0] * 10)):
        request = TrainDivided(shares, Recipe(objective=1.0 * DividedTerm()), twin=shares, balanced=balanced)
        extra = request.job(here).extras[LABELLED]
        assert isinstance(extra, PerSample)
        assert extra.rows.tolist() == labelled


def test_guarded_a_network_believes_what_it_would_say_itself() -> None:
    """Right labels, half of them harder: the mixture parts them all the same."""
    here = site([[3.0, 0.0]] * 6 + [[0.5, 0.0]] * 6, [0] * 12, classes=2)
    knows = plain_weights([[1.0, 0.0], [0.0, 0.0]])
    for guarded, labelled in ((False, [1.0] * 6 + [0.0] * 6), (True, [1.0] * 12)):
        request = TrainDivided(knows, Recipe(objective=1.0 * DividedTerm()), twin=knows, guarded=guarded)
        extra = request.job(here).extras[LABELLED]
        assert isinstance(extra, PerSample)
        assert extra.rows.tolist() == labelled


def test_nothing_unlabelled_is_plain_training() -> None:
    """All losses alike: everybody is believed, and the semi-supervised step must not fail for want of a second part."""
    here = site([[1.0, 0.0], [1.0, 0.0]], [0, 0], classes=2)
    weights = plain_weights([[1.0, 0.0], [0.0, 1.0]])
    method = DivideMix(lambda_u=25.0)
    reply = TrainDivided(weights, Recipe(mixup=4.0, objective=method.loss(25.0)), twin=weights).answer(here)
    assert np.isfinite(reply.loss)


def test_lambda_grows() -> None:
    method = DivideMix(lambda_u=8.0, ramp=4)
    assert [method.strength(t) for t in (0, 1, 4, 9)] == [0.0, 2.0, 8.0, 8.0]
    assert DivideMix(lambda_u=8.0, ramp=0).strength(0) == 8.0
    assert [weight for weight, _ in method.loss(2.0).terms] == [1.0, 2.0, 1.0]


def test_stages() -> None:
    def answer(name: str, request: Request[Any]) -> Reply:
        assert isinstance(request, TrainPair)
        return TrainedPair(request.weights, 10, 1.0, (), request.twin)

    federation = Scripted({"a": 10}, answer, {"w": torch.zeros(1)})
    method = DivideMix(fraction=1.0, confidence_penalty=True)
    state = method.warm(method.start(federation), federation.at(0))
    [asked] = federation.asked[-1].values()
    assert isinstance(asked, TrainPair)
    assert [weight for weight, _ in asked.recipe.objective.terms] == [1.0, -1.0]
    method.divide(state, federation.at(0))
    [asked] = federation.asked[-1].values()
    assert isinstance(asked, TrainDivided)
    assert asked.recipe.mixup == 4.0


@pytest.mark.parametrize(("said", "expected"), [(5, 5), (0, 20)])
def test_the_warm_up_may_have_epochs_of_its_own(said: int, expected: int) -> None:
    def answer(name: str, request: Request[Any]) -> Reply:
        assert isinstance(request, TrainPair)
        return TrainedPair(request.weights, 10, 1.0, (), request.twin)

    federation = Scripted({"a": 10}, answer, {"w": torch.zeros(1)})
    method = DivideMix(warmup_epochs=said, fraction=1.0, local=Recipe(epochs=20))
    state = method.start(federation)
    for stage, epochs in ((method.warm, expected), (method.divide, 20)):
        state = stage(state, federation.at(0))
        [asked] = federation.asked[-1].values()
        assert asked.recipe.epochs == epochs  # type: ignore[attr-defined]
