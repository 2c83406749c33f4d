"""Small federations for the contract tests: five sites of real digits, for every kind of method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedsift.methods._base import methods
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runs.folder import RunFolder
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.study import Study

ATTRIBUTES = ("even", "five or more", "round", "prime")
DIGITS_WITH = {0: [0, 2, 4, 6, 8], 1: [5, 6, 7, 8, 9], 2: [0, 6, 8, 9], 3: [2, 3, 5, 7]}


def multilabel_file(folder: Path, train: int = 1200) -> Path:
    """Digits with four yes/no findings each: real pictures, true multi-label targets."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    labels = np.stack([np.isin(digits.target, DIGITS_WITH[k]) for k in range(len(ATTRIBUTES))], axis=1)
    path = folder / f"findings-{train}.npz"
    np.savez(
        path,
        images=images[:train],
        labels=labels[:train].astype(np.int64),
        test_images=images[1200:],
        test_labels=labels[1200:].astype(np.int64),
        classes=np.array(ATTRIBUTES),
    )
    return path


def contract_table(name: str, folder: Path, *, small: bool = False, **changes: Any) -> dict[str, Any]:
    """A study for the method, on labels of a kind that it handles; `small`: a hundred samples a site."""
    method = methods.get(name)
    table: dict[str, Any] = {
        "name": f"contract {name}",
        "seed": 11,
        "data": {"name": "digits", **({"train_limit": 500, "test_limit": 150} if small else {})},
        "partition": {"name": "iid", "sites": 5},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
        "model": {"name": "cnn"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
        "method": {"name": name},
        "engine": {"threads": 1, "trainer": "cohort"},
        "gate": {"heuristics": "always"},
    }
    if "multiclass" not in method.tasks:
        table["data"] = {"name": "npz", "path": str(multilabel_file(folder, 500 if small else 1200))}
        table["noise"] = {"name": "class-missing", "missing": 2}
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    table.update(changes)
    return table


ALONE = {"threads": 1, "trainer": "one"}
"""Engine settings under which a site's result is the same to the last bit, whoever else is served with it. Stacked
cohorts agree within float tolerance, tested step by step elsewhere; over whole runs a ReLU at its kink may turn
the last bit into more."""


def contract_study(name: str, folder: Path, *, small: bool = False, **changes: Any) -> Study:
    study = Study.from_table(contract_table(name, folder, small=small, **changes))
    return dataclasses.replace(study, method=study.method.tiny())


def alone_study(name: str, folder: Path, **engine: Any) -> Study:
    """For what compares bytes: every site trained alone, on data that are small, for more would not compare more."""
    return contract_study(name, folder, small=True, engine={**ALONE, **engine})


def play(study: Study, folder: Path, kind: type[InProcess] = InProcess) -> RunFolder:
    """Run a study in a fresh folder."""
    made = new_run(study, folder)
    InProcessTransport(kind).run(study, made)
    return made


def outcome(run_folder: RunFolder) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The final model (empty when every site has its own) and the rounds without their clock times."""
    from safetensors.torch import load_file

    file = run_folder.path / "model.safetensors"
    weights = load_file(file) if file.is_file() else {}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in run_folder.rounds()]
    return weights, rows


def assert_same_bits(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), f"{name} differs"


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor], relative: float) -> None:
    """Each tensor within a relative distance of its own length."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        a, b = value.double(), two[name].double()
        assert float((a - b).norm()) <= relative * max(float(a.norm()), 1e-12), f"{name} differs"


def tampering(change: Callable[[ReplyEnvelope, RequestEnvelope], ReplyEnvelope | None]) -> type[InProcess]:
    """An engine whose wire changes the answers of the last site."""

    class Tampered(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = dict(super().deliver(envelopes, deadline))
            victim = self.sites[-1]
            if victim in answers:
                changed = change(answers.pop(victim), envelopes[victim])
                if changed is not None:
                    answers[victim] = changed
            return answers

    return Tampered
