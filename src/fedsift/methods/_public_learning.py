"""Sites that keep models of their own and learn from each other's predictions for public samples: what FedMD and RHFL
share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedsift.core.ranges import AtLeastOne, Count
from fedsift.methods._base import TrainingMethod
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Request
from fedsift.protocol.method import Asks, Stage
from fedsift.training.own_models import EvaluateOwn
from fedsift.training.public_learning import Collaborate


@dataclass(frozen=True)
class LearnsInPublic(TrainingMethod):
    """Private training first, then rounds in which sites learn from the others' predictions and send their own."""

    needs: ClassVar[tuple[str, ...]] = ("public",)
    mixed_networks: ClassVar[bool] = True
    evaluates: ClassVar[Asks] = (EvaluateOwn,)

    rounds: AtLeastOne = 40
    """T_c: communication rounds."""
    pretrain_rounds: Count = 4
    """Visits of private training before the first exchange; 0 starts from random networks."""
    pretrain_epochs: AtLeastOne = 10
    """Epochs of each of these visits: 4 x 10 are RHFL's released 40."""

    def stages(self) -> list[Stage]:
        first = (
            Stage("pre-train", self.pretrain_rounds, self.pretrain, asks=(Collaborate,))
            if self.pretrain_rounds
            else Stage("first look", 1, self.look, asks=(Collaborate,), trains=False)
        )
        return [first, Stage("collaborate", self.rounds, self.collaborate, asks=(Collaborate,))]

    def pretrain(self, state: Any, federation: Federation) -> Any:
        """Private training; the last visit also shows the first predictions."""
        raise TypeError(f"{type(self).__name__} does not say how sites begin")

    def look(self, state: Any, federation: Federation) -> Any:
        """Without pre-training: predictions of the random networks."""
        raise TypeError(f"{type(self).__name__} does not say how sites begin")

    def collaborate(self, state: Any, federation: Federation) -> Any:
        """One communication round."""
        raise TypeError(f"{type(self).__name__} does not say how sites learn from each other")

    def model(self, state: Any) -> None:
        """There is none: every site has its own."""
        return None

    def evaluation(self, state: Any) -> Request[Any]:
        return EvaluateOwn()
