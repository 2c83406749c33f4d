"""The engine of simulated sites on a network transport: writes a folder for each site, without true labels, and
answers.

<folder>/common.json, test.npz, public.npz     what all sites share
<folder>/00003-north/site.json, data.npz       one site; its notebook lies here too
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.core.files import safe_name, write_atomically
from fedsift.data.dataset import FederatedDataset
from fedsift.protocol.site import Samples
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import EngineParts, SimulationSettings
from fedsift.transports.remote.channel import Channel
from fedsift.transports.remote.engine import ExpectedSites, RemoteEngine
from fedsift.transports.remote.federation import RemoteFederation
from fedsift.transports.remote.notebooks import NotebookStore
from fedsift.transports.remote.site_directory import GreetingIntervals
from fedsift.transports.remote.site_runtime import SiteRuntime

SITE = "site.json"
COMMON = "common.json"
NOTEBOOK = "notebook"
JOIN_SECONDS = 240.0
"""Simulated nodes can take long to start on a busy machine."""


@dataclass(frozen=True)
class RemoteSimulation:
    """The engine of a simulated federation over a network transport: each node answers from a site's folder."""

    federated: FederatedDataset
    channel: Callable[[Mapping[str, str], Sequence[Path]], Channel]
    """Makes the channel, given texts that every message carries and the sites' folders."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Another network for a site, by its name."""
    note: Mapping[str, str] = field(default_factory=dict)
    """Further texts that every message carries."""
    pace: GreetingIntervals = field(
        default_factory=lambda: GreetingIntervals(poll=0.02, look_for_nodes=1.0, ask_again=600.0, absent=5.0)
    )

    def open(self, parts: EngineParts, folder: RunFolder) -> RemoteFederation:
        """The sites are written into the run's folder, where their notebooks lie too."""
        federated = self.federated
        places = dict(
            zip(federated.sites, export_sites(federated, self.models, folder.path / "sites", parts.quorum.min_count))
        )
        engine = RemoteEngine(
            lambda note: self.channel(note, list(places.values())),
            ExpectedSites(tuple(federated.sites), at_least=len(federated.sites), wait=JOIN_SECONDS),
            note=self.note,
            pace=self.pace,
            own_test=lambda common: central_test(federated),
            seen=lambda accepted: seen(federated, places, folder.id, accepted),
        )
        return engine.open(parts, folder)


def central_test(federated: FederatedDataset) -> tuple[Samples, Tensor] | None:
    """The central test set; None when the data have none."""
    data = federated.dataset
    if len(data.test) == 0:
        return None
    samples = Samples(torch.from_numpy(data.images), torch.from_numpy(data.test), data.mean, data.std)
    return samples, torch.from_numpy(data.labels[data.test])


def export_sites(
    federated: FederatedDataset, models: Mapping[str, str], folder: Path, min_count: int = 0
) -> list[Path]:
    """Write what is not there yet; the sites' folders, in the federation's order."""
    folder.mkdir(parents=True, exist_ok=True)
    _export_common(federated, folder, min_count)
    places = []
    for number, site in enumerate(federated.sites):
        place = folder / f"{number:05d}-{safe_name(site)}"
        if not (place / SITE).is_file():
            save_arrays(place / "data.npz", arrays_of(federated, site))
            annotated = None
            if federated.annotated is not None:
                annotated = [int(k) for k in np.flatnonzero(federated.annotated[site])]
            about = {"name": site, "model": models.get(site, ""), "annotated": annotated}
            _write_json(place / SITE, about)
        places.append(place)
    return places


def arrays_of(federated: FederatedDataset, site: str) -> dict[str, Any]:
    """A site's samples with the labels that it was given; what it holds out, as a test part."""
    data = federated.dataset
    arrays: dict[str, Any] = {
        "images": data.images[federated.rows[site]],
        "labels": federated.given[site],
        "classes": np.array(data.classes),
    }
    held_out = federated.held_out.get(site, np.zeros(0, np.int64))
    if len(held_out):
        arrays |= {"test_images": data.images[held_out], "test_labels": federated.held_out_given[site]}
    rows = np.concatenate([federated.rows[site], held_out])
    arrays["ids"] = np.array([data.id_of(int(row)) for row in rows])
    if data.groups is not None:
        arrays["group"] = np.asarray(data.groups)[rows].astype(str)
    return arrays


def central_arrays(federated: FederatedDataset) -> dict[str, Any] | None:
    """The central test set; None when the data have none."""
    data = federated.dataset
    if len(data.test) == 0:
        return None
    return {
        "images": data.images[data.test],
        "labels": data.labels[data.test],
        "classes": np.array(data.classes),
    }


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Whole or not at all; a file that is there stays."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
    beside.replace(path)


def _export_common(federated: FederatedDataset, folder: Path, min_count: int) -> None:
    data, public = federated.dataset, federated.public
    common: dict[str, Any] = {
        "classes": list(data.classes),
        "multilabel": data.multilabel,
        "mean": list(data.mean),
        "std": list(data.std),
        "min_count": min_count,
    }
    test = central_arrays(federated)
    if test is not None:
        save_arrays(folder / "test.npz", test)
    if public is not None:
        save_arrays(folder / "public.npz", {"images": public.images[public.rows]})
        common |= {"public_mean": list(public.mean), "public_std": list(public.std)}
    _write_json(folder / COMMON, common)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(table, indent=2) + "\n").encode("utf-8"))


def open_simulated(place: Path) -> SiteRuntime:
    """A site's folder in memory, read once: nothing in it changes but the notebook."""
    return _open(place.resolve(), (place / SITE).stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _open(place: Path, stamp: int) -> SiteRuntime:
    about, common = _read_json(place / SITE), _read_json(place.parent / COMMON)
    mean, std = tuple(common["mean"]), tuple(common["std"])

    def samples(images: Any, mean: tuple[float, ...] = mean, std: tuple[float, ...] = std) -> Samples:
        return Samples(torch.from_numpy(images), torch.arange(len(images)), mean, std)

    held_out = test = public = None
    held_out_given: Tensor | None = None
    test_labels: Tensor | None = None
    with np.load(place / "data.npz") as arrays:
        own, given = samples(arrays["images"]), torch.from_numpy(arrays["labels"])
        groups = None
        if "group" in arrays:
            numbers = np.unique(arrays["group"][: len(given)], return_inverse=True)[1]
            groups = torch.from_numpy(numbers)
        if "test_images" in arrays:
            held_out, held_out_given = (
                samples(arrays["test_images"]),
                torch.from_numpy(arrays["test_labels"]),
            )
    if (place.parent / "test.npz").is_file():
        with np.load(place.parent / "test.npz") as arrays:
            test, test_labels = samples(arrays["images"]), torch.from_numpy(arrays["labels"])
    if (place.parent / "public.npz").is_file():
        with np.load(place.parent / "public.npz") as arrays:
            public = samples(arrays["images"], tuple(common["public_mean"]), tuple(common["public_std"]))
    annotated = about["annotated"]
    return SiteRuntime(
        name=about["name"],
        classes=tuple(common["classes"]),
        multilabel=common["multilabel"],
        mean=mean,
        std=std,
        notebook=place / NOTEBOOK,
        samples=own,
        given=given,
        groups=groups,
        held_out=held_out,
        held_out_given=held_out_given,
        public=public,
        public_digest="" if public is None else public.digest(),
        test=test,
        test_labels=test_labels,
        model=about["model"],
        min_count=common["min_count"],
        annotated=None if annotated is None else tuple(annotated),
    )


def _read_json(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return table


def seen(
    federated: FederatedDataset, places: Mapping[str, Path], run: str, accepted: Mapping[str, str]
) -> SimulationSettings:
    """What the simulation knows at this moment; notebooks are read from the sites' folders, as only it may."""
    pages = {
        site: NotebookStore(place / NOTEBOOK, run, site).pages(accepted[site])
        for site, place in places.items()
        if site in accepted
    }
    return SimulationSettings(federated, {site: own for site, own in pages.items() if own})
