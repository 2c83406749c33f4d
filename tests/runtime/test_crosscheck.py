"""A site that lies about its scores is told by its model, where the coordinator has labelled samples of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.models.factory import initial_weights
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.runs.folder import RunFolder
from fedsift.runtime.gate.reply_checks import LARGEST_LOSS, MOST_SAMPLES, CrossCheck, verdict
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.study import Study
from fedsift.training.requests import Indicators

LOSSES = {f"site-{number}": 0.3 + 0.01 * number for number in range(8)} | {"bad": 2.0, "worse": 2.1}


def judged(*noisy: str, losses: Mapping[str, float] = LOSSES, **more: Any) -> Any:
    return verdict(losses, Findings(noisy, **more), np.random.default_rng(1))


def test_claims_and_models_are_compared_both_ways() -> None:
    assert judged("bad", "worse").words() is None
    found = judged("worse", "site-3")
    assert (found.worse, found.better) == (("bad",), ("site-3",)) and found.p_value <= 0.05
    assert "bad (clean by what was claimed, noisy by the model); site-3 (noisy by what" in found.words()
    assert found.line() == {"p_value": found.p_value, "worse": ["bad"], "better": ["site-3"]}


def test_nobody_is_contradicted_where_nothing_can_be_told() -> None:
    alike = {site: loss for site, loss in LOSSES.items() if site.startswith("site")}
    assert judged("site-3", losses=alike).words() is None, "the models show one group"
    assert judged("bad", losses={"bad": 2.0, "a": 0.1, "b": 0.1}) is None, "three sites"
    assert judged(no_clean_reference=True) is None
    assert judged("worse", unmeasured=("bad",)).worse == ()


def test_a_loss_is_the_mean_over_samples_of_the_coordinator() -> None:
    pool, labels = torch.randint(0, 256, (500, 1, 8, 8), dtype=torch.uint8), torch.arange(500) % 3
    samples = Samples(pool, torch.arange(500))
    check = CrossCheck.of(samples, labels, np.random.default_rng(1))
    assert len(check.samples) == len(check.labels) == MOST_SAMPLES
    assert torch.equal(check.labels, labels[check.samples.rows])
    weights = initial_weights("mlp", (1, 8, 8), 3, seed=1)
    even = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    assert check.loss("mlp", even, 3, ComputeSettings()) == pytest.approx(np.log(3))
    yes = CrossCheck(check.samples, torch.ones(MOST_SAMPLES, 3))
    assert yes.loss("mlp", even, 3, ComputeSettings()) == pytest.approx(np.log(2))
    absurd = {name: tensor * 1e30 for name, tensor in weights.items()}
    assert check.loss("mlp", absurd, 3, ComputeSettings()) == LARGEST_LOSS


class Lying(InProcess):
    """The first noisy site tells the indicators of the first clean one."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = dict(super().deliver(envelopes, deadline))
        liar, model = liar_of(self), next(site for site in self.sites if site not in noisy_of(self))
        if liar in answers and isinstance(answers[liar].reply, Indicators):
            told = dataclasses.replace(answers[model].reply, samples=answers[liar].reply.samples)  # type: ignore
            answers[liar] = dataclasses.replace(answers[liar], reply=told)
        return answers


def noisy_of(federation: InProcess) -> list[str]:
    assert federation.federated.truth is not None
    return sorted(federation.federated.truth.noisy)


def liar_of(federation: InProcess) -> str:
    return noisy_of(federation)[0]


def lied_to(place: Path, **gate: Any) -> RunFolder:
    study = Study.from_table(
        {
            "seed": 31,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 10},
            "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
            "model": {"name": "mlp"},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.1, "momentum": 0.5},
            "method": {"name": "fednoro", "rounds": 6, "warm_up": 5},
            "engine": {"threads": 1},
            "gate": gate,
        }
    )
    folder = new_run(study, place)
    InProcessTransport(Lying).run(study, folder)
    return folder


def test_a_liar_is_named_in_the_run_and_nothing_else_changes(tmp_path: Path) -> None:
    asked, plain = lied_to(tmp_path / "asked", cross_check=True), lied_to(tmp_path / "plain")
    [row] = [row for row in asked.rounds() if "cross_check" in row]
    assert row["cross_check"]["worse"] == ["site-00"] and row["cross_check"]["better"] == []
    assert "site-00 (clean by what was claimed, noisy by the model)" in row["warnings"][0]
    assert "loss_on_own_samples" in (asked.path / "sites.csv").read_text("utf-8").splitlines()[0]
    told = ("cross_check", "warnings", "seconds")
    same = [
        [json.dumps({k: v for k, v in row.items() if k not in told}) for row in folder.rounds()]
        for folder in (asked, plain)
    ]
    assert same[0] == same[1]
