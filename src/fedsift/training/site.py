"""A site where it trains: the contract's, with the networks that the models room builds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from fedsift.models.factory import build_model
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import ComputeSettings, Samples, Site

__all__ = ["ComputeSettings", "LocalSite", "Samples", "Site"]


@dataclass
class LocalSite(Site):
    """The site that engines make. Requests name the contract's `Site`, which knows no models."""

    def network(self, weights: Weights, slot: str = "main") -> nn.Module:
        module = _module(self.facts.model, self.samples.shape, self.n_classes, self.compute.device, slot)
        module.load_state_dict(weights)
        return module


@lru_cache(maxsize=16)
def _module(name: str, shape: tuple[int, ...], n_classes: int, device: str, slot: str) -> nn.Module:
    return build_model(name, shape, n_classes, seed=0).to(device)
