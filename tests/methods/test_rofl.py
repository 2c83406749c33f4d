"""RoFL's formulas by hand and in NumPy, and the round that uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsift.methods import rofl
from fedsift.methods._forgetting import ESTIMATE, FIRST, FORGOTTEN, LOSSES
from fedsift.methods.rofl import (
    CENTROIDS,
    PSEUDO,
    RobustlyTrained,
    RobustTerm,
    RoFL,
    RoFLState,
    TrainRobustly,
    first_centroids,
    plausible,
)
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.notebook import Notebook
from fedsift.testing import Scripted
from fedsift.training.objective import View, as_objective
from fedsift.training.recipe import Recipe
from tests.methods.by_hand import plain_weights, site

# Formulas ------------------------------------------------------------------------------------------------


def test_class_means_and_an_empty_class() -> None:
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    labels = F.one_hot(torch.tensor([0, 0, 1]), 3).float()
    found = rofl.class_means(features, labels, torch.tensor([1.0, 1.0, 1.0]))
    assert found.tolist() == [[2.0, 0.0], [0.0, 8.0], [0.0, 0.0]]
    assert rofl.class_means(features, labels, torch.tensor([0.0, 1.0, 0.0])).tolist()[0] == [3.0, 0.0]
    nobody = rofl.class_means(features, labels, torch.zeros(3))
    assert not nobody.any()


def test_centroids_follow_by_the_square_of_their_cosine() -> None:
    """cos((1, 0), (3, 4)) = 0.6: 0.64 (1, 0) + 0.36 (3, 4); an absent class and a right angle stay."""
    old = torch.tensor([[1.0, 0.0], [2.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    seen = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    expected = [[0.64 + 1.08, 1.44], [2.0, 1.0], [1.0, 0.0]]
    assert rofl.followed(old, seen).tolist() == [pytest.approx(row) for row in expected]


def test_common_centroids_by_hand() -> None:
    """Class 0: cosines 1, 0.6 and -1, of which the last counts for nothing: (1 (2, 0) + 0.6 (3, 4)) / 1.6."""
    own = torch.tensor([[[2.0, 0.0]], [[3.0, 4.0]], [[-1.0, 0.0]]], dtype=torch.float64)
    previous = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert rofl.common_centroids(previous, own)[0].tolist() == pytest.approx([3.8 / 1.6, 2.4 / 1.6])


def test_common_centroids_without_any_agreement() -> None:
    own = torch.tensor([[[0.0, 2.0], [0.0, 0.0]], [[0.0, 4.0], [0.0, 0.0]]], dtype=torch.float64)
    first = rofl.common_centroids(None, own)
    assert first.tolist() == [[0.0, 3.0], [0.0, 0.0]]  # the mean; nobody has the second class
    at_right_angles = torch.tensor([[1.0, 0.0], [5.0, 6.0]], dtype=torch.float64)
    after = rofl.common_centroids(at_right_angles, own)
    assert after.tolist() == [[0.0, 3.0], [5.0, 6.0]]  # the release divides by about 0 here
    alone = torch.tensor([[[0.0, 2.0]], [[0.0, 0.0]]], dtype=torch.float64)
    assert rofl.common_centroids(None, alone).tolist() == [[0.0, 2.0]]  # a site without the class has no say


# The loss --------------------------------------------------------------------------------------------------


def batch(seed: int, rows: int = 6, classes: int = 3, width: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "z": rng.normal(size=(rows, classes)),
        "phi": rng.normal(size=(rows, width)),
        "f": rng.normal(size=(classes, width)),
        "y": rng.integers(classes, size=rows),
        "pseudo": rng.integers(classes, size=rows),
    }


def by_numpy(b: dict[str, Any], rate: float, lambda_cen: float, lambda_e: float, total: bool) -> Any:
    """Loss and centroids, sample by sample."""
    p = np.exp(b["z"]) / np.exp(b["z"]).sum(1, keepdims=True)
    ce = -np.log(p[np.arange(len(p)), b["y"]])
    chosen = np.argsort(ce, kind="stable")[: int((1 - rate) * len(ce) + 1e-6)]
    fit = away = 0.0
    sums, counts = np.zeros_like(b["f"]), np.zeros(len(b["f"]))
    for i in chosen:
        cosine = b["f"] @ b["phi"][i] / np.linalg.norm(b["f"], axis=1) / np.linalg.norm(b["phi"][i])
        keeps = cosine.argmax() == b["y"][i]
        label = b["y"][i] if keeps else b["pseudo"][i]
        fit += -np.log(p[i, label]) - lambda_e * (p[i] * np.log(p[i])).sum()
        if keeps:
            away += ((b["phi"][i] - b["f"][b["y"][i]]) ** 2).sum()
        sums[label] += b["phi"][i]
        counts[label] += 1
    new = b["f"].copy()
    for c in np.flatnonzero(counts):
        g = sums[c] / counts[c]
        s = (g @ b["f"][c] / np.linalg.norm(g) / np.linalg.norm(b["f"][c])) ** 2
        new[c] = (1 - s) * b["f"][c] + s * g
    scale = 1 if total else len(chosen) * b["phi"].shape[1]
    return fit / len(chosen) + lambda_cen * away / scale, new


def seen(b: dict[str, Any], rate: float, padding: int = 0) -> View:
    def rows(values: Any) -> torch.Tensor:
        array = np.concatenate([values, np.full((padding, *values.shape[1:]), 3)]) if padding else values
        return torch.from_numpy(array)

    classes = b["z"].shape[1]
    y, pseudo = (
        F.one_hot(torch.from_numpy(np.concatenate([b[key], np.zeros(padding, int)])), classes).double()
        for key in ("y", "pseudo")
    )
    real = torch.cat([torch.ones(len(b["y"])), torch.zeros(padding)]).double()
    extras = {
        FORGOTTEN: torch.tensor(rate, dtype=torch.float64),
        CENTROIDS: torch.from_numpy(b["f"]),
        PSEUDO: pseudo,
        LOSSES: torch.zeros(len(real)),
        FIRST: torch.zeros(len(real), 2),
    }
    return View(rows(b["z"]), y, real, features=rows(b["phi"]), extras=extras)


@pytest.mark.parametrize("rate", [0.0, 0.34, 0.5])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("padding", [0, 2])
def test_the_loss_equals_its_transcription(rate: float, total: bool, padding: int) -> None:
    for seed in range(5):
        b = batch(seed)
        view = seen(b, rate, padding)
        expected, centroids = by_numpy(b, rate, 0.7, 0.8, total)
        assert float(RobustTerm(0.7, 0.8, total=total).value(view)) == pytest.approx(expected, rel=1e-9)
        assert np.allclose(view.kept[CENTROIDS].numpy(), centroids)


def test_a_cohort_is_its_sites() -> None:
    parts = [seen(batch(1), 0.2), seen(batch(2), 0.5)]
    stacked = View(
        *(torch.stack([getattr(part, name) for part in parts]) for name in ("logits", "target", "present")),
        features=torch.stack([part.features for part in parts if part.features is not None]),
        extras={key: torch.stack([part.extras[key] for part in parts]) for key in parts[0].extras},
    )
    term = RobustTerm(1.0, 0.8)
    assert term.value(stacked).tolist() == pytest.approx([float(term.value(part)) for part in parts])
    assert np.allclose(stacked.kept[CENTROIDS][1], parts[1].kept[CENTROIDS])


def test_a_batch_that_is_left_out_altogether_costs_nothing() -> None:
    view = seen(batch(3, rows=2), 0.99)
    assert float(RobustTerm().value(view)) == 0.0
    assert torch.equal(view.kept[CENTROIDS], view.extras[CENTROIDS])


def test_only_pull_moves_features() -> None:
    for pull in (True, False):
        view = seen(batch(0), 0.0)
        assert view.features is not None
        view.features.requires_grad_()
        view.logits.requires_grad_()
        value = RobustTerm(1.0, 0.0, pull=pull).value(view)
        [gradient] = torch.autograd.grad(value, view.features, allow_unused=True)
        assert (gradient is not None and bool(gradient.any())) == pull


# At a site and at the server -------------------------------------------------------------------------------

SAMPLES = [[2.0, 0.0], [3.0, 0.5], [0.0, 2.0], [0.5, 3.0], [2.5, 0.2], [0.1, 2.2]]
GIVEN = [0, 0, 1, 1, 1, 1]  # the fifth lies with class 0
IDENTITY = plain_weights([[2.0, 0.0], [0.0, 2.0]])


def ask(**changes: Any) -> TrainRobustly:
    recipe = Recipe(lr=0.01, batch_size=6, objective=as_objective(RobustTerm(1.0, 0.1)))
    return TrainRobustly(IDENTITY, recipe, **{"classes": 2, **changes})


def test_the_first_centroids_are_class_means() -> None:
    found = first_centroids(site(SAMPLES, GIVEN, classes=3), plain_weights([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    assert found.tolist()[0] == pytest.approx([2.5, 0.25])
    assert found.tolist()[1] == pytest.approx([3.1 / 4, 7.4 / 4])
    assert found.tolist()[2] == [0.0, 0.0]  # a class that the site lacks


def test_a_visit_estimates_the_noise_and_sends_centroids() -> None:
    here = site(SAMPLES, GIVEN, classes=2)
    reply = ask().answer(here)
    assert isinstance(reply, RobustlyTrained)
    assert reply.centroids.shape == (2, 2)
    assert here.notebook[ESTIMATE] == pytest.approx(1 / 6)
    assert here.evidence.flagged is not None
    assert here.evidence.flagged.tolist() == [False] * 4 + [True, False]
    assert reply.refusal(ask(), here.facts) is None
    other = ask(centroids=torch.zeros(2, 5))
    assert "centroids have shape (2, 2), asked were (2, 5)" in (reply.refusal(other, here.facts) or "")


def test_the_rate_is_given_or_the_sites_own() -> None:
    book = Notebook()
    book[ESTIMATE] = 0.4
    extras = ask(ramp=0.5).extras(site(SAMPLES, GIVEN, classes=2, notebook=book))
    assert float(extras[FORGOTTEN].tensor) == pytest.approx(0.2)  # type: ignore[union-attr]
    extras = ask(ramp=0.5, forget=0.3).extras(site(SAMPLES, GIVEN, classes=2, notebook=book))
    assert float(extras[FORGOTTEN].tensor) == pytest.approx(0.15)  # type: ignore[union-attr]
    assert float(ask().extras(site(SAMPLES, GIVEN, classes=2))[FORGOTTEN].tensor) == 0.0  # type: ignore[union-attr]


def test_pseudo_labels_come_from_the_received_model_after_t_pl() -> None:
    here = site(SAMPLES, GIVEN, classes=2)
    before, after = (ask(refine=now).extras(here)[PSEUDO].rows for now in (False, True))  # type: ignore[union-attr]
    assert before.argmax(-1).tolist() == GIVEN
    assert after.argmax(-1).tolist() == [0, 0, 1, 1, 0, 1]
    unsure = ask(refine=True, sure=1.0).extras(here)[PSEUDO].rows  # type: ignore[union-attr]
    assert unsure.argmax(-1).tolist() == GIVEN  # a model that is never so sure replaces nothing


def test_a_label_that_the_model_holds_for_second_is_not_replaced() -> None:
    """Three classes, the upper two are plausible; of two only the first is, of four the first two."""
    p = torch.tensor([[0.5, 0.3, 0.2]] * 3)
    assert plausible(p, torch.tensor([0, 1, 2])).tolist() == [True, True, False]
    assert plausible(torch.tensor([[0.6, 0.4]] * 2), torch.tensor([0, 1])).tolist() == [True, False]
    assert plausible(torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 4), torch.arange(4)).tolist() == [False] * 2 + [True] * 2
    here = site([[2.0, 0.0]] * 3, [0, 1, 2], classes=3)
    start = plain_weights([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    recipe = ask().recipe
    for guarded, want in ((True, [0, 1, 0]), (False, [0, 0, 0])):
        request = TrainRobustly(start, recipe, classes=3, refine=True, guarded=guarded)
        assert request.extras(here)[PSEUDO].rows.argmax(-1).tolist() == want  # type: ignore[union-attr]


def answer(name: str, request: Request[Any]) -> Reply | None:
    assert isinstance(request, TrainRobustly)
    number = float(name)
    return RobustlyTrained({"w": torch.tensor([number])}, int(10 * number), 0.5, (), torch.full((2, 3), number))


def test_the_server_averages_models_and_centroids() -> None:
    federation = Scripted({"1": 10, "3": 30}, answer, {"w": torch.zeros(1)})
    method = RoFL(rounds=100, forget_rounds=10, pseudo_from=20)
    state = method.train(method.start(federation), federation.at(0))  # type: ignore[arg-type]
    assert float(state.weights["w"]) == pytest.approx(2.5)
    assert state.centroids is not None
    assert state.centroids.tolist() == [[2.0] * 3] * 2
    first = federation.log[0][2]
    assert isinstance(first, TrainRobustly)
    assert (first.ramp, first.refine, first.centroids) == (0.0, False, None)
    assert first.recipe.objective.terms[0][1] == RobustTerm(0.0, 0.8)
    method.train(state, federation.at(5))
    later = federation.log[-1][2]
    assert isinstance(later, TrainRobustly)
    assert (later.ramp, later.refine) == (0.5, False)
    assert later.recipe.objective.terms[0][1] == RobustTerm(0.25, 0.8)
    method.train(state, federation.at(20))
    assert federation.log[-1][2].refine  # type: ignore[attr-defined]
    released = RoFL(by_size=False)
    assert float(released.train(RoFLState({"w": torch.zeros(1)}), federation).weights["w"]) == pytest.approx(2.0)


def test_a_given_rate_is_an_oracle() -> None:
    assert RoFL().oracle is None
    assert RoFL(forget=0.4).oracle == "noise rate 0.4 given"
