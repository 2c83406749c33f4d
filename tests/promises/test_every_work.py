"""Every request says how much work it asks: never less than it turns out to be, and what is honest stays far below
the limit of a site that has set none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedsift.benchmark.cells import study_of
from fedsift.benchmark.table import find_table, table_names
from fedsift.methods._base import methods
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import HasCost, ReplyEnvelope, Request, RequestEnvelope
from fedsift.protocol.method import Method
from fedsift.protocol.site import Site
from fedsift.runtime.in_process import InProcess
from fedsift.study.planning import _shrink
from fedsift.study.running import open_in_process
from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.study import Study
from fedsift.training import predict
from fedsift.training.recipe import Recipe
from tests.promises.federations import alone_study, contract_table, play

OFTEN = ("fednoro", "dividemix", "fedclean")
"""In every test run: a teacher, two networks, a learner of many epochs."""


class Counter:
    """Samples that went through networks, and through which request."""

    def __init__(self) -> None:
        self.now = 0
        self.known: set[nn.Module] = set()

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(predict, "_stacked_form", lambda network, samples: None)  # kernels that no hook sees
        made = Site.network

        def network(site: Site, *arguments: Any, **options: Any) -> nn.Module:
            module = made(site, *arguments, **options)
            if module not in self.known:
                self.known.add(module)
                # a network of ours is called as a whole, or its features and its head one after the other
                head = getattr(module, "head", module)
                head.register_forward_pre_hook(self.count)
            return module

        patch.setattr(Site, "network", network)

    def count(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.now += len(inputs[0])


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    from fedsift.training.requests import _module

    _module.cache_clear()  # no hook of an earlier test
    made = Counter()
    made.watch(monkeypatch)
    yield made
    _module.cache_clear()


def name_of(name: str) -> Any:
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)


@pytest.mark.parametrize("name", [name_of(name) for name in methods.names()])
def test_no_request_is_more_work_than_it_says(name: str, tmp_path: Path, counter: Counter) -> None:
    asked: dict[str, list[tuple[float, int]]] = {}

    class Weighed(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers: dict[str, ReplyEnvelope] = {}
            for site, envelope in envelopes.items():  # one by one, so that the count is this request's
                counter.now = 0
                one = super().deliver({site: envelope}, deadline)
                opened = {**getattr(self, "opened", {}), **self._open}
                self.opened = opened
                answers |= one
                said = envelope.request.work(self.facts[site])
                asked.setdefault(type(envelope.request).__name__, []).append((said, counter.now))
            self._open, self.opened = self.opened, {}
            return answers

    run = play(alone_study(name, tmp_path), tmp_path, Weighed)
    assert run.finished
    assert asked
    for request, pairs in asked.items():
        for said, done in pairs:
            assert done <= said, f"{request} said {said}, {done} samples went through a network"
    # and no number that anything stays below: a simulation's test set counts as looked at
    if any(done for pairs in asked.values() for _, done in pairs):
        assert min(said / done for pairs in asked.values() for said, done in pairs if done) < 10


# The honest stay below the limit ------------------------------------------------------------------------------------


def cheap(value: Any) -> Any:
    """The same with one epoch of large batches: what a method asks next hardly depends on how long sites train."""
    if isinstance(value, Recipe):
        return dataclasses.replace(value, epochs=1, batch_size=64)
    if isinstance(value, tuple):
        return tuple(map(cheap, value))
    if isinstance(value, HasCost) and dataclasses.is_dataclass(value):
        parts = {f.name: cheap(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **parts)
    return value


class Limited(InProcess):
    """Notes what a site without any setting of its own would say to each request, and answers a cheaper one."""

    most: dict[str, float]
    refused: list[str]

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        policy = pytest.importorskip("fedsift.deploy.site.policy", reason="policies belong to deployments")
        for site, envelope in envelopes.items():
            # a real site has no common test set
            facts, request = dataclasses.replace(self.facts[site], test=0), envelope.request
            kind = type(request).__name__
            self.most[kind] = max(self.most.get(kind, 0.0), request.work(facts) / facts.everything)
            self.refused += filter(None, [policy.Policy().objection_to_work(request, facts)])
        easier = {site: dataclasses.replace(e, request=cheap(e.request)) for site, e in envelopes.items()}
        return super().deliver(easier, deadline)


def honest_requests(method: Method, name: str, folder: Path) -> tuple[dict[str, float], list[str]]:
    """The largest work of each kind of request in a round of every stage, in passes over a site's samples."""
    changes = {"model": {"name": "mlp"}, "evaluate": {"held_out": 0.15}}
    study = Study.from_table(contract_table(name, folder, small=True, **changes))
    federated = study.load_data()
    study = dataclasses.replace(study, method=method).completed(study.facts(federated))
    federation = open_in_process(study, _shrink(federated), "work", kind=Limited)
    assert isinstance(federation, Limited)
    federation.most, federation.refused = {}, []
    federation.begin(Round("start", 0, -1), ())
    state = study.method.start(federation)
    for number, stage in enumerate(stage for stage in study.method.stages() if stage.rounds > 0):
        federation.begin(Round(stage.name, 0, number), stage.asks)
        state = stage.step(state, federation)
    return federation.most, federation.refused


@pytest.mark.parametrize("name", [name_of(name) for name in methods.names()])
def test_a_method_as_it_is_asks_less_than_a_site_s_limit(name: str, tmp_path: Path) -> None:
    table = contract_table(name, tmp_path, small=True)
    del table["train"]  # as the method has it
    most, refused = honest_requests(Study.from_table(table).method, name, tmp_path)
    assert most
    assert refused == []


def shipped() -> dict[str, tuple[Method, str, str]]:
    """Every method, with every setting, of every scenario and table that comes with fedsift: its name and place."""
    found: dict[str, tuple[Method, str, str]] = {}
    for preset in preset_names():
        study = Study.from_table(preset_table(preset))
        found.setdefault(repr(study.method), (study.method, study.method_name, preset))
    for name in table_names():
        table = find_table(name)
        for row in table.rows:
            for column in table.columns_of(row):
                study = study_of(table, row, column, 1)
                where = f"{name}, {row.label}, {column.label}"
                found.setdefault(repr(study.method), (study.method, study.method_name, where))
    return found


@pytest.mark.slow
def test_no_scenario_and_no_table_reaches_a_site_s_limit(tmp_path: Path) -> None:
    largest: dict[str, tuple[float, str]] = {}
    for method, name, where in shipped().values():
        most, refused = honest_requests(method, name, tmp_path)
        assert refused == [], where
        for kind, passes in most.items():
            largest[kind] = max(largest.get(kind, (0.0, "")), (passes, where))
    top = max(largest.values())
    assert 20 < top[0] < 500 / 5, top  # something was counted, and a study that is longer is not refused at once


def test_every_registered_request_says_its_work() -> None:
    consent = pytest.importorskip("fedsift.deploy.site.consent", reason="policies belong to deployments")
    for kind in consent.known_requests():
        assert issubclass(kind, Request) and callable(kind.work)
