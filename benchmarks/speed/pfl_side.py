"""pfl-research: its FedAvg on its simulated backend in one process, the plain loop's data and augmentation.

    pip install pfl

Only its loop is used as published; a user's images are augmented and laid out in one gather, as in the plain loop.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.flower_side import Finished, Next
from benchmarks.speed.plain import augmented
from benchmarks.speed.workload import CLASSES, SHAPE, Workload, make_pool
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedsift.models.factory import build_model

ROUNDS = 1_000_000
"""More than anybody will ask for."""


def run_pfl(work: Workload, proceed: Next, finished: Finished) -> None:
    """Rounds of `work` under pfl-research, one whenever `proceed` lets it; `finished` is told after each."""
    torch.set_num_threads(1)
    images, labels = make_pool()
    generator = torch.Generator().manual_seed(0)

    def data_of(site: int) -> PyTorchTensorDataset:
        rows = work.rows(site)[torch.randperm(work.samples, generator=generator)]
        inputs = augmented(images[rows], generator).contiguous(memory_format=torch.channels_last)
        return PyTorchTensorDataset((inputs, labels[rows]), user_id=str(site))

    order = (site for number in range(ROUNDS) for site in work.sites_of(number))
    population = FederatedDataset(data_of, lambda: next(order))
    network = _Classifier(build_model(work.model, SHAPE, CLASSES)).to(memory_format=torch.channels_last)
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum, fused=True),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    if not proceed():
        return
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, ROUNDS, work.chosen, None),
        SimulatedBackend(population, population),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr),
        callbacks=[_Turn(proceed, finished)],
    )


class _Classifier(nn.Module):
    """What pfl-research asks of a network: its loss and its metrics."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.network(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {}


class _Turn(TrainingProcessCallback):  # type: ignore[misc]
    """Says when a round is done, and waits for the next to be wanted."""

    def __init__(self, proceed: Next, finished: Finished) -> None:
        self._proceed, self._finished = proceed, finished

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._finished()
        return not self._proceed(), Metrics()
