"""Co-teaching against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.detection.mixtures import suspects
from fedsift.methods._forgetting import ESTIMATE, FIRST, FORGOTTEN, LOSSES, forgetting, note
from fedsift.methods._two_networks import TrainedPair
from fedsift.methods.co_teaching import CoTeaching, PeersChoice, TrainCoTaught
from fedsift.methods.fedavg import FedAvg
from fedsift.protocol.messages import Reply, Request
from fedsift.testing import Scripted
from fedsift.training.objective import GeneralisedCrossEntropy, PerSite, View
from fedsift.training.recipe import Recipe
from tests.methods.by_hand import plain_weights, site


def seen(own: Any, twin: Any, forgotten: float, present: Any = (1, 1, 1, 1)) -> View:
    """Two classes, label 0 everywhere: a logit of -x on class 0 is a loss of log(1 + e^x)."""

    def logits(values: Any) -> torch.Tensor:
        return torch.stack([-torch.tensor(values, dtype=torch.float64), torch.zeros(4).double()], -1)

    target = torch.tensor([[1.0, 0.0]] * 4).double()
    real = torch.tensor(present, dtype=torch.float64)
    extras = {
        FORGOTTEN: torch.tensor(forgotten),
        LOSSES: torch.zeros(4).double(),
        FIRST: torch.zeros(4, 2).double(),
    }
    return View(logits(own), target, real, twin=logits(twin), extras=extras)


def softplus(x: float) -> float:
    return float(np.log1p(np.exp(x)))


def test_a_network_learns_from_what_the_other_finds_easy() -> None:
    """The twin's losses rise 2, 0, 1, 3: with half left out samples 1 and 2 count, with this network's own losses."""
    view = seen([5.0, 1.0, 2.0, -3.0], [2.0, 0.0, 1.0, 3.0], 0.5)
    value = PeersChoice().value(view)
    assert float(value) == pytest.approx((softplus(1.0) + softplus(2.0)) / 2)
    want = [softplus(x) for x in (5.0, 1.0, 2.0, -3.0)]
    np.testing.assert_allclose(view.kept[LOSSES].numpy(), want)


def test_the_mean_is_divided_once() -> None:
    """The release divides by the number of chosen samples again; then doubling a batch would halve the step."""
    once = PeersChoice().value(seen([1.0] * 4, [0.0] * 4, 0.0))
    assert float(once) == pytest.approx(softplus(1.0))


def test_nothing_is_left_when_all_is_forgotten() -> None:
    view = seen([1.0] * 4, [0.0] * 4, 1.0)
    view.logits.requires_grad_()
    value = PeersChoice().value(view)
    (grad,) = torch.autograd.grad(value, view.logits)
    assert float(value.detach()) == 0.0
    assert bool((grad == 0).all())


def test_padding_is_never_chosen() -> None:
    value = PeersChoice().value(seen([1.0, 2.0, 9.0, 9.0], [0.0, 1.0, -9.0, -9.0], 0.5, (1, 1, 0, 0)))
    assert float(value) == pytest.approx(softplus(1.0))


def test_the_share_left_out_grows() -> None:
    paper, official = CoTeaching(warm=4), CoTeaching(warm=4, ramp="official")
    assert [paper.left_out(t) for t in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert [official.left_out(t) for t in (0, 1, 3, 9)] == pytest.approx([0.0, 1 / 3, 1.0, 1.0])


def test_a_site_estimates_its_own_rate() -> None:
    """Four samples that a linear network cannot but get wrong: their labels contradict thirty others like them. It is
    as sure of one sample as of the other, so that the first 20 are asked: two of them are wrong, less than 4 / 34."""
    rows = [[4.0, 0.0]] * 17 + [[0.0, 4.0]] * 17
    labels = [0] * 15 + [1] * 2 + [1] * 15 + [0] * 2
    here = site(rows, labels, classes=2)
    start = plain_weights([[1.0, -1.0], [-1.0, 1.0]])
    request = TrainCoTaught(start, Recipe(lr=0.01, objective=1.0 * PeersChoice()), twin=start, ramp=0.5)
    assert request.extras(here)[FORGOTTEN] == PerSite(torch.tensor(0.0, dtype=torch.float64))
    reply = request.answer(here)
    assert here.notebook[ESTIMATE] == pytest.approx(0.1)
    flagged = here.evidence.flagged
    assert flagged is not None and torch.nonzero(flagged).flatten().tolist() == [15, 16, 32, 33]
    extra = request.extras(here)[FORGOTTEN]
    assert isinstance(extra, PerSite) and float(extra.tensor) == pytest.approx(0.05)
    assert isinstance(reply, TrainedPair)
    given = TrainCoTaught(start, request.recipe, twin=start, ramp=0.5, noise_rate=0.4)
    extra = given.extras(here)[FORGOTTEN]
    assert isinstance(extra, PerSite) and float(extra.tensor) == pytest.approx(0.2)


def test_what_a_network_says_first_in_a_visit_is_what_counts() -> None:
    """Trained on a label, it owns it; so the second look at samples 0 and 1 is not written down."""
    view = seen([2.0, -2.0, 0.0, 1.0], [0.0] * 4, 0.0)
    view.extras[FIRST][:2] = torch.tensor([[0.6, 1.0], [0.9, 0.0]]).double()
    note(view, torch.tensor([1.0, 2.0, 3.0, 4.0]).double())
    sigmoid = 1 / (1 + np.exp(-1.0))
    want = [[0.6, 1.0], [0.9, 0.0], [0.5, 0.0], [sigmoid, 1.0]]
    np.testing.assert_allclose(view.kept[FIRST].numpy(), want)
    np.testing.assert_allclose(view.kept[LOSSES].numpy(), [1, 2, 3, 4])
    assert not forgetting(site([[1.0], [2.0]], [0, 1], classes=2), 1.0, None)[FIRST].rows.any()  # type: ignore[union-attr]


def test_suspects_are_few_where_all_is_fitted() -> None:
    fitted = np.r_[np.linspace(0.01, 0.05, 50), np.linspace(0.3, 0.6, 20)]
    assert len(suspects(fitted)) == 0
    wrong = np.r_[np.linspace(0.01, 0.05, 50), np.linspace(3.0, 4.0, 20)]
    assert suspects(wrong).tolist() == list(range(50, 70))
    assert suspects([]).tolist() == suspects([1.0] * 9).tolist() == []


def test_two_networks_are_averaged_separately() -> None:
    def answer(name: str, request: Request[Any]) -> Reply:
        assert isinstance(request, TrainCoTaught)
        step = {"a": 1.0, "b": 4.0}[name]
        return TrainedPair(
            {"w": request.weights["w"] + step},
            {"a": 10, "b": 20}[name],
            1.0,
            (),
            {"w": request.twin["w"] - step},
        )

    federation = Scripted({"a": 10, "b": 20}, answer, {"w": torch.zeros(1)})
    method = CoTeaching(fraction=1.0)
    state = method.train(method.start(federation), federation.at(0))
    assert float(state.weights["w"]) == pytest.approx(3.0)
    assert float(state.twin["w"]) == pytest.approx(-3.0)


def test_a_run_that_was_given_the_truth_says_so() -> None:
    assert CoTeaching().oracle is None
    assert CoTeaching(noise_rate=0.4).oracle == "noise rate 0.4 given"
    assert FedAvg().oracle is None
    with pytest.raises(ConfigError, match="noise_rate = 1"):
        CoTeaching(noise_rate=1.0)


def test_any_averaging_method_takes_a_robust_loss() -> None:
    federation = Scripted({"a": 10}, lambda name, request: None, {"w": torch.zeros(1)})
    assert FedAvg(loss="gce").objective(federation) == GeneralisedCrossEntropy()
