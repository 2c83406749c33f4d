"""No reply of any method tells of fewer samples than the sites' floor, and every method lives with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.type_checks import schema_error
from fedsift.methods._base import methods
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from tests.promises.federations import contract_study, play

MIN_COUNT = 10
FEW_OF_SOME = {"name": "bernoulli-dirichlet", "sites": 5, "p": 0.7, "alpha": 0.5}
"""Sites that hold a handful of samples of some classes."""
OFTEN = ("fednoro", "fedmlp")
"""In every test run: losses by class, and prototypes."""


class Watched(InProcess):
    """Looks at every request and reply as a site would, before anything else does."""

    small: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    seen: int = 0

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        policy = pytest.importorskip("fedsift.deploy.site.policy", reason="policies belong to deployments")
        Watched.unfit += tuple(filter(None, (schema_error(each, RequestEnvelope) for each in envelopes.values())))
        answers = super().deliver(envelopes, deadline)
        for answer in answers.values():
            Watched.seen += 1
            Watched.small += tuple(policy.small_counts(answer.reply, MIN_COUNT))
        return answers


def name_of(name: str) -> Any:
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)


@pytest.mark.parametrize("name", [name_of(name) for name in methods.names()])
def test_a_method_keeps_the_sites_minimum_count(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"federation": {"min_count": MIN_COUNT}, "model": {"name": "mlp"}}
    if "multiclass" in methods.get(name).tasks:
        changes["partition"] = FEW_OF_SOME
    Watched.small, Watched.unfit, Watched.seen = (), (), 0
    run = play(contract_study(name, tmp_path, **changes), tmp_path, Watched)
    assert run.finished
    assert Watched.seen > 0
    assert Watched.small == ()
    assert Watched.unfit == ()  # or a real site would refuse the request
