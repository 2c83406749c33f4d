"""The engine of a network transport: waits for the sites, checks who joined, and makes their federation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedsift.core import codec
from fedsift.core.codec import WireFormat
from fedsift.core.errors import RunError
from fedsift.protocol.site import Samples
from fedsift.runs.folder import WAITING, RunFolder
from fedsift.runtime.federation import EngineParts, QuorumPolicy, SimulationSettings
from fedsift.transports.remote.channel import Channel
from fedsift.transports.remote.federation import RemoteFederation, gather
from fedsift.transports.remote.introduction import ClassAgreement, Introduction, agree, unsound
from fedsift.transports.remote.site_directory import GreetingIntervals, NodeAuthorizer, SiteDirectory

ROSTER_FILE = "roster.safetensors"


@dataclass(frozen=True)
class ExpectedSites:
    """Which sites the coordinator waits for, and how long."""

    sites: tuple[str, ...] = ()
    """Names of the sites, in the federation's order; if empty, every site that joins, by name."""
    at_least: int = 2
    """Without names: start when so many sites have joined. With names: go on with so many when `wait` is over."""
    wait: float = 300.0
    """Seconds to wait for the sites to join."""
    classes: tuple[str, ...] = ()
    """Class names in their order: sites with others are set aside. Without them, what most of the sites have counts."""


@dataclass(frozen=True)
class StartRoster(WireFormat):
    """Who took part from the start: kept with the run, so that a resumed one has the same sites in the same order."""

    sites: dict[str, Introduction]


@dataclass(frozen=True)
class RemoteEngine:
    """The engine of sites that are nodes of a network, simulated or real."""

    channel: Callable[[Mapping[str, str]], Channel]
    """Makes the channel, given texts that every message carries."""
    expected: ExpectedSites
    note: Mapping[str, str] = field(default_factory=dict)
    """Texts that every message carries, besides the study's network."""
    pace: GreetingIntervals = field(default_factory=GreetingIntervals)
    own_test: Callable[[Introduction], tuple[Samples, Tensor] | None] = lambda common: None
    """The coordinator's own labelled samples, given what the sites agree on."""
    seen: Callable[[Mapping[str, str]], SimulationSettings] | None = None
    """What a simulation knows, given the last accepted request of each site."""
    authorizer: NodeAuthorizer = field(default_factory=NodeAuthorizer)
    """Which nodes may take part, and as whom."""
    run: str = ""
    """What the sites know this run by; the folder's name by default."""

    def open(self, parts: EngineParts, folder: RunFolder) -> RemoteFederation:
        directory = SiteDirectory(self.channel({"model": parts.model, **self.note}), self.pace)
        directory.authorizer, directory.networks = self.authorizer, parts.networks
        directory.waiting.report = lambda now: folder.write_json(WAITING, now)
        terms = ClassAgreement(self.expected.classes, parts.networks if parts.one_network else (), parts.public)
        roster = joined_sites(directory, folder, self.expected, parts.quorum, terms)
        common = next(iter(roster.values()))
        shared = parts.shared(self.run or folder.id)
        federation = RemoteFederation(directory, roster, test=self.own_test(common), seen=self.seen, **shared)
        federation.set_aside = dict(directory.aside)
        return federation


def joined_sites(
    directory: SiteDirectory,
    folder: RunFolder,
    expected: ExpectedSites,
    policy: QuorumPolicy,
    terms: ClassAgreement | None = None,
) -> dict[str, Introduction]:
    """The sites of this run: those that join now, or those that it began with."""
    file = folder.path / ROSTER_FILE
    if folder.checkpoint_file.is_file() and file.is_file():
        roster: dict[str, Introduction] = codec.load(file).sites
        for own in roster.values():  # of a version that asked less, perhaps
            if (reason := unsound(own, directory.networks)) is not None:
                raise RunError(f"{file}: {reason}; this run cannot be gone on with, start a new one")
        enough = max(1, math.ceil(policy.quorum * len(roster) - 1e-9))
        gather(directory, list(roster), at_least=enough, wait=expected.wait, grace=policy.grace)
        return roster
    sites = gather(directory, expected.sites, at_least=expected.at_least, wait=expected.wait)
    joined = {site: directory.introductions[site] for site in sites}
    roster = agree(joined, directory.set_aside, terms, expected.at_least)
    codec.save(file, StartRoster(roster))
    return roster
