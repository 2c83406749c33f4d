"""A run without a folder: its stages and one evaluation at the end, which costs a third of a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsift.data.dataset import FederatedDataset
from fedsift.protocol.federation import Round
from fedsift.protocol.method import Method
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a run came to."""

    federation: InProcess
    method: Method
    state: Any
    refused: int
    """Replies that were set aside."""
    steps: int


@dataclass(frozen=True)
class Conducted:
    """What a run came to."""

    state: Any
    model: Any
    """The method's model of the last state."""
    accuracy: float
    """NaN where the method makes no model of the federation."""
    refused: int
    """Replies that were set aside."""
    steps: int


def conduct(study: Study, federated: FederatedDataset, kind: type[InProcess] = InProcess, **told: Any) -> Rounds:
    """All rounds, without an evaluation. told: attributes of the federation, for engines that watch or disturb it."""
    method = study.completed(study.facts(federated)).method
    federation = open_in_process(study, federated, study.name, kind)
    for name, value in told.items():
        setattr(federation, name, value)
    federation.begin(Round("start", 0, -1), ())
    state = method.start(federation)
    refused = number = 0
    for stage in method.stages():
        for index in range(stage.rounds):
            federation.begin(Round(stage.name, index, number), stage.asks)
            state = stage.step(state, federation)
            number += 1
            refused += len(federation.log.refused)
    return Rounds(federation, method, state, refused, number)


def conducted(study: Study, federated: FederatedDataset, kind: type[InProcess] = InProcess, **told: Any) -> Conducted:
    """The rounds, and what their model is worth."""
    run = conduct(study, federated, kind, **told)
    metrics = Evaluator(run.federation, run.federation.test_set())(run.method, run.state)
    accuracy = float(metrics.get("accuracy", math.nan))
    return Conducted(run.state, run.method.model(run.state), accuracy, run.refused, run.steps)
