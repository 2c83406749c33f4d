"""The words that every other room speaks: messages, federation, method, stage, site, randomness, registries.

This package imports no other room, so that a method can be read against it alone. Its names are imported when they
are first used: errors and registries are needed at once, and without torch.
"""

from typing import TYPE_CHECKING

from fedsift.contract.lazy import lazy

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

_NAMES = {
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

__getattr__ = lazy(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
)

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
