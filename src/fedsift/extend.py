"""The public API for extending fedsift with a method, loss term, aggregation rule, noise model, partition, dataset,
network, transport or tracker.

Derive from a class of this module, or write a function where it says so, and name it `package.module:Name` in a study;
nothing has to be registered. `fedsift.testing.check_method` and its siblings test what you wrote. docs/extending.md
explains every class field by field and says what may change when: a name of this module changes only with a minor
version, after a version that warns.
"""

from fedsift.core.errors import ConfigError, DataError, FedsiftError, QuorumError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range, Rate, Share
from fedsift.core.registry import Registry
from fedsift.data.dataset import Dataset, FederatedDataset
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, noises
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions
from fedsift.data.sources.base import Source, sources
from fedsift.formulas.aggregation import Rule, average, rules
from fedsift.methods._base import Averaging, OneStage, TrainingMethod, methods, size_weighted, train_round
from fedsift.models.factory import models
from fedsift.models.network import Network
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies, Round
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Method, Stage, State
from fedsift.protocol.site import Site
from fedsift.runtime.federation import Engine, EngineFederation, EngineParts
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import EngineTransport
from fedsift.study.study import Study
from fedsift.study.transport import Transport, transports
from fedsift.tracking.base import TrackedRun, Tracker, trackers
from fedsift.training.objective import BinaryCrossEntropy, CrossEntropy, Objective, Proximal, Term, View
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate, Evaluated, Train, Trained, TrainingRequest
from fedsift.transports.remote.answering import answer_message
from fedsift.transports.remote.channel import Channel, ReceivedAnswer
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.simulated_sites import RemoteSimulation, open_simulated

__all__ = [
    "AtLeastOne",
    "AtLeastZero",
    "Averaging",
    "BinaryCrossEntropy",
    "Channel",
    "ConfigError",
    "Count",
    "CrossEntropy",
    "DataError",
    "Dataset",
    "Engine",
    "EngineFederation",
    "EngineParts",
    "EngineTransport",
    "Evaluate",
    "Evaluated",
    "FederatedDataset",
    "Federation",
    "FederationFacts",
    "FedsiftError",
    "Findings",
    "InProcess",
    "Incompatibility",
    "Method",
    "Network",
    "Noise",
    "NoiseInput",
    "NoisyLabels",
    "Objective",
    "OneStage",
    "Partition",
    "Placement",
    "Pool",
    "Positive",
    "Proximal",
    "QuorumError",
    "Range",
    "Rate",
    "ReceivedAnswer",
    "Recipe",
    "Registry",
    "RemoteSimulation",
    "Replies",
    "Reply",
    "Request",
    "Round",
    "Rule",
    "Share",
    "Site",
    "SiteFacts",
    "Source",
    "Stage",
    "State",
    "Study",
    "Term",
    "TrackedRun",
    "Tracker",
    "Train",
    "Trained",
    "TrainingMethod",
    "TrainingRequest",
    "Transport",
    "View",
    "Weights",
    "answer_message",
    "average",
    "decode",
    "disclosed",
    "encode",
    "methods",
    "models",
    "noises",
    "open_simulated",
    "partitions",
    "rules",
    "size_weighted",
    "sources",
    "trackers",
    "train_round",
    "transports",
]
