"""FedNoRo (Wu et al., IJCAI 2023) for sites that annotate some classes only, as FedMLP's comparison (Sun et al. 2024)
adapted it: its second stage, with every site taken for noisy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsift.contract import ConfigError, Federation
from fedsift.contract.ranges import AtLeastZero, Count, Positive, Rate
from fedsift.local.objective import Objective
from fedsift.local.partial import MissingTo, PartialClass
from fedsift.methods.base import methods
from fedsift.methods.partly_annotated import PartlyAnnotated
from fedsift.signals.rampup import rampup


@methods.register("fednoro-ml")
@dataclass(frozen=True)
class FedNoRoMultiLabel(PartlyAnnotated):
    """FedAvg on annotated classes with logit adjustment; the received model teaches the others, more as rounds go by.

    No noisy site is sought: all of them lack labels. So there is no first stage, and no distance-aware aggregation.
    """

    summary: ClassVar[str] = "FedNoRo's distillation for missing classes: the received model teaches them"
    paper: ClassVar[str] = "Wu et al. 2023 (IJCAI); multi-label as in FedMLP's comparison"
    instead: ClassVar[Mapping[str, str]] = {"multiclass": "fednoro"}

    tau: AtLeastZero = 1.0
    """Strength of the logit adjustment on annotated classes; 0 turns LA off."""
    temperature: Positive = 0.8
    """T: of the teacher alone, eq. 4."""
    lambda_max: Rate = 0.8
    """lambda_max: final weight of the distillation, eq. 5."""
    ramp_begin: Count = 10
    """Round until which lambda stays at its start, lambda_max e^-5."""
    ramp_end: Count | None = None
    """Round at which lambda is lambda_max; by itself the last (499 of the published 500)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ramp_end is not None and self.ramp_end < self.ramp_begin:
            raise ConfigError(
                f"method.ramp_end = {self.ramp_end}: it must be at least method.ramp_begin = {self.ramp_begin}"
            )

    def share_at(self, t: int) -> float:
        """lambda in round t, from 0."""
        end = self.rounds - 1 if self.ramp_end is None else self.ramp_end
        return rampup(t, min(self.ramp_begin, end), end, self.lambda_max)

    def objective(self, federation: Federation) -> Objective:
        """(1 - lambda) BCE on annotated classes + lambda (sigmoid(z) - sigmoid(z_G / T))^2 on missing ones."""
        share = self.share_at(federation.round.index)
        return (1 - share) * PartialClass(self.tau) + share * MissingTo(temperature=self.temperature)

    def train(self, state: Any, federation: Federation) -> Any:
        federation.record(distillation_share=self.share_at(federation.round.index))
        return super().train(state, federation)
