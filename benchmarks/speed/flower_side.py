"""Flower's own simulation: its FedAvg, 2 actors of one thread, the plain loop's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.speed.plain import train_plain
from benchmarks.speed.workload import CLASSES, SHAPE, Workload, make_pool
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedsift.models.factory import initial_weights

Next = Callable[[], bool]
"""Waits until the next round may start; False ends the run."""
Finished = Callable[[], None]


def run_flower(work: Workload, proceed: Next, finished: Finished, actors: int = 2) -> None:
    """Rounds of `work` under Flower, one whenever `proceed` lets it; `finished` is told after each."""
    server, client = ServerApp(), ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        images, labels = _pool()
        rows = work.rows(int(context.node_config["partition-id"]))
        state = message.content["arrays"].to_torch_state_dict()
        trained = train_plain(state, images[rows], labels[rows], work, int(rows[0]), True)
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": len(rows)})})
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(initial_weights(work.model, SHAPE, CLASSES, 0))
        share = work.chosen / work.sites
        while proceed():
            strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=work.sites)
            arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1).arrays
            finished()

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.sites,
        backend_config={
            "client_resources": resources,
            "init_args": {"num_cpus": actors, "include_dashboard": False},
        },
    )


_images: Any = None


def _pool() -> tuple[torch.Tensor, torch.Tensor]:
    """The images, made once in each actor."""
    global _images
    if _images is None:
        _images = make_pool()
    return _images  # type: ignore[no-any-return]
