"""FedBN: batch norm stays, the rest is averaged; judged both as the sites' own models and with averaged statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedsift.methods.fedbn import (
    NORMS,
    EvaluateNormed,
    FedBN,
    TrainBody,
    TrainBodyReleasingNorms,
    norm_names,
    with_own_norms,
)
from fedsift.models.network import Network
from fedsift.protocol.messages import Request, Weights
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.testing import Scripted
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import site


class Normed(Network):
    """Batch norm over the inputs, then a linear head."""

    def __init__(self, inputs: int, n_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.head = nn.Linear(inputs, n_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(x.flatten(1))
        return normed


def normed(shape: tuple[int, ...], n_classes: int) -> Normed:
    inputs = 1
    for side in shape:
        inputs *= side
    return Normed(inputs, n_classes)


NORMED = f"{__name__}:normed"
NAMES = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def weights() -> Weights:
    torch.manual_seed(0)
    return {name: value.clone() for name, value in Normed(2, 2).state_dict().items()}


def place(notebook: Notebook | None = None) -> Site:
    made = site([[3.0, 1.0], [5.0, 2.0], [4.0, 0.0], [6.0, 1.0]], [0, 1, 0, 1], classes=2, notebook=notebook)
    object.__setattr__(made.facts, "model", NORMED)
    return made


def test_the_names_of_batch_norm() -> None:
    buffers = ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert norm_names(weights(), buffers) == NAMES
    assert norm_names({"head.weight": torch.zeros(1)}, ()) == ()


def test_batch_norm_does_not_leave_unless_it_is_told() -> None:
    start, here = weights(), place()
    reply = TrainBody(start, Recipe(lr=0.5), norms=NAMES).answer(here)
    assert all(torch.equal(reply.weights[name], start[name]) for name in NAMES)
    assert not torch.equal(reply.weights["head.weight"], start["head.weight"])
    kept: Weights = here.notebook[NORMS]
    assert set(kept) == set(NAMES)
    assert not torch.equal(kept["norm.running_mean"], start["norm.running_mean"])
    telling = TrainBodyReleasingNorms(start, Recipe(lr=0.5), norms=NAMES).answer(place())
    assert all(torch.equal(telling.weights[name], kept[name]) for name in NAMES)
    assert torch.equal(telling.weights["head.weight"], reply.weights["head.weight"])


def test_a_site_goes_on_with_its_own_batch_norm() -> None:
    start, here = weights(), place()
    TrainBody(start, Recipe(lr=0.5), norms=NAMES).answer(here)
    other = {name: value + 1 for name, value in start.items()}
    mixed = with_own_norms(here, other, NAMES)
    assert torch.equal(mixed["norm.running_mean"], here.notebook[NORMS]["norm.running_mean"])
    assert torch.equal(mixed["head.weight"], other["head.weight"])
    assert torch.equal(EvaluateNormed(other, NAMES).model(here)["norm.bias"], here.notebook[NORMS]["norm.bias"])
    newcomer = with_own_norms(place(), other, NAMES)
    assert torch.equal(newcomer["norm.running_mean"], other["norm.running_mean"])


def test_the_server_averages_and_says_where_there_is_no_batch_norm() -> None:
    def answer(name: str, request: Request[Any]) -> Trained:
        assert isinstance(request, Train)
        return Trained({"w": torch.tensor([float(name)])}, 10, 0.5)

    federation = Scripted({"1": 10, "3": 10}, answer, {"w": torch.zeros(1)})
    method = FedBN()
    state = method.train(method.start(federation), federation)  # type: ignore[arg-type]
    assert float(state.weights["w"]) == 2.0
    assert "no batch norm" in federation.warnings[0]
    assert FedBN(averaged=False).model(state) is None
    assert method.model(state) is not None


def played(folder: Path, **changes: Any) -> RunFolder:
    study = Study.from_table(
        {
            "seed": 3,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 3},
            "noise": {"name": "clean"},
            "model": {"name": NORMED},
            "train": {"lr": 0.1},
            "method": {"name": "fedbn", "rounds": 3, **changes},
            "engine": {"threads": 1},
        }
    )
    made = new_run(study, folder)
    run(study, made)
    return made


def test_both_figures_stand_in_every_round(tmp_path: Path) -> None:
    made = played(tmp_path / "both")
    for row in made.rounds():
        assert len(row["site_accuracy"]) == 3
        assert row["mean_site_accuracy"] == pytest.approx(sum(row["site_accuracy"].values()) / 3)
        assert row["accuracy"] > 0.3
    assert made.read_json("summary.json")["mean_site_accuracy"]["final"] > 0.3
    assert (made.path / "model.safetensors").is_file()
    alone = played(tmp_path / "alone", averaged=False)
    assert not (alone.path / "model.safetensors").is_file()
    # what sites train from is the same, told or not
    assert [r["mean_site_accuracy"] for r in alone.rounds()] == pytest.approx(
        [r["mean_site_accuracy"] for r in made.rounds()]
    )
