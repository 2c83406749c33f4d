"""Losses that bear wrong labels, against NumPy and numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsift.formulas import losses
from fedsift.training.objective import (
    PREDICTIONS,
    ClassBalance,
    EarlyLearning,
    Entropy,
    GeneralisedCrossEntropy,
    View,
)

B, K = 5, 4
LABELS = torch.tensor([0, 1, 2, 3, 1])


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Z = numbers(1, B, K)
Y = torch.eye(K, dtype=torch.float64)[LABELS]


def softmax(z: Any) -> np.ndarray:
    e = np.exp(np.asarray(z) - np.max(np.asarray(z), axis=-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def view(**more: Any) -> View:
    return View(logits=more.pop("logits", Z), target=Y, present=more.pop("present", torch.ones(B).double()), **more)


class TestGeneralisedCrossEntropy:
    def test_as_numpy_does(self) -> None:
        p = softmax(Z)[np.arange(B), LABELS]
        want = (1 - p**0.7) / 0.7
        np.testing.assert_allclose(losses.generalised_cross_entropy(Z, Y, 0.7), want, rtol=1e-12)
        assert float(GeneralisedCrossEntropy().value(view())) == pytest.approx(want.mean())

    def test_its_ends_are_cross_entropy_and_absolute_error(self) -> None:
        torch.testing.assert_close(
            losses.generalised_cross_entropy(Z, Y, 1e-7), losses.cross_entropy(Z, Y), rtol=1e-5, atol=1e-6
        )
        p = (Z.softmax(-1) * Y).sum(-1)
        torch.testing.assert_close(losses.generalised_cross_entropy(Z, Y, 1.0), 1 - p)

    def test_its_gradient_is_finite_where_the_label_is_all_but_impossible(self) -> None:
        z = torch.tensor([[0.0, 800.0]], dtype=torch.float64, requires_grad=True)
        value = losses.generalised_cross_entropy(z, torch.tensor([[1.0, 0.0]]).double(), 0.5).sum()
        (grad,) = torch.autograd.grad(value, z)
        assert torch.isfinite(grad).all()
        assert float(value) == pytest.approx(2.0)


class TestEarlyLearning:
    def test_by_hand(self) -> None:
        """p = (.8, .2), t was (.5, .5): t becomes .7 (.5, .5) + .3 p = (.59, .41), <p, t> = .554."""
        z = torch.log(torch.tensor([[0.8, 0.2]], dtype=torch.float64))
        t = losses.running_prediction(torch.tensor([[0.5, 0.5]]).double(), z, 0.7)
        torch.testing.assert_close(t, torch.tensor([[0.59, 0.41]]).double())
        assert float(losses.early_learning(z, t)) == pytest.approx(math.log(1 - 0.554))
        seen = View(
            z,
            torch.tensor([[0.0, 1.0]]).double(),
            torch.ones(1),
            extras={PREDICTIONS: torch.full((1, 2), 0.5)},
        )
        want = -math.log(0.2) + 3 * math.log(1 - 0.554)
        assert float(EarlyLearning().value(seen)) == pytest.approx(want)
        torch.testing.assert_close(seen.kept[PREDICTIONS], t)

    def test_its_gradient_pulls_towards_the_memory(self) -> None:
        z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        t = torch.tensor([[0.9, 0.05, 0.05]]).double()
        (grad,) = torch.autograd.grad(losses.early_learning(z, t).sum(), z)
        assert grad[0, 0] < 0 < grad[0, 1]

    def test_a_sure_network_stays_finite(self) -> None:
        z = torch.tensor([[1000.0, 0.0]], dtype=torch.float64, requires_grad=True)
        t = losses.running_prediction(torch.tensor([[1.0, 0.0]]).double(), z)
        value = losses.early_learning(z, t).sum()
        (grad,) = torch.autograd.grad(value, z)
        assert torch.isfinite(value)
        assert torch.isfinite(grad).all()


class TestBalance:
    def test_as_numpy_does(self) -> None:
        mean = softmax(Z).mean(0)
        want = (np.log(1 / K) - np.log(mean)).sum() / K
        assert float(ClassBalance().value(view())) == pytest.approx(want)
        pi = np.array([0.5, 0.5, 0.0, 0.0])
        own = view(log_prior=torch.from_numpy(np.log(np.where(pi > 0, pi, 1e-300)))[None])
        want = (pi[:2] * np.log(pi[:2] / mean[:2])).sum()
        assert float(ClassBalance("given").value(own)) == pytest.approx(want)

    def test_a_class_without_samples_adds_nothing(self) -> None:
        empty = view(log_prior=torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]]).double())
        want = -math.log(softmax(Z).mean(0)[0])
        assert float(ClassBalance("given").value(empty)) == pytest.approx(want)

    def test_padding_does_not_count(self) -> None:
        some = view(present=torch.tensor([1.0, 1, 1, 0, 0]).double())
        assert float(ClassBalance().value(some)) == pytest.approx(
            float(losses.prior_divergence(Z[:3], torch.ones(3).double()))
        )

    def test_entropy(self) -> None:
        p = softmax(Z)
        assert float(Entropy().value(view())) == pytest.approx((-p * np.log(p)).sum(-1).mean())


class TestSmallLoss:
    def test_ties_go_to_the_first_and_padding_is_never_chosen(self) -> None:
        values = torch.tensor([0.3, 0.1, 0.1, 0.2, 0.0]).double()
        present = torch.tensor([1.0, 1, 1, 1, 0]).double()
        assert losses.small_loss(values, torch.tensor(0.5), present).tolist() == [0, 1, 1, 0, 0]
        assert losses.small_loss(values, torch.tensor(0.75), present).tolist() == [0, 1, 0, 0, 0]
        assert losses.small_loss(values, torch.tensor(1.0), present).tolist() == [0] * 5

    def test_a_share_that_is_a_whole_number_but_for_rounding(self) -> None:
        kept = losses.small_loss(torch.arange(100.0), torch.tensor(0.71), torch.ones(100))
        assert int(kept.sum()) == 29

    def test_sites_side_by_side(self) -> None:
        values, rates = numbers(7, 3, B), torch.tensor([0.0, 0.4, 0.8])
        present = torch.tensor([[1.0] * 5, [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).double()
        together = losses.small_loss(values, rates, present)
        for site in range(3):
            alone = losses.small_loss(values[site], rates[site], present[site])
            assert together[site].tolist() == alone.tolist()

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.floats(0, 1))
    def test_kept_ones_are_no_larger_than_the_others(self, values: list[float], rate: float) -> None:
        losses_ = torch.tensor(values, dtype=torch.float64)
        kept = losses.small_loss(losses_, torch.tensor(rate, dtype=torch.float64), torch.ones(len(values))) > 0
        assert int(kept.sum()) == math.floor((1 - rate) * len(values) + 1e-6)
        if kept.any() and not kept.all():
            assert float(losses_[kept].max()) <= float(losses_[~kept].min())


class TestTransition:
    T = torch.tensor([[0.8, 0.2, 0, 0], [0, 1.0, 0, 0], [0.1, 0.1, 0.8, 0], [0, 0, 0.5, 0.5]]).double()

    def test_reweighting_as_numpy_does(self) -> None:
        p = softmax(Z)
        given_ = p @ self.T.numpy()
        rows = np.arange(B), LABELS.numpy()
        want = p[rows] / given_[rows] * -np.log(p[rows])
        np.testing.assert_allclose(losses.reweighted_cross_entropy(Z, Y, self.T), want, rtol=1e-12)

    def test_the_identity_corrects_nothing(self) -> None:
        eye = torch.eye(K).double()
        torch.testing.assert_close(losses.reweighted_cross_entropy(Z, Y, eye), losses.cross_entropy(Z, Y))

    def test_a_label_that_the_matrix_rules_out_weighs_finitely(self) -> None:
        wrong = torch.zeros(K, K).double()
        wrong[:, 0] = 1.0
        assert torch.isfinite(losses.reweighted_cross_entropy(Z, Y, wrong)).all()

    def test_revision_keeps_rows_on_the_simplex_and_every_entry_learns(self) -> None:
        change = torch.zeros(K, K).double().requires_grad_()
        revised = losses.revised_transition(self.T, change)
        torch.testing.assert_close(revised.sum(-1), torch.ones(K).double())
        for loss in (losses.forward_correction, losses.reweighted_cross_entropy):
            (grad,) = torch.autograd.grad(loss(Z, Y, losses.revised_transition(self.T, change)).sum(), change)
            assert torch.isfinite(grad).all()
            assert bool((grad != 0).any(0)[LABELS].all())
        far = losses.revised_transition(self.T, torch.full((K, K), -5.0).double())
        torch.testing.assert_close(far, torch.full((K, K), 1 / K).double())

    def test_a_cohort_is_the_stack_of_its_sites(self) -> None:
        z, matrices = numbers(3, 2, B, K), numbers(4, 2, K, K).softmax(-1)
        together = losses.reweighted_cross_entropy(z, Y, matrices)
        for site in range(2):
            torch.testing.assert_close(together[site], losses.reweighted_cross_entropy(z[site], Y, matrices[site]))


def test_sharpening() -> None:
    """(.6, .4) at T = .5: (.36, .16) / .52; at 1 nothing; a sure label stays."""
    p = torch.tensor([[0.6, 0.4], [1.0, 0.0]]).double()
    want = torch.tensor([[0.36 / 0.52, 0.16 / 0.52], [1.0, 0.0]]).double()
    torch.testing.assert_close(losses.sharpened(p, 0.5), want)
    torch.testing.assert_close(losses.sharpened(p, 1.0), p)
