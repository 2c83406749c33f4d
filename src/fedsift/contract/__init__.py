"""The words that every other room speaks: messages, federation, method, stage, site, randomness, registries.

This package imports no other room, so that a method can be read against it alone.
"""

from fedsift.contract.errors import ConfigError, DataError, FedsiftError, NotebookGone, QuorumError, RunError
from fedsift.contract.evidence import Evidence
from fedsift.contract.facts import FederationFacts, Misfit
from fedsift.contract.federation import Federation, Replies, Round
from fedsift.contract.findings import Findings
from fedsift.contract.messages import Envelope, Moment, Reply, Request, SiteFacts, Weights, disclosed
from fedsift.contract.method import Method, Stage, State
from fedsift.contract.randomness import derive, numpy_generator, torch_generator
from fedsift.contract.registry import Registry

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
