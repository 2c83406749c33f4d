"""The coordinator's Flower ServerApp: executes a run, lets in nodes by the roster, and loads the coordinator's test
set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import Dataset
from fedsift.data.sources.base import sources
from fedsift.deploy.coordinator.roster import NodeKeys, Roster, RosterEntry
from fedsift.protocol.site import Samples
from fedsift.runs.folder import DEPLOYED, FEDERATION
from fedsift.study.running import execute_run, reopen
from fedsift.study.study import read_toml
from fedsift.study.toml_tables import build, build_named
from fedsift.training.features import with_features
from fedsift.transports.flower.channel import FlowerChannel
from fedsift.transports.remote.engine import ExpectedSites, RemoteEngine
from fedsift.transports.remote.introduction import Introduction
from fedsift.transports.remote.site_directory import NodeAuthorizer

# Who is who: a Flower node speaks for the site whose key it holds, and for no other
# ------------------------------------------------------------------------------


class RosterAuthorizer(NodeAuthorizer):
    """Authorizes nodes whose key is on the roster, each under its key's name."""

    def __init__(self, roster: Path, nodes: Path) -> None:
        self._roster, self._nodes = Roster(roster), NodeKeys(nodes)

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self._roster.entries if not entry.revoked)

    def entry_of(self, node: int) -> RosterEntry | None:
        key = self._nodes.key_of(node)
        entry = None if key is None else self._roster.of(key)
        return None if entry is None or entry.revoked else entry

    def admits(self, node: int) -> bool:
        """A node that is not listed, or not any more, receives nothing."""
        return self.entry_of(node) is not None

    def site_of(self, node: int) -> str:
        entry = self.entry_of(node)
        return "" if entry is None else entry.name

    def arrivals(self, node: int) -> int:
        return self._nodes.arrivals(node)

    def objection(self, node: int, own: Introduction) -> str | None:
        """Why this node may not speak as the site that it says it is."""
        entry, facts = self.entry_of(node), own.facts
        if entry is None:
            return f"its key is not on the roster {self._roster.path.name}"
        if facts.name != entry.name:
            return (
                f"it calls itself '{facts.name}', its key is that of '{entry.name}': write name = \"{entry.name}\" "
                "into its site.toml, or list its key under the other name"
            )
        most = max(facts.samples, facts.held_out)
        if most > entry.samples:
            return (
                f"site '{facts.name}' declares {most} samples, the roster allows {entry.samples}: "
                "correct the one that is wrong"
            )
        return None

    def share(self, site: str) -> float:
        return self._roster.share_of(site)


def holders_of(roster: str, nodes: str) -> RosterAuthorizer:
    """As `RosterAuthorizer`, with an error for a run whose roster is gone."""
    try:
        return RosterAuthorizer(Path(roster), Path(nodes))
    except ConfigError as error:
        raise ConfigError(f"{error}; this run began behind a gateway with that roster, put the file back") from None


@dataclass(frozen=True)
class FederationFile(ExpectedSites):
    """The keys of `federation.toml`: whom the coordinator waits for, and a test set of its own."""

    test: dict[str, Any] = field(default_factory=dict)
    """A dataset's table for the coordinator's own test set; without it the sites evaluate on their held-out parts."""
    site: tuple[dict[str, Any], ...] = ()
    """The roster, if it stands in the same file; the gateway and `RosterAuthorizer` read it."""


def read_federation_file(path: Path) -> FederationFile:
    return build(FederationFile, read_toml(path), "") if path.is_file() else FederationFile()


def expected_sites(file: FederationFile, listed: tuple[str, ...]) -> FederationFile:
    """Where no sites are named, those on the roster are waited for: `at_least` of them would leave out who is slow.

    A roster with fewer than must be there is still being written: then every site that joins counts.
    """
    return file if file.sites or len(listed) < file.at_least else replace(file, sites=listed)


def own_data(table: dict[str, Any], model: str) -> Dataset | None:
    """The coordinator's own labelled samples, if it has any, as the study's network takes them."""
    return with_features(build_named(sources, table, "test").load(), model) if table else None


def own_test(data: Dataset, common: Introduction, file: Path) -> tuple[Samples, Tensor]:
    """Of its own samples the coordinator tests on the test part, or on all of them."""
    if data.classes != common.classes or data.shape != common.shape:
        raise ConfigError(
            f"the test set of {file} has classes {', '.join(data.classes)} and shape "
            f"{data.shape}, the sites have {', '.join(common.classes)} and {common.shape}"
        )
    rows = data.test if len(data.test) else data.train
    samples = Samples(torch.from_numpy(data.images), torch.from_numpy(rows), common.mean, common.std)
    return samples, torch.from_numpy(data.labels[rows])


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run whose folder the run config names. Started again on the same folder, it goes on."""
    place = str(context.run_config.get("run-folder", ""))
    if not place:
        raise ConfigError("the run config has no 'run-folder': start the app with `fedsift flower start`")
    study, folder = reopen(Path(place))
    file = folder.path / FEDERATION

    link = folder.read_json(DEPLOYED) or {}

    def engine() -> RemoteEngine:
        authorizer = holders_of(link["roster"], link["nodes"]) if "roster" in link else NodeAuthorizer()
        expected = read_federation_file(file)
        expected = expected_sites(expected, authorizer.names())
        data = own_data(expected.test, study.model.name)
        if data is not None and not expected.classes:
            expected = replace(expected, classes=data.classes)
        return RemoteEngine(
            lambda note: FlowerChannel(grid, note),
            expected,
            own_test=lambda common: None if data is None else own_test(data, common, file),
            authorizer=authorizer,
            run=link.get("run", ""),
        )

    execute_run(study, folder, engine)
