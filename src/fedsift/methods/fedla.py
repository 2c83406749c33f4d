"""FedLA: logit adjustment (Menon et al., Long-tail Learning via Logit Adjustment, 2021) in local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.core.ranges import AtLeastZero
from fedsift.methods._base import OneStage, methods
from fedsift.protocol.federation import Federation
from fedsift.training.objective import CrossEntropy


@methods.register("fedla")
@dataclass(frozen=True)
class FedLA(OneStage):
    """FedAvg whose sites train on z + tau * log(pi_k), pi_k their own label frequencies; predictions use z."""

    summary: ClassVar[str] = "FedAvg with logit adjustment by each site's own class frequencies"
    paper: ClassVar[str] = "Menon et al. 2021; FedNoRo section 4.1"

    tau: AtLeastZero = 1.0
    """tau: strength of the adjustment; 0 is FedAvg."""

    def objective(self, federation: Federation) -> CrossEntropy:
        return CrossEntropy(adjust=self.tau)
