"""What is tried: the kinds of data, each a small federation, and the methods with the settings that fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROUNDS, FRACTION = 16, 0.3


@dataclass(frozen=True)
class Kind:
    """One small federation with wrong labels, and the same one without."""

    preset: str
    settings: tuple[str, ...]
    """Changes of the preset for every row."""
    clean: tuple[str, ...]
    """What makes every label right."""
    metric: str
    chance: float
    """What guessing gives."""
    what: str
    """One sentence for the page."""


@dataclass(frozen=True)
class Row:
    """One method. `reference` names the row that it is compared with where no label is wrong."""

    method: Mapping[str, Any]
    settings: tuple[str, ...] = ()
    reference: str = "fedavg"
    kinds: tuple[str, ...] = field(default=("cifar10", "ham10000"))


KINDS = {
    "cifar10": Kind(
        "fedcorr/cifar10-iid-0.4-0.5-small",
        ("data.test_limit=3000", "train.lr=0.02", "train.momentum=0.9", "train.augment.crop=0"),
        ("noise.rho=0",),
        "accuracy",
        0.1,
        "10,000 pictures of CIFAR-10 at 20 sites, LeNet-5, SGD 0.02 with momentum 0.9, 16 rounds of 6 of the sites "
        "with 2 epochs each; noise (0.4, 0.5) as FedCorr draws it.",
    ),
    "ham10000": Kind(
        "fednoro/isic-0.4-0.5-0.7-features",
        ("train.lr=0.003",),
        ("noise.rho=0",),
        "bacc",
        1 / 7,
        "HAM10000 at 64 pixels, frozen ImageNet features and a head with one hidden layer, 20 uneven sites, Adam "
        "0.003, 16 rounds of 6 of the sites; noise of rho 0.4, (0.5, 0.7), that depends on the picture.",
    ),
}


def _one(name: str, **settings: Any) -> dict[str, Any]:
    """A method of one stage at the common budget."""
    return {"name": name, "rounds": ROUNDS, "fraction": FRACTION, **settings}


CHEAP = ("ham10000",)
"""Rows that one kind of data is enough for: they differ from another row in the server's part or in one term."""
CENTRAL = ("partition={name='iid', sites=1}", "noise={name='fedcorr', rho=1.0, tau=0.3, upper=0.3}")
"""All in one place, with as many wrong labels in all: rho (1 + tau) / 2 = 0.3."""
RESNET = ('model.name="resnet8-cifar"', "data.test_limit=1000", "train.epochs=1")

ROWS: dict[str, Row] = {
    "fedavg": Row(_one("fedavg")),
    "fedprox": Row(_one("fedprox"), kinds=CHEAP),
    "fedla": Row(_one("fedla"), kinds=CHEAP),
    "feddyn": Row(_one("feddyn"), kinds=CHEAP),
    "scaffold": Row(_one("scaffold"), kinds=("cifar10",)),
    "poc": Row(_one("poc"), kinds=CHEAP),
    "rofl": Row(_one("rofl", pseudo_from=13)),
    "fedlsr": Row(_one("fedlsr")),
    "arfl": Row(_one("arfl")),
    "fedrn": Row(_one("fedrn")),
    "rhfl-avg": Row(_one("rhfl-avg")),
    "co-teaching": Row(_one("co-teaching")),
    "joint-opt": Row({"name": "joint-opt", "warmup": 12, "rounds": 4, "fraction": FRACTION}),
    "dividemix": Row({"name": "dividemix", "warmup": 12, "rounds": 4, "fraction": FRACTION}),
    "lc": Row({"name": "lc", "warmup": 8, "rounds": 8, "fraction": FRACTION}),
    "t-revision": Row({"name": "t-revision", "warmup": 10, "rounds": 3, "revision": 3, "fraction": FRACTION}),
    "fedcorr+la": Row(
        {
            "name": "fedcorr",
            "form": "la",
            "iterations": 1,
            "visit_fraction": 0.1,
            "fine_tuning_rounds": 4,
            "usual_rounds": 10,
            "fraction": FRACTION,
        }
    ),
    "feddiv": Row(
        {"name": "feddiv", "iterations": 1, "visit_fraction": 0.1, "rounds": 12, "fraction": FRACTION},
        kinds=("cifar10",),
    ),
    "fedclean": Row(
        {
            "name": "fedclean",
            "cnll_epochs": 10,
            "cnll_warm": 6,
            "rounds_1": 6,
            "rounds_2": 5,
            "rounds_3": 5,
            "fraction": FRACTION,
        },
        kinds=("cifar10",),
    ),
    "fedelc": Row(_one("fedelc", warm_up=8), kinds=("cifar10",)),
    "fednoro": Row({"name": "fednoro", "rounds": 8, "warm_up": 3}, kinds=CHEAP),
    "feddpcont": Row(_one("feddpcont"), kinds=CHEAP),
    "fedavg, gce": Row(_one("fedavg", loss="gce")),
    "fedavg, elr": Row(_one("fedavg", loss="elr")),
    "fedavg, sce": Row(_one("fedavg", loss="sce"), kinds=CHEAP),
    "fedmedian": Row(_one("fedmedian"), kinds=CHEAP),
    "fedavg, trimmed": Row(_one("fedavg", aggregate="trimmed"), kinds=CHEAP),
    "fedavg, krum": Row(_one("fedavg", aggregate="krum"), kinds=CHEAP),
    "fedavg, multi-krum": Row(_one("fedavg", aggregate="multi-krum"), kinds=CHEAP),
    "fedavg, geometric median": Row(_one("fedavg", aggregate="geometric-median"), kinds=CHEAP),
    "fedavg, clipped": Row(_one("fedavg", aggregate="clipped"), kinds=CHEAP),
    "central": Row({"name": "fedavg", "rounds": 4, "fraction": 1.0}, CENTRAL, "central", ("cifar10",)),
    "joint-opt, central": Row(
        {"name": "joint-opt", "warmup": 2, "rounds": 2, "fraction": 1.0}, CENTRAL, "central", ("cifar10",)
    ),
    "dividemix, central": Row(
        {"name": "dividemix", "warmup": 2, "rounds": 2, "fraction": 1.0}, CENTRAL, "central", ("cifar10",)
    ),
    "fedavg, resnet-8": Row(
        {"name": "fedavg", "rounds": 4, "fraction": FRACTION}, RESNET, "fedavg, resnet-8", ("cifar10",)
    ),
    "fedbn, resnet-8": Row(
        {"name": "fedbn", "rounds": 4, "fraction": FRACTION}, RESNET, "fedavg, resnet-8", ("cifar10",)
    ),
}
