"""Loss formulas against plain NumPy transcriptions, at their odd ends, and on stacked cohorts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.formulas import losses

C, B, K = 3, 5, 4
Array = NDArray[np.float64]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape) * 2, dtype=torch.float64)


def one_hot(seed: int, *shape: int, classes: int = K) -> Tensor:
    labels = np.random.default_rng(seed).integers(0, classes, size=shape)
    return torch.from_numpy(np.eye(K)[labels])


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def close(got: Tensor, want: Array | float) -> None:
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-10, atol=1e-12)


class TestCrossEntropy:
    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 30.0]))
    @settings(max_examples=25, deadline=None)
    def test_soft_targets_follow_the_formula(self, seed: int, scale: float) -> None:
        z = numbers(seed, B, K) * scale
        target = torch.softmax(numbers(seed + 1, B, K), -1)
        p = softmax(z.numpy())
        want = -(target.numpy() * np.log(np.maximum(p, 1e-300))).sum(-1)
        np.testing.assert_allclose(losses.cross_entropy(z, target).numpy(), want, rtol=1e-9)

    def test_huge_logits_stay_finite(self) -> None:
        z = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float64)
        assert losses.cross_entropy(z, torch.tensor([[0.0, 1.0, 0.0]])).item() == 2e4

    def test_impossible_class_adds_nothing_unless_asked_for(self) -> None:
        z = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
        losses.cross_entropy(z, torch.tensor([[1.0, 0.0, 0.0]])).sum().backward()
        assert z.grad is not None
        assert z.grad.tolist() == [[-0.5, 0.5, 0.0]]
        asked = losses.cross_entropy(z, torch.tensor([[0.0, 0.0, 1.0]]))
        assert asked.item() == math.inf


class TestLogitAdjustment:
    def test_prior_of_integer_and_float_counts(self) -> None:
        prior = losses.log_prior(torch.tensor([6, 3, 1, 0]))
        assert prior.dtype == torch.get_default_dtype()
        np.testing.assert_allclose(prior[:3].exp().numpy(), [0.6, 0.3, 0.1], rtol=1e-6)
        assert prior[3].item() == -math.inf
        assert losses.log_prior(torch.tensor([1.0, 3.0], dtype=torch.float64)).dtype == torch.float64

    def test_a_site_without_labels_has_no_prior(self) -> None:
        prior = losses.log_prior(torch.tensor([[2, 2], [0, 0]]))
        assert prior[1].tolist() == [0.0, 0.0]

    def test_class_not_held_gets_probability_and_gradient_exactly_zero(self) -> None:
        z = numbers(0, B, K).requires_grad_()
        prior = losses.log_prior(torch.tensor([2.0, 0.0, 1.0, 0.0], dtype=torch.float64))
        adjusted = losses.adjusted_logits(z, prior, 1.0)
        target = torch.from_numpy(np.eye(K)[[0, 2, 2, 0, 0]])
        losses.cross_entropy(adjusted, target).mean().backward()
        assert z.grad is not None
        assert (adjusted.softmax(-1)[:, [1, 3]] == 0).all()
        assert (z.grad[:, [1, 3]] == 0).all()
        s = softmax(np.where([True, False, True, False], z.detach().numpy() + prior.numpy(), -1e9))
        close(z.grad, (s - target.numpy()) / B)

    def test_strength_scales_the_prior_and_zero_is_plain(self) -> None:
        z, prior = numbers(1, B, K), losses.log_prior(torch.tensor([1.0, 0.0, 2.0, 3.0], dtype=torch.float64))
        assert losses.adjusted_logits(z, prior, 0.0) is z
        present = [0, 2, 3]
        close(losses.adjusted_logits(z, prior, 0.5)[:, present], (z + 0.5 * prior).numpy()[:, present])

    def test_an_absent_class_equals_a_network_without_it(self) -> None:
        z = numbers(2, B, K)
        counts = torch.tensor([2.0, 5.0, 0.0, 1.0], dtype=torch.float64)
        keep = [0, 1, 3]
        target = one_hot(3, B, classes=2)
        full = losses.cross_entropy(losses.adjusted_logits(z, losses.log_prior(counts)), target)
        small = losses.cross_entropy(
            losses.adjusted_logits(z[:, keep], losses.log_prior(counts[keep])), target[:, keep]
        )
        close(full, small.numpy())


class TestDistillation:
    counts = torch.tensor([4.0, 0.0, 2.0, 1.0], dtype=torch.float64)

    def reference(self, z: Array, teacher: Array, absent: str, temperature: float) -> Array:
        q = softmax(teacher / temperature)
        held = self.counts.numpy() > 0
        ell = np.log(softmax(z[:, held] + np.log(self.counts.numpy()[held])))
        on_held = q[:, held] / (q[:, held].sum(-1, keepdims=True) if absent == "renormalise" else 1.0)
        value = (on_held * (np.log(on_held) - ell)).sum(-1)
        return value + (q[:, ~held] * np.log(q[:, ~held])).sum(-1) if absent == "zero" else value

    @pytest.mark.parametrize("absent", ["zero", "masked", "renormalise"])
    def test_absent_classes(self, absent: str) -> None:
        z, teacher = numbers(4, B, K), numbers(5, B, K)
        got = losses.distillation(z, teacher, losses.log_prior(self.counts), 0.8, absent)
        close(got, self.reference(z.numpy(), teacher.numpy(), absent, 0.8))

    @pytest.mark.parametrize("absent", ["zero", "masked", "renormalise"])
    def test_gradient_is_s_softmax_minus_q(self, absent: str) -> None:
        z, teacher = numbers(6, B, K).requires_grad_(), numbers(7, B, K)
        prior = losses.log_prior(self.counts)
        losses.distillation(z, teacher, prior, 0.8, absent).sum().backward()
        assert z.grad is not None
        q = softmax(teacher.numpy() / 0.8)
        held = self.counts.numpy() > 0
        mass = q[:, held].sum(-1, keepdims=True)
        s = (z + prior).softmax(-1).detach().numpy()
        want = np.where(held, s - q / mass if absent == "renormalise" else mass * s - q, 0.0)
        close(z.grad, want)
        assert (z.grad[:, ~held] == 0).all()

    def test_no_prior_is_a_plain_divergence(self) -> None:
        z = numbers(8, B, K)
        close(losses.distillation(z, z), 0.0 * np.ones(B))
        assert (losses.distillation(z, numbers(9, B, K)) > 0).all()

    def test_teacher_gets_no_gradient(self) -> None:
        teacher = numbers(10, B, K).requires_grad_()
        losses.distillation(numbers(11, B, K).requires_grad_(), teacher).sum().backward()
        assert teacher.grad is None

    def test_saturated_teacher_stays_finite(self) -> None:
        z = numbers(12, 1, K).float().requires_grad_()
        losses.distillation(z, torch.tensor([[1e4, 0.0, 0.0, -1e4]])).sum().backward()
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()

    def test_unknown_rule_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="masked, zero, renormalise"):
            losses.distillation(numbers(0, B, K), numbers(1, B, K), absent="drop")


class TestSymmetricCrossEntropy:
    @pytest.mark.parametrize(("log0", "clamp"), [(math.log(1e-4), 1e-7), (-4.0, None), (-6.0, 1e-2)])
    def test_formula(self, log0: float, clamp: float | None) -> None:
        z, target = numbers(13, B, K), one_hot(14, B)
        p = softmax(z.numpy())
        a = p if clamp is None else np.maximum(p, clamp)
        rce = -(a * np.where(target.numpy() == 1, 0.0, log0)).sum(-1)
        ce = -np.log((p * target.numpy()).sum(-1))
        close(losses.reverse_cross_entropy(z, target, log0, clamp), rce)
        close(losses.symmetric_cross_entropy(z, target, 0.3, 0.7, log0, clamp), 0.3 * ce + 0.7 * rce)

    def test_reverse_part_is_nine_times_the_missing_probability(self) -> None:
        z, target = numbers(15, B, K), one_hot(16, B)
        p_y = (torch.softmax(z, -1) * target).sum(-1)
        got = losses.reverse_cross_entropy(z, target)
        np.testing.assert_allclose(got.numpy(), 9.210340371976182 * (1 - p_y.numpy()), atol=1e-5)

    def test_entries_below_the_clamp_pass_no_gradient(self) -> None:
        z = torch.tensor([[30.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        target = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
        losses.reverse_cross_entropy(z, target, clamp=1e-3).sum().backward()
        assert z.grad is not None
        # Only the entry of class 0 is above the clamp, and its own probability does not move: p0 (1 - p0)
        # is tiny.
        assert z.grad.abs().max() < 1e-10


class TestSampleLoss:
    def test_formula_and_bounds(self) -> None:
        z, target = numbers(17, 200, K) * 10, one_hot(18, 200)
        p = softmax(z.numpy())
        got = losses.double_softmax_cross_entropy(z, target)
        close(got, np.log(np.exp(p).sum(-1)) - (p * target.numpy()).sum(-1))
        high = math.log(math.e + K - 1)
        assert high - 1 - 1e-12 <= got.min() <= got.max() <= high + 1e-12
        sure = torch.full((1, 10), -800.0, dtype=torch.float64)
        sure[0, 0] = 800.0
        ends = losses.double_softmax_cross_entropy(sure.expand(2, 10), torch.eye(10).double()[:2])
        assert ends.tolist() == pytest.approx((1.461, 2.461), abs=1e-3)

    def test_kinds(self) -> None:
        z, target = numbers(19, B, K), one_hot(20, B)
        close(losses.sample_loss(z, target, "ce"), losses.cross_entropy(z, target).numpy())
        close(
            losses.sample_loss(z, target, "ce_on_softmax"),
            losses.cross_entropy(torch.softmax(z, -1), target).numpy(),
        )
        with pytest.raises(ConfigError, match="sample_loss"):
            losses.sample_loss(z, target, "mse")


class TestForwardCorrection:
    def test_formula(self) -> None:
        z, target = numbers(21, B, K), one_hot(22, B)
        t = torch.softmax(numbers(23, K, K), -1)
        want = -np.log(((softmax(z.numpy()) @ t.numpy()) * target.numpy()).sum(-1))
        close(losses.forward_correction(z, target, t), want)

    def test_identity_is_cross_entropy(self) -> None:
        z, target = numbers(24, B, K) * 5, one_hot(25, B)
        eye = torch.eye(K, dtype=torch.float64)
        close(losses.forward_correction(z, target, eye, floor=0), losses.cross_entropy(z, target).numpy())

    def test_a_label_never_given_by_the_matrix(self) -> None:
        t = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        z = torch.zeros(2, 2, requires_grad=True)
        value = losses.forward_correction(z, torch.eye(2), t)
        value.sum().backward()
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()
        np.testing.assert_allclose(value.detach().numpy(), [0.0, -math.log(1e-8)], atol=1e-5)


class TestContrastive:
    def test_beta_one_without_guard_is_linear_in_the_logits(self) -> None:
        z, target, contrast = numbers(26, B, K).requires_grad_(), one_hot(27, B), one_hot(28, B)
        value = losses.contrastive_cross_entropy(z, target, contrast, beta=1.0, eps=0.0)
        close(value, (z.detach() * (contrast - target)).sum(-1).numpy())
        value.sum().backward()
        assert z.grad is not None
        close(z.grad, (contrast - target).numpy())

    @pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-2])
    def test_expectation_is_the_mean_over_contrast_labels(self, eps: float) -> None:
        z, target = numbers(29, B, K), one_hot(30, B)
        q = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
        each = torch.stack(
            [
                losses.contrastive_cross_entropy(z, target, torch.eye(K).double()[c].expand(B, K), 0.7, eps)
                for c in range(K)
            ]
        )
        want = (each * q.unsqueeze(-1)).sum(0)
        close(losses.contrastive_cross_entropy(z, target, q, 0.7, eps), want.numpy())

    def test_guard_bounds_the_contrast(self) -> None:
        z = torch.tensor([[500.0, 0.0, 0.0]], dtype=torch.float64)
        contrast = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
        assert losses.contrastive_penalty(z, contrast, eps=1e-8).item() == pytest.approx(-math.log(1e-8))
        assert losses.contrastive_penalty(z, contrast, eps=0.0).item() == pytest.approx(500.0)


class TestMultilabel:
    def test_shift_is_equation_3_in_logit_space(self) -> None:
        z = numbers(31, B, K)
        n_pos = torch.tensor([3.0, 10.0, 1.0, 16.0], dtype=torch.float64)
        shift = losses.multilabel_logit_shift(n_pos, 20)
        pi, p = n_pos.numpy() / 20, sigmoid(z.numpy())
        close(torch.sigmoid(z + shift), p * pi / (p * pi + (1 - p) * (1 - pi)))

    def test_clamp_keeps_an_empty_class_finite(self) -> None:
        n_pos = torch.tensor([0.0, 20.0, 5.0])
        np.testing.assert_allclose(losses.class_prior(n_pos, 20).numpy(), [1 / 21, 20 / 21, 0.25], rtol=1e-6)
        assert torch.isfinite(losses.multilabel_logit_shift(n_pos, 20)).all()
        assert losses.multilabel_logit_shift(n_pos, 20, clamp=False)[0] == -math.inf

    def test_prior_of_sites_of_different_sizes(self) -> None:
        n_pos = torch.tensor([[0.0, 4.0], [0.0, 10.0]], dtype=torch.float64)
        n = torch.tensor([[4], [20]])
        close(losses.class_prior(n_pos, n), np.array([[1 / 5, 4 / 5], [1 / 21, 0.5]]))

    @pytest.mark.parametrize(("norm", "divisor"), [("classes", B * K), ("known", B * 2)])
    def test_partial_class(self, norm: str, divisor: int) -> None:
        z, target = numbers(32, B, K).requires_grad_(), (numbers(33, B, K) > 0).double()
        active = torch.tensor([1.0, 0.0, 1.0, 0.0])
        p, t = sigmoid(z.detach().numpy()), target.numpy()
        bce = -(t * np.log(p) + (1 - t) * np.log(1 - p))
        got = losses.partial_class(z, target, active, norm=norm)  # type: ignore[arg-type]
        close(got, bce[:, [0, 2]].sum() / divisor)
        got.backward()
        assert z.grad is not None
        assert (z.grad[:, [1, 3]] == 0).all()

    @pytest.mark.parametrize("norm", ["classes", "known"])
    def test_padding_counts_for_nothing_in_the_partial_class_loss(self, norm: Any) -> None:
        z, target, known = numbers(35, B, K), (numbers(36, B, K) > 0).double(), numbers(37, B, K) > 0
        present = torch.tensor([1.0, 1, 1, 0, 0])
        got = losses.partial_class(z, target, known, norm=norm, present=present)
        close(got, losses.partial_class(z[:3], target[:3], known[:3], norm=norm).numpy())
        nothing = losses.partial_class(z, target, torch.zeros(K), norm=norm, present=torch.zeros(B))
        assert nothing.item() == 0.0

    def test_infinite_shift_of_a_class_not_annotated_does_no_harm(self) -> None:
        z = numbers(34, B, K).requires_grad_()
        shift = torch.tensor([0.0, -math.inf, math.inf, 0.0], dtype=torch.float64)
        active = torch.tensor([1.0, 0.0, 0.0, 1.0])
        losses.partial_class(z, torch.ones(B, K).double(), active, shift).backward()
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()

    def test_consistency_parts(self) -> None:
        z, g, target = numbers(35, B, K), numbers(36, B, K), (numbers(37, B, K) > 0).double()
        mask = (numbers(38, B, K) > 0).double()
        p, t, m = sigmoid(z.numpy()), target.numpy(), mask.numpy()
        hard = (m * -(t * np.log(p) + (1 - t) * np.log(1 - p))).sum()
        soft = ((1 - m) * (p - sigmoid(g.numpy())) ** 2).sum()
        joint = losses.consistency(z, target, g, mask)
        close(joint.hard_sum, hard)
        close(joint.soft_sum, soft)
        close(joint.loss, (hard + soft) / (B * K))
        separate = losses.consistency(z, target, g, mask, norm="separate")
        close(separate.loss, hard / m.sum() + soft / (1 - m).sum())

    def test_consistency_leaves_padding_out(self) -> None:
        z, g, target = numbers(39, B, K), numbers(40, B, K), (numbers(41, B, K) > 0).double()
        mask = (numbers(42, B, K) > 0).double()
        present = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
        padded = losses.consistency(z, target, g, mask, present=present)
        short = losses.consistency(z[:3], target[:3], g[:3], mask[:3])
        close(padded.loss, short.loss.numpy())
        assert int(padded.n_hard) == int(short.n_hard)

    def test_missing_class(self) -> None:
        z, g = numbers(43, B, K), numbers(44, B, K)
        active = torch.tensor([1.0, 0.0, 1.0, 0.0])
        error = (sigmoid(z.numpy()) - sigmoid(g.numpy())) ** 2
        close(losses.missing_class(z, g, active), error[:, [1, 3]].mean(-1))
        assert (losses.missing_class(z, g, torch.ones(K)) == 0).all()


class TestProximal:
    def params(self, seed: int) -> list[Tensor]:
        return [numbers(seed, 2, 3), numbers(seed + 1, 4), numbers(seed + 2)]

    def test_distance_over_all_tensors_together(self) -> None:
        w, anchor = self.params(50), self.params(60)
        flat = torch.cat([(a - b).reshape(-1) for a, b in zip(w, anchor)]).numpy()
        close(losses.squared_distance(w, anchor), (flat**2).sum())
        close(losses.distance(w, anchor), np.linalg.norm(flat))

    def test_gradient_of_the_norm_is_zero_at_the_anchor(self) -> None:
        w = [t.clone().requires_grad_() for t in self.params(70)]
        value = losses.distance(w, self.params(70))
        value.backward()
        assert value.item() == 0.0
        assert all(t.grad is not None and (t.grad == 0).all() for t in w)

    def test_one_site_of_a_cohort_at_its_anchor(self) -> None:
        anchor = [numbers(80, 2, 3)]
        w = [torch.stack([anchor[0], anchor[0] + 1.0]).requires_grad_()]
        value = losses.distance(w, anchor, lead=1)
        value.sum().backward()
        close(value, np.array([0.0, math.sqrt(6)]))
        assert w[0].grad is not None
        close(w[0].grad, np.stack([np.zeros((2, 3)), np.full((2, 3), 1 / math.sqrt(6))]))

    def test_powers_and_first_batch(self) -> None:
        w, anchor = self.params(90), self.params(95)
        close(losses.proximal(w, anchor, 0.5), 0.5 * losses.squared_distance(w, anchor).numpy())
        close(losses.proximal(w, anchor, 0.5, power=1), 0.5 * losses.distance(w, anchor).numpy())
        assert losses.proximal(w, anchor, 0.5, power=1, skip=True).item() == 0.0
        cohort = [torch.stack([t, t]) for t in w]
        assert losses.proximal(cohort, anchor, 0.5, power=2, skip=True, lead=1).tolist() == [0.0, 0.0]
        with pytest.raises(ConfigError, match="prox_power"):
            losses.proximal(w, anchor, 0.5, power=3)

    def test_lists_of_different_length_are_refused(self) -> None:
        with pytest.raises(ValueError, match="argument 2"):
            losses.squared_distance(self.params(1), self.params(2)[:2])
        with pytest.raises(ConfigError):
            losses.squared_distance([], [])


class TestMixup:
    def test_two_term_form_equals_the_soft_target(self) -> None:
        z, target = numbers(100, B, K), one_hot(101, B)
        order = torch.from_numpy(np.random.default_rng(0).permutation(B))
        x, mixed = losses.mixup(numbers(102, B, 2, 2), target, order, 0.3)
        close(x, 0.3 * numbers(102, B, 2, 2).numpy() + 0.7 * numbers(102, B, 2, 2)[order].numpy())
        two = 0.3 * losses.cross_entropy(z, target) + 0.7 * losses.cross_entropy(z, target[order])
        close(losses.cross_entropy(z, mixed), two.numpy())

    def test_a_cohort_has_its_own_shares(self) -> None:
        x, partners = numbers(103, C, B, 2), numbers(104, C, B, 2)
        shares = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
        together = losses.blend(x, partners, shares.view(-1, 1, 1))
        for site in range(C):
            close(together[site], losses.blend(x[site], partners[site], float(shares[site])).numpy())
        again = losses.blend_in_place(x, partners, shares.view(-1, 1, 1))
        close(again, together.numpy())
        assert again is x


class TestCollaboration:
    def test_divergence_of_all_pairs(self) -> None:
        z = numbers(110, C, B, K)
        p = softmax(z.numpy())
        want = [[(p[i] * np.log(p[i] / p[j])).sum(-1) for j in range(C)] for i in range(C)]
        close(losses.divergence(z.unsqueeze(1), z.unsqueeze(0)), np.array(want))

    @pytest.mark.parametrize("scheme", ["uniform", "own", "teacher"])
    def test_gradient(self, scheme: str) -> None:
        everyone, weights = numbers(111, C, B, K), torch.tensor([0.2, 0.5, 0.3])
        z = everyone[1].clone().requires_grad_()
        shares = losses.teacher_weights(scheme, C, 1, weights, like=everyone)
        mixture = losses.teacher_mixture(everyone.softmax(-1), shares)
        losses.mixture_loss(z, mixture).mean().backward()
        a = {"uniform": [0.5, 0, 0.5], "own": [0.5, 0, 0.5], "teacher": [0.2, 0, 0.3]}[scheme]
        p = softmax(everyone.numpy())
        assert z.grad is not None
        want = sum(a[i] * (p[1] - p[i]) for i in range(C)) / B
        np.testing.assert_allclose(z.grad.numpy(), want, atol=1e-7)

    def test_weights_are_needed_and_never_changed(self) -> None:
        weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
        losses.teacher_weights("teacher", C, 0, weights, like=weights)
        assert weights[0].item() == 0.2
        with pytest.raises(ConfigError, match="uniform"):
            losses.teacher_weights("own", C, 0, None, like=weights)
        with pytest.raises(ConfigError, match="scheme"):
            losses.teacher_weights("best", C, 0, weights, like=weights)

    def test_consensus_losses(self) -> None:
        everyone = numbers(114, C, B, K)
        consensus = losses.mean_scores(everyone)
        close(consensus, everyone.numpy().mean(0))
        close(losses.score_distance(everyone[0], consensus), np.abs((everyone[0] - consensus).numpy()).mean(-1))
        p, q = softmax(everyone[0].numpy()), softmax(consensus.numpy())
        close(losses.ensemble_distillation(everyone[0], consensus), (q * np.log(q / p)).sum(-1))


PRIOR = losses.log_prior(torch.tensor([[3.0, 0.0, 1.0, 2.0], [1.0, 1.0, 0.0, 4.0], [1.0, 2.0, 3.0, 4.0]]).double())
TEACHER = numbers(120, C, B, K)
CONTRAST = one_hot(121, C, B)
MULTI = (numbers(122, C, B, K) > 0).double()
ACTIVE = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 1]]).double()
MATRICES = torch.softmax(numbers(123, C, K, K), -1)


def at(values: Tensor, site: int | None) -> Tensor:
    """One site's part, or all of it."""
    return values if site is None else values[site]


def row(values: Tensor, site: int | None) -> Tensor:
    """A value a class, fit to broadcast: `[K]` for one site, `[C, 1, K]` for the cohort."""
    return values.unsqueeze(1) if site is None else values[site]


FORMULAS: dict[str, Callable[[Tensor, Tensor, int | None], Tensor]] = {
    "cross_entropy": lambda z, t, s: losses.cross_entropy(z, t),
    "adjusted": lambda z, t, s: losses.cross_entropy(losses.adjusted_logits(z, row(PRIOR, s)), t),
    "distillation_masked": lambda z, t, s: losses.distillation(z, at(TEACHER, s), row(PRIOR, s), 0.8, "masked"),
    "distillation_zero": lambda z, t, s: losses.distillation(z, at(TEACHER, s), row(PRIOR, s), 0.8, "zero"),
    "distillation_renormalise": lambda z, t, s: losses.distillation(
        z, at(TEACHER, s), row(PRIOR, s), 0.8, "renormalise"
    ),
    "symmetric": lambda z, t, s: losses.symmetric_cross_entropy(z, t),
    "double_softmax": lambda z, t, s: losses.double_softmax_cross_entropy(z, t),
    "forward_correction": lambda z, t, s: losses.forward_correction(z, t, at(MATRICES, s)),
    "contrastive": lambda z, t, s: losses.contrastive_cross_entropy(z, t, at(CONTRAST, s)),
    "contrastive_expected": lambda z, t, s: losses.contrastive_cross_entropy(z, t, row(PRIOR.exp(), s)),
    "missing_class": lambda z, t, s: losses.missing_class(z, at(TEACHER, s), row(ACTIVE, s)),
    "score_distance": lambda z, t, s: losses.score_distance(z, at(TEACHER, s)),
    "ensemble_distillation": lambda z, t, s: losses.ensemble_distillation(z, at(TEACHER, s)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_cohort_is_the_stack_of_its_sites(name: str) -> None:
    formula = FORMULAS[name]
    z = numbers(130, C, B, K).requires_grad_()
    labels = torch.tensor([[0, 2, 3, 0, 2], [0, 1, 3, 3, 1], [0, 1, 2, 3, 0]])
    target = torch.eye(K).double()[labels]
    together = formula(z, target, None)
    assert together.shape == (C, B)
    (grad,) = torch.autograd.grad(together.sum(), z)
    for site in range(C):
        own = z[site].detach().requires_grad_()
        alone = formula(own, target[site], site)
        assert alone.shape == (B,)
        close(together[site], alone.detach().numpy())
        (own_grad,) = torch.autograd.grad(alone.sum(), own)
        close(grad[site], own_grad.numpy())
    assert torch.isfinite(grad).all()


def test_cohort_consistency_and_distance() -> None:
    z, mask = numbers(131, C, B, K), (numbers(132, C, B, K) > 0).double()
    together = losses.consistency(z, MULTI, TEACHER, mask, shift=PRIOR.exp().unsqueeze(1), norm="separate")
    known = losses.partial_class(z, MULTI, ACTIVE.unsqueeze(1), norm="known")
    assert known.shape == (C,)
    w = [numbers(133, C, 2, 3), numbers(134, C)]
    anchors = [numbers(135, 2, 3), numbers(136)]
    squared = losses.squared_distance(w, anchors, lead=1)
    for site in range(C):
        alone = losses.consistency(
            z[site], MULTI[site], TEACHER[site], mask[site], shift=PRIOR[site].exp(), norm="separate"
        )
        close(together.loss[site], alone.loss.numpy())
        close(known[site], losses.partial_class(z[site], MULTI[site], ACTIVE[site], norm="known").numpy())
        close(squared[site], losses.squared_distance([t[site] for t in w], anchors).numpy())
