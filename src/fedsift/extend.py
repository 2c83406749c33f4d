"""For whoever adds something to fedsift: a method, loss term, aggregation rule, noise model, partition, dataset,
network, transport or tracker.

Derive from a class of this module, or write a function where it says so, and name it `package.module:Name` in a study;
nothing has to be registered. `fedsift.testing.check_method` and its siblings test what you wrote. docs/extending.md
explains every class field by field and says what may change when: a name of this module changes only with a minor
version, after a version that warns.
"""

from typing import TYPE_CHECKING

from fedsift.core.lazy import lazy

if TYPE_CHECKING:
    pass

_NAMES = {
    "core.errors": ("ConfigError", "DataError", "FedsiftError", "QuorumError"),
    "core.ranges": ("AtLeastOne", "AtLeastZero", "Count", "Positive", "Range", "Rate", "Share"),
    "core.registry": ("Registry",),
    "data.dataset": ("Dataset", "Spread"),
    "data.noise.base": ("Noise", "Scene", "Spoiled", "noises"),
    "data.partitions.base": ("Partition", "Placement", "Pool", "partitions"),
    "data.sources.base": ("Source", "sources"),
    "formulas.aggregation": ("Rule", "average", "rules"),
    "methods._base": ("Averaging", "OneStage", "TrainingMethod", "methods", "size_weighted", "train_round"),
    "models.factory": ("models",),
    "models.network": ("Network",),
    "protocol.facts": ("FederationFacts", "Misfit"),
    "protocol.federation": ("Federation", "Replies", "Round"),
    "protocol.findings": ("Findings",),
    "protocol.messages": ("Reply", "Request", "SiteFacts", "Weights"),
    "protocol.method": ("Method", "Stage", "State"),
    "protocol.site": ("Site",),
    "runtime.engine": ("Engine", "Parts"),
    "runtime.federation": ("EngineFederation",),
    "runtime.in_process": ("InProcess",),
    "study.running": ("EngineTransport",),
    "study.transport": ("Transport", "transports"),
    "tracking.base": ("TrackedRun", "Tracker", "trackers"),
    "training.objective": ("BinaryCrossEntropy", "CrossEntropy", "Objective", "Proximal", "Term", "View"),
    "training.recipe": ("Recipe",),
    "training.requests": ("Evaluate", "Evaluated", "Train", "Trained", "TrainingRequest"),
    "transports.remote.channel": ("Channel",),
}

__getattr__ = lazy(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(name for names in _NAMES.values() for name in names)
