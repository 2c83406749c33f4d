"""What an engine is: it opens a federation. What it knows besides, the federation says itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import EngineFederation, QuorumPolicy
from fedsift.runtime.gate.protection import GateLimits


@dataclass(frozen=True)
class EngineParts:
    """What a study gives to any engine."""

    seed: int
    model: str
    limits: GateLimits = field(default_factory=GateLimits)
    patience: QuorumPolicy = field(default_factory=QuorumPolicy)
    given: Mapping[str, Tensor] | None = None
    """Weights that the network starts from; None draws them."""
    others: tuple[str, ...] = ()
    """Further networks that the study names, for single sites."""
    one_network: bool = False
    """Whether the method needs the same network at every site."""
    public: bool = False
    """Whether the method needs the same public samples at every site."""

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network that the study names."""
        return (self.model, *self.others)

    def shared(self, run: str) -> dict[str, Any]:
        """The keywords that every federation takes."""
        return {
            "run": run,
            "seed": self.seed,
            "model": self.model,
            "limits": self.limits,
            "patience": self.patience,
            "given": self.given,
        }


class Engine(Protocol):
    """Opens the federation of one run, new or gone on with."""

    def open(self, parts: EngineParts, folder: RunFolder) -> EngineFederation: ...
