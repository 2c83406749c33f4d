"""Writes a study's data as folders with site.toml files, for a trial deployment on one machine; without the truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedsift.core.files import safe_name, write_atomically
from fedsift.data.dataset import FederatedDataset
from fedsift.deploy.site.site_file import SITE_FILE
from fedsift.transports.remote.simulated_sites import arrays_of, central_arrays, save_arrays


def export_trial(federated: FederatedDataset, models: Mapping[str, str], folder: Path) -> list[Path]:
    """One folder a site, with its site.toml and its samples, in the federation's order; the site files."""
    folder.mkdir(parents=True, exist_ok=True)
    common = _export_public(federated, folder)
    files = []
    for number, site in enumerate(federated.sites):
        place = folder / f"{number:05d}-{safe_name(site)}"
        if not (place / SITE_FILE).is_file():
            _export(federated, site, {"model": models.get(site, ""), **common}, place)
        files.append(place / SITE_FILE)
    return files


def export_test(federated: FederatedDataset, folder: Path) -> dict[str, Any]:
    """The coordinator's own test set and the key that points to it; nothing when the data have none."""
    arrays = central_arrays(federated)
    if arrays is None:
        return {}
    path = (folder / "test.npz").resolve()
    save_arrays(path, arrays)
    return {"test": {"name": "npz", "path": str(path)}}


def _export_public(federated: FederatedDataset, folder: Path) -> dict[str, Any]:
    """What all sites share, written once beside their folders; the keys that point to it."""
    public = federated.public
    if public is None:
        return {}
    unlabelled = np.zeros(len(public.rows), np.int64)
    save_arrays(folder / "public.npz", {"images": public.images[public.rows], "labels": unlabelled})
    return {
        "public": {"name": "npz", "path": "../public.npz"},
        "public_mean": list(public.mean),
        "public_std": list(public.std),
    }


def _export(federated: FederatedDataset, site: str, keys: Mapping[str, Any], place: Path) -> None:
    data = federated.dataset
    save_arrays(place / "data.npz", arrays_of(federated, site))
    table: dict[str, Any] = {
        "name": site,
        "classes": list(data.classes),
        "multilabel": data.multilabel,
        "mean": list(data.mean),
        "std": list(data.std),
        "held_out": 0.0,
        "notebook": "notebook",
        **keys,
        "data": {"name": "npz", "path": "data.npz"},
    }
    if federated.annotated is not None:
        table["annotated"] = [data.classes[k] for k in np.flatnonzero(federated.annotated[site])]
    write_atomically(place / SITE_FILE, tomli_w.dumps(table).encode("utf-8"))
