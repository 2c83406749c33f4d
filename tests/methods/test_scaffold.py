"""SCAFFOLD against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.methods.scaffold import (
    VARIATE,
    Controlled,
    DriftTerm,
    Scaffold,
    TrainControlled,
    mean_gradient,
    mean_steps,
)
from fedsift.protocol.messages import Reply, Request, Weights
from fedsift.protocol.site import Site
from fedsift.testing import Scripted
from fedsift.training.objective import CrossEntropy, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train
from tests.methods.by_hand import plain_weights, site

NAMES = ("head.weight", "head.bias")
LOSS = as_objective(CrossEntropy())


def here() -> Site:
    return site([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes=2)


def shifting(name: str, request: Request[Any]) -> Reply | None:
    """Site s_i moves the weight by i + 1; with option I its variate changes by 10 (i + 1)."""
    assert isinstance(request, TrainControlled)
    step = float(name[1:]) + 1
    change = {"w": torch.full((1,), 10 * step)} if request.option == "I" else None
    return Controlled({"w": request.weights["w"] + step}, 10, 0.5, change=change)


def two(sizes: tuple[int, int] = (10, 10), answer: Any = shifting) -> Scripted:
    return Scripted({f"s{i}": n for i, n in enumerate(sizes)}, answer, {"w": torch.zeros(1)})


def run_round(method: Scaffold, federation: Scripted, rounds: int = 1) -> Any:
    state = method.start(federation)
    for index in range(rounds):
        state = method.train(state, federation.at(index))
    return state


# The server


def test_option_two_by_hand() -> None:
    """10 samples in batches of 5: K = 2 steps of lr 0.5, so a site that moved by d has the mean gradient -d.

    Round 1 (c = 0): changes -1 and -2, mean model 1.5, c = (-1 - 2) / 2 = -1.5.
    Round 2: changes -1 + 1.5 = 0.5 and -2 + 1.5 = -0.5; the model moves by 1.5 again, c stays -1.5.
    """
    method = Scaffold(local=Recipe(batch_size=5, lr=0.5))
    state = run_round(method, two())
    assert state.weights["w"].item() == pytest.approx(1.5)
    assert state.variate["w"].item() == pytest.approx(-1.5)
    state = run_round(method, two(), rounds=2)
    assert state.weights["w"].item() == pytest.approx(3.0)
    assert state.variate["w"].item() == pytest.approx(-1.5)


def test_option_one_takes_the_change_that_the_site_tells() -> None:
    state = run_round(Scaffold(option="I", server_lr=0.5), two())
    assert state.variate["w"].item() == pytest.approx((10 + 20) / 2)
    assert state.weights["w"].item() == pytest.approx(0.5 * 1.5)


def test_a_site_that_does_not_reply_changes_nothing_but_counts() -> None:
    def answer(name: str, request: Request[Any]) -> Reply | None:
        return None if name == "s1" else shifting(name, request)

    state = run_round(Scaffold(local=Recipe(batch_size=5, lr=0.5)), two(answer=answer))
    assert state.weights["w"].item() == pytest.approx(1.0)
    assert state.variate["w"].item() == pytest.approx(-1.0 / 2)


def test_sizes_weigh_the_correction() -> None:
    """Sizes 10 and 30: s = 1/2 and 3/2; the changes -1 and -2 then count 1/2 and 3/2."""
    for by_size, sizes, variate in ((True, [0.5, 1.5], (-0.5 - 3.0) / 2), (False, [1.0, 1.0], -1.5)):
        federation = two((10, 30))
        method = Scaffold(by_size=by_size, local=Recipe(batch_size=5, lr=0.5))
        state = run_round(method, federation)
        assert [own.relative_size for _, _, own in federation.log] == pytest.approx(sizes)
        assert state.variate["w"].item() == pytest.approx(variate)


def test_what_is_asked() -> None:
    federation = two()
    run_round(Scaffold(clip=3.0), federation)
    [ask, _] = [own for _, _, own in federation.log]
    assert ask.recipe.clip == 3.0
    assert ask.recipe.objective.terms == ((1.0, CrossEntropy()), (1.0, DriftTerm()))
    assert ask.loss is None


def test_steps_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.optimiser = 'adam'.*option = 'I'"):
        Scaffold(local=Recipe(optimiser="adam"))
    Scaffold(local=Recipe(optimiser="adam"), option="I")
    with pytest.raises(ConfigError, match="server_lr"):
        Scaffold(server_lr=0.0)


def test_steps_with_momentum() -> None:
    """Under a constant gradient 1 the speeds are 1, 1.5, 1.75: together 4.25 steps."""
    assert mean_steps(3, 0.0) == 3
    assert mean_steps(3, 0.5) == pytest.approx(4.25)


# A site


def asked(option: Any, variate: Weights, start: Weights, **changes: Any) -> TrainControlled:
    recipe = Recipe(batch_size=2, lr=0.5, objective=LOSS + DriftTerm(), **changes)
    loss = LOSS if option == "I" else None
    return TrainControlled(start, recipe, variate=variate, option=option, loss=loss)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_step_at_a_site_by_hand(option: Any) -> None:
    """y = w - lr (g + c - c_k): c_k is 0 on the first visit. One full-batch step of either option measures g itself:
    (w - y) / lr - c + c_k = g + (c - c_k) - c + c_k = g. So c_k becomes g; the second visit moves by -lr c alone."""
    start = plain_weights([[0.2, 0.0], [0.0, 0.1]])
    server = {name: torch.full_like(start[name], 0.25) for name in NAMES}
    plain = Train(start, Recipe(batch_size=2, lr=0.5)).answer(here())
    gradient = {name: (start[name] - plain.weights[name]) / 0.5 for name in NAMES}
    place, ask = here(), asked(option, server, start)
    first = ask.answer(place)
    for name in NAMES:
        torch.testing.assert_close(first.weights[name], start[name] - 0.5 * (gradient[name] + 0.25))
        torch.testing.assert_close(place.notebook[VARIATE][name], gradient[name])
    second = ask.answer(place)
    for name in NAMES:
        torch.testing.assert_close(second.weights[name], start[name] - 0.5 * server[name])
        torch.testing.assert_close(place.notebook[VARIATE][name], gradient[name], atol=1e-6, rtol=1e-5)
    assert first.refusal(ask, place.facts) is None
    assert (first.change is None) == (option == "II")


def test_server_and_site_agree_on_the_change() -> None:
    start = plain_weights([[0.2, 0.0], [0.0, 0.1]])
    server = {name: torch.full_like(start[name], -0.1) for name in NAMES}
    ask = asked("II", server, start, epochs=3, momentum=0.5)
    place = here()
    reply = ask.answer(place)
    for name, change in ask.change_by_steps(reply).items():
        assert torch.equal(place.notebook[VARIATE][name], change)  # c_k was 0


def test_replies_that_do_not_fit_are_refused() -> None:
    start = plain_weights([[0.2, 0.0], [0.0, 0.1]])
    server = {name: torch.zeros_like(start[name]) for name in NAMES}
    place = here()
    good = asked("I", server, start).answer(place)
    facts = place.facts
    assert "does not fit option II" in str(good.refusal(asked("II", server, start), facts))
    assert "does not fit option I" in str(replace(good, change=None).refusal(asked("I", server, start), facts))
    assert good.change is not None
    odd = {**good.change, "head.bias": torch.zeros(1)}
    assert "shape" in str(replace(good, change=odd).refusal(asked("I", server, start), facts))


def test_mean_gradient_by_hand() -> None:
    """Logits 0 for two classes: p - y = (-1/2, 1/2) and (1/2, -1/2); bias gradients cancel."""
    got = mean_gradient(here(), plain_weights([[0.0, 0.0], [0.0, 0.0]]), LOSS)
    assert got["head.weight"].tolist() == [[-0.25, 0.25], [0.25, -0.25]]
    assert got["head.bias"].tolist() == [0.0, 0.0]
