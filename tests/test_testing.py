"""The scripted federation that method authors test against behaves as the engines' do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError, QuorumError
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import Reply, Request, SiteFacts
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study
from fedsift.testing import Scripted

SIZES = {f"site-{number:02d}": 10 * (number + 1) for number in range(7)}


def say(site: str, request: Request[Reply]) -> Reply | None:
    return None if site == "site-03" else Reply()


def test_replies_come_in_the_federations_order_and_silence_is_named() -> None:
    federation = Scripted(SIZES, say).at(2, "train")
    one, other = Request[Reply](), Request[Reply]()
    replies = federation.ask({"site-05": one, "site-03": other, "site-01": one})
    assert replies.sites == ["site-01", "site-05"]
    assert replies.refused == {"site-03": "no reply"}
    assert federation.log == [(2, "site-01", one), (2, "site-03", other), (2, "site-05", one)]
    assert federation.asked_of(Request, 2) == ["site-01", "site-03", "site-05"]
    assert federation.asked_of(Request, 1) == []
    federation.ask(one, ["site-06"])
    assert federation.asked[-1] == {"site-06": one}
    assert federation.requests[-1] is one


def test_mistakes_that_an_engine_refuses_are_refused() -> None:
    federation = Scripted(SIZES, say)
    with pytest.raises(ConfigError, match="no site at all"):
        federation.ask(Request[Reply](), [])
    with pytest.raises(ConfigError, match="unknown site 'north'"):
        federation.ask(Request[Reply](), ["north"])
    with pytest.raises(QuorumError, match="nobody"):
        federation.ask(Request[Reply](), ["site-03"])
    with pytest.raises(ConfigError, match="no weights"):
        federation.initial_weights()


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 1.0])
def test_it_draws_what_the_in_process_engine_draws(fraction: float) -> None:
    federated = Study.from_table({"partition": {"name": "iid", "sites": 7}}).load_data()
    engine = InProcess(federated, run="run", seed=5, model="mlp")
    engine.begin(Round("train", 3, 8), ())
    scripted = Scripted([SiteFacts(site, 1) for site in engine.sites], say, seed=5).at(3, "train", 8)
    assert scripted.choose(fraction) == engine.choose(fraction)
    among = engine.sites[2:]
    assert scripted.choose(fraction, among=among, purpose="x") == engine.choose(fraction, among=among, purpose="x")
    assert np.array_equal(scripted.random("y").random(4), engine.random("y").random(4))


def test_what_is_recorded_is_kept() -> None:
    weights = {"w": torch.ones(1), "mean": torch.zeros(1)}
    federation = Scripted({"a": 1}, say, weights, classes=("cat", "dog"), buffers=["mean"])
    federation.record(loss=1.0)
    federation.record(loss=2.0, other=3)
    federation.record_sites("noisy", {"a": True})
    federation.record_sites("noisy", {"b": False})
    federation.warn("look")
    assert federation.recorded == {"loss": 2.0, "other": 3}
    assert federation.recorded_sites == {"noisy": {"a": True, "b": False}}
    assert federation.warnings == ["look"]
    assert federation.classes == ("cat", "dog")
    assert (federation.initial_weights(), federation.model_buffers()) == (weights, ["mean"])
