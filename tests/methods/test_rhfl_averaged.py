"""RHFL's confidence with FedAvg: weights by hand, and every switch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import FederatedDataset
from fedsift.methods.rhfl import RHFL, RHFLAveraged
from fedsift.runtime.in_process import InProcess
from fedsift.training.recipe import Recipe
from tests.methods.rhfl_small import federated, federation, play

BASE = RHFLAveraged(rounds=3, local=Recipe(batch_size=4, lr=0.2))


def test_the_first_round_weighs_all_alike_and_later_ones_by_confidence() -> None:
    """L: 2 -> 1 gives F = 1; 2 -> 1.6 gives F = 0.25; w = 1 + 0.5 F / 1.25 for two sites."""
    first = BASE.confidence_weights({"a": 2.0, "b": 2.0}, {}, len(federation().classes))
    assert first["a"] == first["b"]
    found = BASE.confidence_weights({"a": 1.0, "b": 1.6}, {"a": 2.0, "b": 2.0}, len(federation().classes))
    high, low = math.exp(1 + 0.4), math.exp(1 + 0.1)
    assert found == pytest.approx({"a": high / (high + low), "b": low / (high + low)})
    # a site that joins later has no drop yet: F = 0 for it
    late = BASE.confidence_weights({"a": 1.0, "b": 1.6}, {"a": 2.0}, len(federation().classes))
    assert late == pytest.approx(
        {"a": math.exp(1.5) / (math.exp(1.5) + math.e), "b": math.e / (math.exp(1.5) + math.e)}
    )


def test_the_average_uses_these_weights() -> None:
    seen: list[dict[str, Any]] = []

    class Watched(InProcess):
        def deliver(self, envelopes: Any, deadline: float) -> Any:
            answers = super().deliver(envelopes, deadline)
            seen.append({name: answer.reply for name, answer in answers.items()})
            return answers

    fed = federation(kind=Watched)
    state = play(dataclasses.replace(BASE, rounds=2), fed)
    losses = [{name: reply.then[0].value for name, reply in round_.items()} for round_ in seen]
    shares = BASE.confidence_weights(losses[1], losses[0], len(fed.classes))
    expected = sum(shares[name] * reply.weights["weight"] for name, reply in seen[1].items())
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(state.weights["weight"], expected, atol=1e-6)
    assert state.losses == pytest.approx(losses[1])


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 4},
        {"fraction": 0.5},
        {"sl": False},
        {"ccr": False},
        {"by_size": True},
        {"alpha": 1.0},
        {"beta": 0.1},
        {"rce_log0": -4.0},
        {"eta": 5.0},
    ],
    ids=str,
)
def test_every_switch_does_something(change: dict[str, Any]) -> None:
    data = federated()
    rows = {**data.rows, "site-0": data.rows["site-0"][:2]}
    given = {**data.given, "site-0": data.given["site-0"][:2]}
    data = dataclasses.replace(data, rows=rows, given=given)
    results = [play(method, federation(data)) for method in (BASE, dataclasses.replace(BASE, **change))]
    one, two = (state.weights["weight"] for state in results)
    assert float((one - two).abs().max()) > 1e-6


def test_ccr_mode_guards_against_rising_losses() -> None:
    before, now = dict.fromkeys("abc", 1.0), {"a": 2.0, "b": 1.1, "c": 0.9}
    leaders = {}
    for mode in ("official", "abs", "clip"):
        found = RHFLAveraged(ccr_mode=mode).confidence_weights(now, before, len(federation().classes))  # type: ignore[arg-type]
        leaders[mode] = max(found, key=lambda s: found[s])
    assert leaders == {"official": "a", "abs": "c", "clip": "c"}


def with_held_out() -> FederatedDataset:
    """Each site keeps its last two samples away from training."""
    data = federated(each=8)
    rows = {site: own[:6] for site, own in data.rows.items()}
    held = {site: own[6:] for site, own in data.rows.items()}
    given, kept = ({site: own[part] for site, own in data.given.items()} for part in (slice(6), slice(6, 8)))
    return dataclasses.replace(data, rows=rows, given=given, held_out=held, held_out_given=kept)


def test_held_out_confidence_is_asked_of_samples_that_nobody_trained_on() -> None:
    method, data = dataclasses.replace(BASE, ccr_mode="held-out", sl=False), with_held_out()
    seen: list[dict[str, Any]] = []

    class Watched(InProcess):
        def deliver(self, envelopes: Any, deadline: float) -> Any:
            answers = super().deliver(envelopes, deadline)
            seen.append({name: answer.reply for name, answer in answers.items()})
            return answers

    fed = federation(data, kind=Watched)
    state = play(dataclasses.replace(method, rounds=1), fed)
    for site, reply in seen[0].items():
        images = torch.from_numpy(data.dataset.images[data.held_out[site]]).double()
        logits = images @ reply.weights["weight"].double().T
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.held_out_given[site]))
        assert (reply.then[0].value, reply.then[0].samples) == (pytest.approx(float(loss), abs=1e-5), 2)
    skill = {site: min(max(1 - loss / math.log(3), 0.0), 1.0) for site, loss in state.losses.items()}
    shares = method.confidence_weights(state.losses, {}, len(fed.classes))
    total = sum(skill.values())
    assert total > 0
    assert shares == pytest.approx({site: 1.5 * own / total for site, own in skill.items()})


def test_held_out_confidence_needs_held_out_samples() -> None:
    for method in (dataclasses.replace(BASE, ccr_mode="held-out"), RHFL(ccr_mode="held-out")):
        with pytest.raises(ConfigError, match="site-0.*holds nothing out; set evaluate.held_out"):
            play(method, federation())
        play(dataclasses.replace(method.tiny(), ccr=False), federation())  # nobody measures, nobody needs them


def test_rhfl_weighs_teachers_by_their_held_out_losses() -> None:
    method = dataclasses.replace(RHFL(ccr_mode="held-out").tiny(), local=Recipe(batch_size=4, lr=0.2))
    fed = federation(with_held_out())
    state = play(method, fed, stop=2)  # before the last round, after which nobody shows anything
    weights = method.confidence(state, fed)
    best = min(state.losses, key=lambda site: state.losses[site])
    assert weights[best] == max(weights.values())
    assert sum(weights.values()) == pytest.approx(1.5)
