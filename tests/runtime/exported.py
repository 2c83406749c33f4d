"""Sites of a simulation that were written to disk, beside the same sites in process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsift.data.dataset import FederatedDataset, PublicSet
from fedsift.protocol.messages import RequestEnvelope, RequestMoment
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study
from fedsift.training.requests import Evaluate


def small_data() -> FederatedDataset:
    """Three unequal sites of digits with wrong labels, a tenth held out."""
    study = Study.from_table(
        {
            "partition": {"name": "bernoulli-dirichlet", "sites": 3, "p": 0.7, "alpha": 1.0},
            "noise": {"name": "fedcorr", "rho": 1.0, "tau": 0.5},
            "evaluate": {"held_out": 0.1},
        }
    )
    return study.load_data()


def pairs(
    federated: FederatedDataset, places: Sequence[Path], opened: Callable[[Path], Any]
) -> list[tuple[Site, Site]]:
    """Each site as it is opened from disk, and as the in-process engine serves it."""
    federation = InProcess(federated, run="run", seed=1, model="mlp")
    moment = RequestMoment(1, "train", 0, 0)
    return [
        (
            opened(place).site(moment, Notebook(), "mlp"),
            federation.site(RequestEnvelope("run", name, moment, "", Evaluate(None))),
        )
        for name, place in zip(federated.sites, places, strict=True)
    ]


def assert_same_samples(mine: Site, theirs: Site) -> None:
    """Training and held-out samples with the labels that were given."""
    everything = torch.arange(len(theirs.samples))
    assert torch.equal(mine.samples.take(everything), theirs.samples.take(everything))
    assert torch.equal(mine.given, theirs.given)
    assert mine.held_out is not None
    assert theirs.held_out is not None
    held = torch.arange(len(theirs.held_out))
    assert torch.equal(mine.held_out.take(held), theirs.held_out.take(held))
    assert torch.equal(mine.held_out_given, theirs.held_out_given)


def assert_one_public_set(
    federated: FederatedDataset,
    export: Callable[[FederatedDataset], Sequence[Path]],
    opened: Callable[[Path], Any],
) -> None:
    """Every site on disk knows the public set by the digest that the in-process engine has."""
    public = PublicSet("p", federated.dataset.images, np.array([5, 3, 9]), (0.1,), (0.2,))
    with_public = dataclasses.replace(federated, public=public)
    federation = InProcess(with_public, run="run", seed=1, model="mlp")
    assert {opened(path).facts("mlp").public_digest for path in export(with_public)} == {
        federation.facts[site].public_digest for site in federated.sites
    }


def assert_no_truth(federated: FederatedDataset, folder: Path, described: Path) -> None:
    """The first site's arrays hold what was given, under names that say nothing, and no file speaks of a truth."""
    with np.load(folder / "data.npz") as arrays:
        assert set(arrays.files) == {"images", "labels", "classes", "ids", "test_images", "test_labels"}
        rows = (*federated.rows[federated.sites[0]], *federated.held_out[federated.sites[0]])
        names = [federated.dataset.id_of(int(row)) for row in rows]
        assert arrays["ids"].tolist() == names  # what a list calls a sample, not what it shows
        assert np.array_equal(arrays["labels"], federated.given[federated.sites[0]])
    assert "truth" not in described.read_text("utf-8")
