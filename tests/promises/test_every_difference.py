"""Two honest runs that differ by one sample: what leaves differs by no more than the kind of each field allows, and by
that much noise is measured. For every field of every method, and of the label audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsift.methods._base import methods
from fedsift.protocol.messages import SPANS, Reply, ReplyEnvelope, Request, RequestEnvelope
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.runtime.in_process import InProcess
from fedsift.training.private_updates import NoiseMechanism, protected, statistic_of
from tests.promises.federations import alone_study, play

OFTEN = ("fednoro", "rofl", "label-audit, linear")
"""In every test run: losses by class, features, and what the audit sends."""
MIN_COUNT, CLIP = 10, 0.5
NAMES = [*methods.names(), "label-audit, linear"]


def numbers_of(value: Any) -> Tensor:
    """All real and whole numbers of a field as one vector."""
    if isinstance(value, Tensor):
        return value.double().flatten()
    if isinstance(value, Mapping):
        floating = [item for item in value.values() if item.is_floating_point()]
        return torch.cat([item.double().flatten() for item in floating]) if floating else torch.zeros(0)
    if isinstance(value, tuple):
        return torch.cat([numbers_of(item) for item in value]) if value else torch.zeros(0)
    return (
        torch.tensor([float(value)], dtype=torch.float64) if isinstance(value, bool | int | float) else torch.zeros(0)
    )


def moves_of(value: Any, start: Any) -> list[float]:
    """Lengths by which each model of a field lies from where it began; of features, their own length."""
    if isinstance(value, tuple):
        starts = start if start is not None else [None] * len(value)
        return [length for own, base in zip(value, starts, strict=True) for length in moves_of(own, base)]
    return [float((numbers_of(value) - (0.0 if start is None else numbers_of(start))).norm())]


def beyond(request: Request[Any], one: Reply, other: Reply, samples: int) -> Iterator[str]:
    """Fields of two replies to one request that differ by more than their kind allows."""
    for f in dataclasses.fields(one):
        mine, theirs, kind = getattr(one, f.name), getattr(other, f.name), statistic_of(f)
        where = f"{type(one).__name__}.{f.name} ({kind})"
        if kind == "replies":
            for asked, a, b in zip(request.besides, mine, theirs, strict=True):
                yield from beyond(asked, a, b, samples)
            continue
        if mine is None or theirs is None:  # withheld for fewer samples than the minimum count
            if f.metadata["spare"] or mine is theirs:
                continue
            yield f"{where}: {mine} and {theirs}"
        elif kind in ("model", "features"):
            start = getattr(request, f.metadata["update"]) if f.metadata["update"] else None
            lengths = moves_of(mine, start) + moves_of(theirs, start)
            if max(lengths, default=0.0) > CLIP * (1 + 1e-4):
                yield f"{where}: moved by {max(lengths)}"
        elif kind in SPANS:
            span = SPANS[kind] * (samples if kind == "likelihood" else 1)
            digits = (numbers_of(mine) - numbers_of(theirs)).abs()
            if digits.numel() and float(digits.max()) > span:
                yield f"{where}: {mine} and {theirs}"
        elif kind == "count":
            few = [each for value in (mine, theirs) for each in numbers_of(value).tolist() if 0 < each < MIN_COUNT]
            if few:
                yield f"{where}: counts {few}"
        elif kind == "flag":
            pass
        elif kind == "setting" and mine != theirs:
            yield f"{where}: {mine} and {theirs}"


class Twins(InProcess):
    """Asks the first site twice: as it is, and without one of its samples. Both keep notebooks of their own."""

    found: list[str]
    seen: set[str]

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        victim = self.sites[0]
        answer = answers.get(victim)
        if answer is not None and answer.reply is not None:
            request = envelopes[victim].request
            twin = self.twin(envelopes[victim])
            theirs = request.answer(twin)
            self.twins[twin.name] = twin.notebook.pages()
            policy = NoiseMechanism(CLIP)
            left = [
                protected(reply, request, policy, min_count=MIN_COUNT, samples=self.facts[victim].seen).reply
                for reply in (answer.reply, theirs)
            ]
            Twins.found += list(beyond(request, *left, self.facts[victim].seen))
            Twins.seen.add(type(answer.reply).__name__)
        return answers

    twins: dict[str, dict[str, Any]]

    def twin(self, envelope: RequestEnvelope) -> Site:
        if not hasattr(self, "twins"):
            self.twins = {}
        site = self.site(envelope)
        kept = np.arange(len(site.samples)) != 3
        return dataclasses.replace(
            site,
            samples=dataclasses.replace(site.samples, rows=site.samples.rows[kept]),
            given=site.given[kept],
            facts=dataclasses.replace(site.facts, samples=int(kept.sum())),
            groups=None if site.groups is None else site.groups[kept],
            notebook=Notebook(self.twins.get(site.name)),
            workbench={},
        )


def name_of(name: str) -> Any:
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)


@pytest.mark.parametrize("name", [name_of(name) for name in NAMES])
def test_one_sample_moves_no_field_beyond_its_kind(name: str, tmp_path: Path) -> None:
    method, _, network = name.partition(", ")
    study = alone_study(method, tmp_path)
    federation = dataclasses.replace(study.federation, min_count=MIN_COUNT)
    study = dataclasses.replace(study, federation=federation)
    if network:
        study = dataclasses.replace(study, model=dataclasses.replace(study.model, name=network))
    Twins.found, Twins.seen = [], set()
    assert play(study, tmp_path, Twins).finished
    assert Twins.seen
    assert Twins.found == []


def test_forgetting_a_sample_between_two_audits_shows_in_no_sum(tmp_path: Path) -> None:
    """The first exchange held exact sums of features: the difference of two audits was a person's row."""
    from fedsift.label_audit.at_site import CountLabels

    study = alone_study("label-audit", tmp_path)
    study = dataclasses.replace(study, model=dataclasses.replace(study.model, name="linear"))
    replies: list[tuple[Reply, Reply]] = []

    class Compared(Twins):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = InProcess.deliver(self, envelopes, deadline)
            first = envelopes[self.sites[0]]
            if isinstance(first.request, CountLabels):
                reply = answers[self.sites[0]].reply
                assert reply is not None
                replies.append((reply, first.request.answer(self.twin(first))))
            return answers

    assert play(study, tmp_path, Compared).finished
    [(whole, without)] = replies
    for f in dataclasses.fields(whole):
        assert statistic_of(f) == "count"
        one, other = numbers_of(getattr(whole, f.name)), numbers_of(getattr(without, f.name))
        assert float((one.clamp(min=0) - other.clamp(min=0)).abs().sum()) <= 2 * MIN_COUNT
