"""The words that every other room speaks: messages, federation, method, stage, site, randomness, registries.

This package imports no other room, so that a method can be read against it alone. Its names are looked up when they
are first used: who needs only the errors, the file helpers or a run folder never pays for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsift.contract.errors import (
        ConfigError,
        DataError,
        FedsiftError,
        NotebookGone,
        QuorumError,
        RunError,
    )
    from fedsift.contract.evidence import Evidence
    from fedsift.contract.facts import FederationFacts, Misfit
    from fedsift.contract.federation import Federation, Replies, Round
    from fedsift.contract.findings import Findings
    from fedsift.contract.messages import Envelope, Moment, Reply, Request, SiteFacts, Weights, disclosed
    from fedsift.contract.method import Method, Stage, State
    from fedsift.contract.randomness import derive, numpy_generator, torch_generator
    from fedsift.contract.registry import Registry

_HOMES = {
    "errors": ("ConfigError", "DataError", "FedsiftError", "NotebookGone", "QuorumError", "RunError"),
    "evidence": ("Evidence",),
    "facts": ("FederationFacts", "Misfit"),
    "federation": ("Federation", "Replies", "Round"),
    "findings": ("Findings",),
    "messages": ("Envelope", "Moment", "Reply", "Request", "SiteFacts", "Weights", "disclosed"),
    "method": ("Method", "Stage", "State"),
    "randomness": ("derive", "numpy_generator", "torch_generator"),
    "registry": ("Registry",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ConfigError",
    "DataError",
    "Envelope",
    "Evidence",
    "Federation",
    "FederationFacts",
    "FedsiftError",
    "Findings",
    "Method",
    "Misfit",
    "Moment",
    "NotebookGone",
    "QuorumError",
    "Registry",
    "Replies",
    "Reply",
    "Request",
    "Round",
    "RunError",
    "SiteFacts",
    "Stage",
    "State",
    "Weights",
    "derive",
    "disclosed",
    "numpy_generator",
    "torch_generator",
]
