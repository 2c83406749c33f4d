"""What hostile sites cost: accuracy of every averaging method with 0, 1 and 2 hostile sites of 10, attack by attack."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.attacks.attacks import FORM, MODEL, Sight, absent, attacked
from sklearn.datasets import load_digits

from fedsift.contract.messages import Answer
from fedsift.engines.inprocess import InProcess
from fedsift.methods import methods
from fedsift.methods.base import Averaging
from fedsift.study import Study
from fedsift.study.running import new_run, run

SITES = 10
HOSTILE = ("site-09", "site-08")
RULE = {"aggregate": "trimmed", "hostile": 0.2}
"""The robust rule that stands against two."""
OTHERS = ("arfl", "feddf", "cbafed")
"""Methods that average models by a rule of their own."""
SHORT: Mapping[str, dict[str, Any]] = {
    "cbafed": {"warmup": 4, "rounds": 8},
    "dividemix": {"warmup": 6, "rounds": 6},
    "fedcorr": {"iterations": 1, "fine_tuning_rounds": 4, "usual_rounds": 6},
    "feddf": {"rounds": 6},
    "feddpcont": {"rounds": 20},
    "feddyn": {"rounds": 20},
    "fednoro": {"rounds": 12, "warm_up": 6},
    "joint-opt": {"warmup": 6, "rounds": 8},
    "lc": {"warmup": 6, "rounds": 6},
    "rhfl-avg": {"rounds": 16},
    "t-revision": {"warmup": 6, "rounds": 6, "revision": 4},
}
"""As many rounds as let a method learn digits; 12 for the others."""
FINDINGS = ("even", "five or more", "round", "prime")
WITH: Mapping[int, tuple[int, ...]] = {
    0: (0, 2, 4, 6, 8),
    1: (5, 6, 7, 8, 9),
    2: (0, 6, 8, 9),
    3: (2, 3, 5, 7),
}


def averaging() -> list[str]:
    """Every method whose server makes one model of the sites' models."""
    return [name for name in methods.names() if issubclass(methods.get(name), Averaging) or name in OTHERS]


def several_labels(folder: Path) -> Path:
    """Digits with four yes/no findings each, for methods of several labels a sample."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    labels = np.stack([np.isin(digits.target, WITH[k]) for k in range(len(FINDINGS))], axis=1).astype(
        np.int64
    )
    path = folder / "findings.npz"
    np.savez(
        path,
        images=images[:1200],
        labels=labels[:1200],
        test_images=images[1200:],
        test_labels=labels[1200:],
        classes=np.array(FINDINGS),
    )
    return path


def study_of(name: str, folder: Path, *, robust: bool = False, **changes: Any) -> Study:
    """Ten equal sites of digits with clean labels: what is lost is lost to the attack."""
    method = methods.get(name)
    known = {entry.name for entry in dataclasses.fields(method)}
    table: dict[str, Any] = {
        "name": f"{name} under attack",
        "seed": 5,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "sites": SITES},
        "noise": {"name": "clean"},
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.2, "momentum": 0.9},
        "engine": {"threads": 1},
    }
    if "multiclass" not in method.tasks:
        table["data"] = {"name": "npz", "path": str(several_labels(folder))}
        table["noise"] = {"name": "class-missing", "missing": 1}
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    settings = {"rounds": 12, "fraction": 1.0, **SHORT.get(name, {}), **(RULE if robust else {})}
    table["method"] = {"name": name, **{key: value for key, value in settings.items() if key in known}}
    table.update(changes)
    return Study.from_table(table)


def outcome(study: Study, kind: type[InProcess]) -> tuple[float, int]:
    """The final accuracy, and how many replies were refused."""
    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        run(study, folder, kind=kind)
        summary = folder.read_json("summary.json")
    return round(float(summary["accuracy"]["final"]), 4), int(summary["refused"])


def every_form() -> Any:
    """All malformed answers, one after another."""
    turn = iter(range(10**9))

    def change(answer: Answer, sight: Sight) -> Answer | None:
        for _ in FORM:
            name = list(FORM)[next(turn) % len(FORM)]
            changed = FORM[name](answer, sight)
            if changed is not None:
                return changed
        return None

    return change


def cells(robust: bool) -> Iterator[tuple[str, int, str, type[InProcess]]]:
    """Attack, hostile sites, rule, engine; the first line is the measure of the others."""
    if robust:
        yield "none", 0, "trimmed", InProcess
        for attack, change in MODEL.items():
            yield attack, 2, "trimmed", attacked(change, HOSTILE)
        return
    yield "none", 0, "mean", InProcess
    yield "absent", 1, "mean", absent(HOSTILE[:1])
    yield "malformed", 1, "mean", attacked(every_form(), HOSTILE[:1])
    for attack, change in MODEL.items():
        yield attack, 1, "mean", attacked(change, HOSTILE[:1])
