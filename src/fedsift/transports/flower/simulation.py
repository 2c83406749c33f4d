"""Flower's simulation as an engine: nodes in Ray's actors, sites in folders beside the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from fedsift.data.dataset import FederatedDataset
from fedsift.protocol.site import Samples
from fedsift.runs.folder import RunFolder
from fedsift.runtime.engine import EngineParts
from fedsift.transports.flower.channel import FlowerChannel
from fedsift.transports.flower.simulation_client import app as client_app
from fedsift.transports.remote.engine import ExpectedSites, RemoteEngine
from fedsift.transports.remote.federation import RemoteFederation
from fedsift.transports.remote.simulated_sites import export_sites, seen
from fedsift.transports.remote.site_directory import GreetingIntervals

SIMULATED = GreetingIntervals(poll=0.02, look_for_nodes=1.0, ask_again=600.0, absent=5.0)
JOIN_SECONDS = 240.0
"""Ray's actors can take long to start on a busy machine."""


def on_simulated_nodes(run_rounds: Callable[[Grid], None], nodes: int, backend: Mapping[str, Any]) -> None:
    """Start Flower's simulation with so many nodes and let `run_rounds` use its grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_rounds(grid)

    run_simulation(server_app=app, client_app=client_app, num_supernodes=nodes, backend_config=dict(backend))


@dataclass(frozen=True)
class FlowerSimulation:
    """The engine of a spread's sites on simulated nodes."""

    grid: Grid
    spread: FederatedDataset
    federation: str
    """The name under which the nodes find this federation's sites."""
    root: Path
    """The folder in which the nodes look for federations."""
    models: Mapping[str, str] = field(default_factory=dict)

    def open(self, parts: EngineParts, folder: RunFolder) -> RemoteFederation:
        """The sites are written out into the run's folder, where their notebooks lie too."""
        spread, sites = self.spread, folder.path / "sites"
        places = dict(zip(spread.sites, export_sites(spread, self.models, sites, parts.patience.floor)))
        (self.root / self.federation).symlink_to(sites.resolve(), target_is_directory=True)
        engine = RemoteEngine(
            lambda note: FlowerChannel(self.grid, note),
            ExpectedSites(tuple(spread.sites), at_least=len(spread.sites), wait=JOIN_SECONDS),
            note={"federation": self.federation},
            pace=SIMULATED,
            own_test=lambda common: central_test(spread),
            seen=lambda accepted: seen(spread, places, folder.id, accepted),
        )
        return engine.open(parts, folder)


def central_test(spread: FederatedDataset) -> tuple[Samples, Tensor] | None:
    data = spread.dataset
    if len(data.test) == 0:
        return None
    samples = Samples(torch.from_numpy(data.images), torch.from_numpy(data.test), data.mean, data.std)
    return samples, torch.from_numpy(data.labels[data.test])
