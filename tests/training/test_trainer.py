"""Local training against steps worked out with plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsift.training.job import TrainingJob
from fedsift.training.objective import (
    BinaryCrossEntropy,
    CrossEntropy,
    Distillation,
    Objective,
    PartialClass,
    Proximal,
    Term,
    as_objective,
)
from fedsift.training.plan import batch_bounds, plan, steps
from fedsift.training.recipe import Recipe
from fedsift.training.trainer import train_one
from tests.training.small import NORM, linear_weights, make_site

X = torch.tensor([[1.0, 0.0, 2.0], [0.5, -1.0, 0.0], [2.0, 1.0, 1.0], [-1.0, 0.5, 0.3]])
Y = torch.tensor([0, 2, 0, 2])
LR = 0.1


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def one_step(objective: Term | Objective, weights: dict[str, Tensor], **recipe: object) -> dict[str, np.ndarray]:
    job = TrainingJob(
        make_site(X, Y, 3), weights, Recipe(batch_size=4, lr=LR, objective=as_objective(objective), **recipe)
    )  # type: ignore[arg-type]
    return {name: value.double().numpy() for name, value in train_one(job).weights.items()}


def by_hand(weights: dict[str, Tensor], gradient_of_logits: np.ndarray) -> dict[str, np.ndarray]:
    """w - lr * dL/dw for z = W x + b and a given dL/dz `[B, K]`."""
    return {
        "layer.weight": weights["layer.weight"].double().numpy() - LR * gradient_of_logits.T @ X.double().numpy(),
        "layer.bias": weights["layer.bias"].double().numpy() - LR * gradient_of_logits.sum(0),
    }


def logits(weights: dict[str, Tensor]) -> np.ndarray:
    return X.double().numpy() @ weights["layer.weight"].double().numpy().T + weights["layer.bias"].double().numpy()


def check(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def test_cross_entropy_step() -> None:
    w = linear_weights(3, 3)
    onehot = np.eye(3)[Y.numpy()]
    check(one_step(CrossEntropy(), w), by_hand(w, (softmax(logits(w)) - onehot) / 4))


def test_logit_adjustment_uses_the_sites_own_frequencies_and_spares_absent_classes() -> None:
    w = linear_weights(3, 3)
    with np.errstate(divide="ignore"):
        shifted = logits(w) + np.log(np.array([0.5, 0.0, 0.5]))
    want = by_hand(w, (softmax(shifted) - np.eye(3)[Y.numpy()]) / 4)
    got = one_step(CrossEntropy(adjust=1.0), w)
    check(got, want)
    assert np.array_equal(got["layer.weight"][1], w["layer.weight"][1].double().numpy())


def test_distillation_from_the_received_model() -> None:
    """At the first step student = teacher; the KL gradient is S * softmax(z + m) - q on present classes."""
    w = linear_weights(3, 3)
    z = logits(w)
    q = softmax(z / 0.8)
    present = np.array([True, False, True])
    with np.errstate(divide="ignore"):
        s = softmax(z + np.log(np.array([0.5, 0.0, 0.5])))
    g = np.where(present, q[:, present].sum(1, keepdims=True) * s - q, 0.0)
    check(one_step(Distillation(temperature=0.8), w), by_hand(w, g / 4))
    ce = np.where(present, s - np.eye(3)[Y.numpy()], 0.0)
    both = 0.3 * Distillation(temperature=0.8) + 0.7 * CrossEntropy(adjust=1.0)
    check(one_step(both, w), by_hand(w, (0.3 * g + 0.7 * ce) / 4))


def test_proximal_term_pulls_back_from_the_second_step_on() -> None:
    w = linear_weights(3, 3)
    mu = 0.5
    got = one_step(CrossEntropy() + mu * Proximal(), w, epochs=2)
    first = by_hand(w, (softmax(logits(w)) - np.eye(3)[Y.numpy()]) / 4)
    as_tensors = {name: torch.from_numpy(value) for name, value in first.items()}
    second = by_hand(as_tensors, (softmax(logits(as_tensors)) - np.eye(3)[Y.numpy()]) / 4)
    want = {name: second[name] - LR * mu * (first[name] - w[name].double().numpy()) for name in first}
    check(got, want)


def test_unsquared_proximal_term_is_skipped_on_the_first_batch_and_has_no_nan() -> None:
    w = linear_weights(3, 3)
    plain = one_step(CrossEntropy(), w)
    check(one_step(CrossEntropy() + 5.0 * Proximal(power=1, skip_first_batch=True), w), plain)
    check(one_step(CrossEntropy() + 5.0 * Proximal(power=1), w), plain)  # gradient 0, not NaN, at the anchor


def test_multilabel_step_with_and_without_unannotated_classes() -> None:
    y = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 0]])
    w = linear_weights(3, 2)
    sigma = 1 / (1 + np.exp(-logits(w)))
    for loss, mask in (
        (BinaryCrossEntropy(), np.array([1.0, 1.0])),
        (PartialClass(adjust=0.0), np.array([1.0, 0.0])),
    ):
        site = make_site(X, y, 2, annotated=(0,))
        recipe = Recipe(batch_size=4, lr=LR, objective=as_objective(loss))
        got = {k: v.double().numpy() for k, v in train_one(TrainingJob(site, w, recipe)).weights.items()}
        check(got, by_hand(w, (sigma - y.numpy()) * mask / mask.sum() / 4))


def test_corrected_labels_are_trained_on_and_given_ones_stay() -> None:
    w = linear_weights(3, 3)
    site = make_site(X, Y, 3)
    site.keep_evidence("test", labels=torch.tensor([1, 1, 1, 1]))
    got = train_one(TrainingJob(site, w, Recipe(batch_size=4, lr=LR))).weights
    want = by_hand(w, (softmax(logits(w)) - np.eye(3)[[1, 1, 1, 1]]) / 4)
    check({k: v.double().numpy() for k, v in got.items()}, want)
    assert torch.equal(site.given, Y)


def test_momentum_and_weight_decay_follow_torch() -> None:
    w = linear_weights(3, 3)
    got = one_step(CrossEntropy(), w, epochs=3, momentum=0.9, weight_decay=0.01)
    position = {k: v.double().numpy() for k, v in w.items()}
    speed = {k: np.zeros_like(v) for k, v in position.items()}
    for _ in range(3):
        tensors = {k: torch.from_numpy(v) for k, v in position.items()}
        g = (softmax(logits(tensors)) - np.eye(3)[Y.numpy()]) / 4
        gradient = {"layer.weight": g.T @ X.double().numpy(), "layer.bias": g.sum(0)}
        for k in position:
            speed[k] = 0.9 * speed[k] + gradient[k] + 0.01 * position[k]
            position[k] = position[k] - LR * speed[k]
    check(got, position)


def test_mixup_mixes_images_and_targets_alike() -> None:
    w = linear_weights(3, 3)
    job = TrainingJob(make_site(X, Y, 3), w, Recipe(batch_size=4, lr=LR, mixup=1.0))
    [batch] = plan(4, job.recipe, job.generator())
    assert batch.mix_with is not None
    share, order, partner = batch.mix_share, batch.positions.numpy(), batch.mix_with.numpy()
    x, t = X.double().numpy()[order], np.eye(3)[Y.numpy()][order]
    x, t = share * x + (1 - share) * x[partner], share * t + (1 - share) * t[partner]
    z = x @ w["layer.weight"].double().numpy().T + w["layer.bias"].double().numpy()
    g = (softmax(z) - t) / 4
    got = train_one(job).weights
    np.testing.assert_allclose(
        got["layer.weight"].numpy(), w["layer.weight"].numpy() - LR * g.T @ x, rtol=1e-4, atol=1e-6
    )


def test_clip_limits_the_step() -> None:
    w = linear_weights(3, 3)
    got = one_step(CrossEntropy(), w, clip=1e-3)
    moved = np.sqrt(sum(np.square(got[k] - w[k].double().numpy()).sum() for k in got))
    assert moved == pytest.approx(LR * 1e-3, rel=1e-3)


def test_training_leaves_global_state_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one_step(CrossEntropy(), linear_weights(3, 3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("n", "size", "want"),
    [
        (1, 4, [1]),
        (4, 4, [4]),
        (5, 4, [5]),
        (6, 4, [4, 2]),
        (9, 4, [4, 5]),
        (3, 1, [1, 2]),
        (0, 4, []),
    ],
)
def test_batches_never_end_on_a_single_row(n: int, size: int, want: list[int]) -> None:
    assert [stop - start for start, stop in batch_bounds(n, size)] == want
    assert steps(n, Recipe(epochs=3, batch_size=size)) == 3 * len(want)


def test_a_site_with_one_sample_trains_even_with_batch_norm() -> None:
    site = make_site(X[:1], Y[:1], 3, NORM)
    network = site.network({k: v.clone() for k, v in _fresh(site).items()})
    weights = {k: v.detach().clone() for k, v in network.state_dict().items()}
    result = train_one(TrainingJob(site, weights, Recipe(batch_size=4, lr=LR)))
    assert all(torch.isfinite(v).all() for v in result.weights.values())
    assert not torch.equal(result.weights["layer.weight"], weights["layer.weight"])
    assert torch.equal(result.weights["norm.running_mean"], weights["norm.running_mean"])


def _fresh(site: object) -> dict[str, Tensor]:
    from fedsift.models.factory import initial_weights

    return initial_weights(NORM, (3,), 3, seed=0)


def test_an_adjusted_teacher_leaves_its_equal_alone() -> None:
    """Student = teacher, temperature 1, classes 3 : 1. Both adjusted:
    nothing moves. As published, the rare class rises."""
    w = linear_weights(3, 3)
    site = make_site(X, torch.tensor([0, 0, 0, 2]), 3)
    moved = {}
    for adjusted in (True, False):
        term = Distillation(temperature=1.0, adjust_teacher=adjusted)
        recipe = Recipe(batch_size=4, lr=LR, objective=as_objective(term))
        moved[adjusted] = (train_one(TrainingJob(site, w, recipe)).weights["layer.bias"] - w["layer.bias"]).numpy()
    np.testing.assert_allclose(moved[True], 0.0, atol=1e-7)
    assert moved[False][2] > 1e-3
    assert moved[False][0] < -1e-3
