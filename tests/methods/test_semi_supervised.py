"""FedFixMatch and CBAFed in FedMLP's multi-label forms, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.formulas.losses import confident_tags
from fedsift.methods.cbafed import CBAFed, TagByThreshold, UsedCount, class_thresholds
from fedsift.methods.fedfixmatch import FedFixMatch
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import SureOfFirstView, View
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import plain_weights, site


def test_tags_of_sure_entries() -> None:
    p = torch.tensor([[0.9, 0.8, 0.5], [0.1, 0.2, 0.95]]).double()
    labels, sure = confident_tags(p, 0.85)
    assert labels.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert sure.tolist() == [[True, False, False], [True, False, True]]
    _, sure = confident_tags(p, torch.tensor([0.95, 0.7, 0.5]).double())
    assert sure.tolist() == [[False, True, False], [False, True, True]]


def views(weak: list[list[float]], strong: list[list[float]], known: list[float], present: Any = None) -> View:
    z = torch.logit(torch.tensor(weak + strong).double())
    mask = torch.tensor(known).double().expand(len(z), -1)
    real = torch.ones(len(z)).double() if present is None else torch.tensor(present).double()
    return View(z, torch.zeros_like(z), real, known=mask)


class TestFixMatch:
    weak, strong = [[0.5, 0.9, 0.1], [0.5, 0.9, 0.6]], [[0.5, 0.6, 0.3], [0.5, 0.7, 0.5]]

    def test_a_sample_counts_if_all_its_missing_classes_are_sure(self) -> None:
        """Class 0 is annotated. Sample 0 is sure of 1 and 2: (-log .6 - log .7) / 2; sample 1 is not: 0."""
        value = SureOfFirstView(0.8).value(views(self.weak, self.strong, [1, 0, 0]))
        assert float(value) == pytest.approx(-(np.log(0.6) + np.log(0.7)) / 2 / 2)

    def test_or_every_sure_entry(self) -> None:
        value = SureOfFirstView(0.8, "entry").value(views(self.weak, self.strong, [1, 0, 0]))
        assert float(value) == pytest.approx(-(np.log(0.6) + np.log(0.7) + np.log(0.7)) / 2 / 2)

    def test_nothing_is_missing_or_nothing_is_sure(self) -> None:
        assert float(SureOfFirstView(0.8).value(views(self.weak, self.strong, [1, 1, 1]))) == 0
        assert float(SureOfFirstView(0.99).value(views(self.weak, self.strong, [1, 0, 0]))) == 0

    def test_padding_does_not_count(self) -> None:
        value = SureOfFirstView(0.8).value(views(self.weak, self.strong, [1, 0, 0], [0.0, 1.0, 0.0, 1.0]))
        assert float(value) == 0

    def test_the_first_view_gets_no_gradient(self) -> None:
        view = views(self.weak, self.strong, [1, 0, 0])
        view.logits.requires_grad_()
        (grad,) = torch.autograd.grad(SureOfFirstView(0.8).value(view), view.logits)
        assert bool((grad[:2] == 0).all())
        assert bool((grad[2, 1:] != 0).all())

    def test_two_views_are_trained_on(self) -> None:
        federation = Scripted({"a": 10}, lambda name, request: None, {"w": torch.zeros(1)}, multilabel=True)
        method = FedFixMatch()
        assert method.recipe(method.objective(federation)).views == 2


class TestCBAFed:
    def test_thresholds_by_hand(self) -> None:
        """Shares .1, .1, .8: std .33; .1 + .45 - .33 = .22 is raised to .55, .8 + .45 - .33 = .92 stays."""
        std = np.std([0.1, 0.1, 0.8])
        np.testing.assert_allclose(class_thresholds([1, 1, 8], 0.45, 0.55, 0.95), [0.55, 0.55, 0.8 + 0.45 - std])
        np.testing.assert_allclose(class_thresholds([0, 0], 0.45, 0.55, 0.9), [0.9, 0.9])

    def test_a_site_tags_what_the_model_is_sure_of(self) -> None:
        """Class 0 is annotated and stays as it is given; class 1 is tagged where |z| is large."""
        here = site([[3.0], [-3.0], [0.1]], [[1, 0], [0, 0], [1, 0]], classes=2, annotated=(0,))
        weights = plain_weights([[1.0], [1.0]])
        used = TagByThreshold(2, (0.6, 0.8), weights).answer(here)
        assert used.labels == 5
        assert used.positives.tolist() == [2, 1]
        assert here.labels.tolist() == [[1, 1], [0, 0], [1, 0]]
        assert here.evidence.known is not None
        assert here.evidence.known.tolist() == [[1, 1], [1, 1], [1, 0]]
        again = TagByThreshold(2, (0.6, 0.999), weights).answer(here)
        assert again.labels == 3, "earlier tags are forgotten"

    def test_without_thresholds_only_counts(self) -> None:
        here = site([[3.0], [-3.0]], [[1, 0], [1, 0]], classes=2, annotated=(0,))
        used = TagByThreshold(2).answer(here)
        assert (used.labels, used.positives.tolist()) == (2, [2, 0])
        assert here.evidence.known is None

    def test_what_a_reply_may_say(self) -> None:
        request, facts = TagByThreshold(2), site([[1.0]] * 3, [[0, 0]] * 3, classes=2).facts
        good = torch.tensor([1, 2])
        assert UsedCount(6, good).refusal(request, facts) is None
        assert "labels = 7" in (UsedCount(7, good).refusal(request, facts) or "")
        assert "shape" in (UsedCount(6, torch.tensor([1])).refusal(request, facts) or "")
        assert "0 to the 3" in (UsedCount(6, torch.tensor([1, 4])).refusal(request, facts) or "")

    def test_labels_weigh_and_models_are_drawn_back(self) -> None:
        """Sites move by 1 and 4 and use 30 and 10 labels: the average moves by 1.75. Every second round half of the
        model of two rounds ago comes back; the first such round has none."""

        def answer(name: str, request: Request[Any]) -> Reply:
            assert isinstance(request, Train)
            step, labels = {"a": (1.0, 30), "b": (4.0, 10)}[name]
            return Trained({"w": request.weights["w"] + step}, 20, 1.0, (UsedCount(labels, torch.tensor([3, 1])),))

        federation = Scripted({"a": 20, "b": 20}, answer, {"w": torch.zeros(1)}, multilabel=True)
        method = CBAFed(every=2, back=0.5)
        state = method.start(federation)
        seen = []
        for index in range(4):
            state = method.tag(state, federation.at(index))
            seen.append(float(state.weights["w"]))
        assert seen == pytest.approx([1.75, 3.5, 5.25, (7.0 + 3.5) / 2])
        assert state.positives.tolist() == [6, 2]
        np.testing.assert_allclose(federation.recorded["thresholds"], [0.95, 0.55])
