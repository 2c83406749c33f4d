"""What leaves a site is declared: every method, under every switch, sends what its stages list and nothing else."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import FederatedDataset
from fedsift.methods._base import methods
from fedsift.methods.fedavg import FedAvg
from fedsift.methods.feddyn import FedDyn
from fedsift.methods.fedmedian import FedMedian
from fedsift.methods.power_of_choice import PowerOfChoice
from fedsift.protocol.disclosure import declared, declared_replies, replies_of
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import Reply, ReplyEnvelope, Request, RequestEnvelope, disclosed
from fedsift.protocol.method import Method, Stage
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.federation import reply_names
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study
from fedsift.training.requests import Evaluate, Indicate, Train
from tests.promises.federations import contract_table

FEW = 40
"""Samples a site: the messages are those of a long run."""
INSIDE = {"usual": (FedDyn(), FedMedian(), PowerOfChoice(pool=3))}
"""Methods to put into a field that holds one."""


def switches(method: Method) -> list[dict[str, Any]]:
    """Every switch of a method turned once: each bool the other way, each other word of a choice."""
    hints = typing.get_type_hints(type(method))
    found: list[dict[str, Any]] = [{}]
    for field in dataclasses.fields(method):
        now = getattr(method, field.name)
        found += [{field.name: other} for other in _others(hints[field.name], now)]
        found += [{field.name: part} for part in INSIDE.get(field.name, ())]
    return found


def _others(hint: Any, now: Any) -> list[Any]:
    if hint is bool:
        return [not now]
    if typing.get_origin(hint) is typing.Literal:
        return [word for word in typing.get_args(hint) if word != now]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [word for part in typing.get_args(hint) for word in _others(part, now)]
    return []


def variants() -> list[tuple[str, dict[str, Any]]]:
    """The switches that may change messages, and all of those whose declaration differs, two at a time."""
    every = []
    for name in methods:
        usual = methods.get(name)().tiny()
        turned = switches(usual)
        telling = [change for change in turned[1:] if _shape(usual, change) != _shape(usual, {})]
        pairs = [{**one, **two} for i, one in enumerate(telling) for two in telling[i + 1 :] if _apart(one, two)]
        every += [(name, change) for change in [{}, *telling, *pairs]]
    return every


def _apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return not set(one) & set(two)


def _shape(method: Method, change: Mapping[str, Any]) -> Any:
    return declared(dataclasses.replace(method, **change))


NETWORKS = {"label-audit": ("mlp", "tests.api.own:Line")}
"""Methods whose messages follow from the network: all of these together send what is declared."""


def _small(name: str, folder: Path, model: str = "mlp") -> tuple[Study, FederatedDataset]:
    table = contract_table(name, folder)
    study = Study.from_table({**table, "model": {"name": model}})
    federated = study.load_data()
    return study, dataclasses.replace(
        federated,
        rows={site: rows[:FEW] for site, rows in federated.rows.items()},
        given={site: given[:FEW] for site, given in federated.given.items()},
        truth=None,
    )


class Watched(InProcess):
    """Remembers the kinds of request and of reply by stage."""

    def watch_into(self, asked: dict[str, set[str]], came: dict[str, set[str]]) -> None:
        self.asked, self.came, self.where = asked, came, ""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        for envelope in envelopes.values():
            self.asked.setdefault(self.where, set()).update(_kinds(envelope.request))
        for answer in answers.values():
            self.came.setdefault(self.where, set()).update(reply_names(answer.reply))
        return answers


def _kinds(request: Request[Any]) -> set[str]:
    return {type(request).__name__}.union(*(_kinds(part) for part in request.besides))


def observed(
    study: Study, federated: FederatedDataset, method: Method, *, evaluated: bool = True
) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Kinds of request and of reply of a whole short run, by stage."""
    asked: dict[str, set[str]] = {}
    came: dict[str, set[str]] = {}
    federation = open_in_process(study, federated, "declared", Watched)
    assert isinstance(federation, Watched)
    federation.watch_into(asked, came)
    federation.begin(Round("start", 0, -1), ())
    state, number = method.start(federation), 0
    for stage in method.stages():
        for index in range(stage.rounds):
            federation.begin(Round(stage.name, index, number), stage.asks)
            federation.where = stage.name
            state, number = stage.step(state, federation), number + 1
    if evaluated:
        federation.where = "evaluation"
        Evaluator(federation, None)(method, state)
    return asked, came


@pytest.mark.parametrize(("name", "change"), variants(), ids=lambda part: str(part)[:60])
def test_what_is_sent_is_what_is_declared(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    asked: dict[str, set[str]] = {}
    came: dict[str, set[str]] = {}
    for model in NETWORKS.get(name, ("mlp",)):
        study, federated = _small(name, tmp_path, model)
        local = getattr(study.method, "local")  # noqa: B009
        method = dataclasses.replace(methods.get(name)().tiny(), local=local, **change)
        for found, every in zip(observed(study, federated, method), (asked, came)):
            for stage, kinds in found.items():
                every.setdefault(stage, set()).update(kinds)
    listed = {stage: {kind.__name__ for kind in asks} for stage, asks in declared(method, (Evaluate,)).items()}
    if change.get("detection") == "tested":  # nobody was named here, so that nobody is asked to correct
        assert all(kinds <= listed[stage] for stage, kinds in asked.items())
        assert any("EstimateBlindShare" in kinds for kinds in asked.values())
        return
    assert asked == listed
    leaves = {
        stage: {cls.__name__ for cls in replies} for stage, replies in declared_replies(method, (Evaluate,)).items()
    }
    assert came == leaves


@pytest.mark.parametrize("name", methods.names())
def test_no_other_switch_sends_more(name: str, tmp_path: Path) -> None:
    """One run with every other switch turned at once, where that is allowed: the engine refuses what is undeclared."""
    usual = methods.get(name)().tiny()
    together: dict[str, Any] = {}
    for change in switches(usual)[1:]:
        if _shape(usual, change) == _shape(usual, {}) and _apart(change, together):
            together |= change
    study, federated = _small(name, tmp_path)
    local = getattr(study.method, "local")  # noqa: B009
    asked, _ = observed(study, federated, dataclasses.replace(usual, local=local, **together))
    assert asked


def test_the_engine_refuses_what_is_not_declared(tmp_path: Path) -> None:
    study, federated = _small("fedavg", tmp_path)
    federation = open_in_process(study, federated, "refused")
    weights = federation.initial_weights()
    look = Indicate(None, 10)
    federation.begin(Round("train", 0, 0), (Train,))
    with pytest.raises(ConfigError, match=r"stage 'train' sends Indicate, .* declares Train"):
        federation.ask(Indicate(weights, 10))
    with pytest.raises(ConfigError, match="stage 'train' sends Indicate"):
        federation.ask(Train(weights, study.train, then=(look,)))
    with pytest.raises(ConfigError, match="stage 'train' sends Indicate"):
        federation.ask(Train(weights, study.train, before=(look,)))
    federation.begin(Round("train", 0, 1), ())
    with pytest.raises(ConfigError, match="declares nothing"):
        federation.ask(Indicate(weights, 10))


def test_a_method_that_declares_too_little_stops(tmp_path: Path) -> None:
    class Silent(FedAvg):
        def stages(self) -> list[Stage]:
            return [Stage("train", 1, self.train)]

    study, federated = _small("fedavg", tmp_path)
    with pytest.raises(ConfigError, match="stage 'train' sends Train, which it does not declare"):
        observed(study, federated, Silent(rounds=1))


@dataclasses.dataclass(frozen=True)
class InnerOfADeclaredReply(Reply):
    count: int = disclosed("how many", "count")


@dataclasses.dataclass(frozen=True)
class OuterDeclaredReply(Reply):
    inner: InnerOfADeclaredReply | None = disclosed("a part", "replies")
    follow_ups: tuple[Reply, ...] = disclosed("others", "replies", default=())


@dataclasses.dataclass(frozen=True)
class AskOuter(Request[OuterDeclaredReply]):
    reply_type = OuterDeclaredReply


def test_replies_inside_replies_are_listed_by_their_types() -> None:
    assert replies_of((AskOuter, AskOuter)) == [OuterDeclaredReply, InnerOfADeclaredReply]
