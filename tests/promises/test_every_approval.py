"""Every request of a run is part of the study that a site's operator approves: what is honest is not asked again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsift.methods._base import methods
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study
from tests.promises.federations import alone_study, play

OFTEN = ("fedcorr", "label-audit")
"""In every test run: stages whose lengths follow from the federation, and requests inside others."""


class Approved(InProcess):
    study: Study
    objections: list[str]
    asked = 0

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        consent = pytest.importorskip("fedsift.deploy.site.consent", reason="approvals belong to deployments")
        for envelope in envelopes.values():
            Approved.asked += 1
            reason = consent.beyond_study(envelope, Approved.study.model.name, "", Approved.study)
            Approved.objections += [] if reason is None else [reason]
        return super().deliver(envelopes, deadline)


def name_of(name: str) -> Any:
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)


@pytest.mark.parametrize("name", [name_of(name) for name in methods.names()])
def test_a_run_stays_within_its_study(name: str, tmp_path: Path) -> None:
    Approved.study, Approved.objections, Approved.asked = alone_study(name, tmp_path), [], 0
    assert play(Approved.study, tmp_path, Approved).finished
    assert Approved.asked > 0
    assert Approved.objections == []
