"""Local training: every site alone, no federation. The reference that a federation has to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedsift.core.ranges import AtLeastOne
from fedsift.methods._base import TrainingMethod, methods, plain_loss, record_loss
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Request
from fedsift.protocol.method import Asks, Stage, State
from fedsift.training.own_models import EvaluateOwn, TrainOwn


@methods.register("local")
@dataclass(frozen=True)
class LocalTraining(TrainingMethod):
    """Each site trains its own network on its own labels; a scalar loss is sent, so that there is a curve."""

    summary: ClassVar[str] = "No federation: every site trains its own model on its own labels"
    paper: ClassVar[str] = "RHFL Tables 1-6, 'w/o FL' and 'Baseline'"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")
    mixed_networks: ClassVar[bool] = True
    evaluates: ClassVar[Asks] = (EvaluateOwn,)

    rounds: AtLeastOne = 80
    """Visits to every site, each of train.epochs epochs; RHFL's is 40 of pre-training and 40 more."""

    def start(self, federation: Federation) -> State:
        return State()

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(TrainOwn,))]

    def train(self, state: State, federation: Federation) -> State:
        replies = federation.ask(TrainOwn(self.recipe(plain_loss(federation))))
        record_loss(federation, replies)
        return state

    def model(self, state: State) -> None:
        return None

    def evaluation(self, state: State) -> Request[Any]:
        return EvaluateOwn()

    def tiny(self) -> LocalTraining:
        return replace(self, rounds=3)
