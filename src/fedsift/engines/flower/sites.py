"""A site's own description, `site.toml`, and its data as requests see them.

name = "north"                       # how the federation knows this site
classes = ["benign", "malignant"]    # the same names in the same order at every site
mean = [0.5]                         # how pixels are normalised, the same at every site
std = [0.5]
held_out = 0.2                       # share kept for evaluation here, when the data have no test part
notebook = "notebook"                # where this site keeps its own notes; never leaves

[data]                               # any dataset of `fedsift datasets`; paths are relative to this file
name = "npz"
path = "data.npz"
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from fedsift.contract.codec import write_atomically
from fedsift.contract.errors import ConfigError, DataError
from fedsift.contract.messages import Moment, SiteFacts
from fedsift.contract.notebook import Notebook
from fedsift.contract.randomness import numpy_generator
from fedsift.data.dataset import Dataset, Labels, Rows, Spread
from fedsift.data.sources import Source, sources
from fedsift.data.splits import split
from fedsift.engines.flower.hello import Introduction
from fedsift.engines.flower.notebooks import NotebookStore
from fedsift.engines.runfolder import safe_name
from fedsift.local.features import is_features, with_features
from fedsift.local.site import Compute, Samples, Site
from fedsift.study.study import read_toml
from fedsift.study.tables import build, build_named

SITE_FILE = "site.toml"


@dataclass(frozen=True)
class SiteFile:
    """The keys of a site.toml."""

    name: str
    classes: tuple[str, ...]
    data: dict[str, Any]
    """A dataset's table: its `name` and parameters."""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    multilabel: bool = False
    held_out: float = 0.2
    """Share kept for evaluation when the data have no test part; 0 keeps none."""
    notebook: Path = Path("notebook")
    model: str = ""
    """Another network than the study's."""
    annotated: tuple[str, ...] | None = None
    """Classes that the site annotates at all; without this key, every class."""
    public: dict[str, Any] = field(default_factory=dict)
    """A dataset's table for unlabelled samples that every site has, the same in the same order."""
    public_mean: tuple[float, ...] = ()
    """How the public samples are normalised; `mean` and `std` by default."""
    public_std: tuple[float, ...] = ()
    test: dict[str, Any] = field(default_factory=dict)
    """Simulations only: a dataset's table for the common test set, to judge models that stay at their sites."""
    privacy_budget: float | None = None
    """Epsilon that may ever be spent on each label; without this key the site sets no limit of its own."""
    secret: bool = True
    """Whether the site draws privacy noise from entropy of its own; a simulation draws from the run's seed."""
    device: str = "cpu"


@dataclass(frozen=True)
class SiteRoom:
    """A site ready to answer: its file, its data in memory, its notebook folder."""

    file: SiteFile
    notebook: Path
    samples: Samples
    given: Tensor
    held_out: Samples | None
    held_out_given: Tensor | None
    public: Samples | None
    public_digest: str
    test: Samples | None
    test_labels: Tensor | None
    secret: str = field(repr=False)

    def facts(self, model: str) -> SiteFacts:
        """What the site declares; `model` is the study's network, which a site may replace by its own."""
        named = self.file.annotated
        annotated = None if named is None else tuple(sorted(self.file.classes.index(name) for name in named))
        return SiteFacts(
            name=self.file.name,
            samples=len(self.samples),
            held_out=0 if self.held_out is None else len(self.held_out),
            model=self.file.model or model,
            annotated=annotated,
            public=0 if self.public is None else len(self.public),
            public_digest=self.public_digest,
            test=0 if self.test is None else len(self.test),
        )

    def introduction(self, model: str) -> Introduction:
        file = self.file
        return Introduction(
            self.facts(model), file.classes, file.multilabel, self.samples.shape, file.mean, file.std
        )

    def site(self, moment: Moment, notebook: Notebook, model: str) -> Site:
        """The site as one request sees it."""
        return Site(
            facts=self.facts(model),
            samples=self.samples,
            given=self.given,
            classes=self.file.classes,
            moment=moment,
            notebook=notebook,
            held_out=self.held_out,
            held_out_given=self.held_out_given,
            public=self.public,
            test=self.test,
            test_labels=self.test_labels,
            multilabel=self.file.multilabel,
            secret=self.secret,
            privacy_budget=self.file.privacy_budget,
            compute=Compute(device=self.file.device, trainer="one"),  # a cohort of one only costs
        )


def open_site(path: Path, model: str = "") -> SiteRoom:
    """Read a site.toml and its data; kept in memory while neither the file nor its arrays change.

    `model`: the study's network; when it is a head on frozen features, the site's pictures become features here.
    """
    path = Path(path).resolve()
    file = read_site_file(path)
    network = file.model or model
    return _open_site(path, _stamp(path), network if is_features(network) else "")


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        return tuple(file.stat().st_mtime_ns for file in (path, path.parent / "data.npz") if file.is_file())
    except OSError:
        return ()


@lru_cache(maxsize=256)
def _open_site(path: Path, stamp: tuple[int, ...], features: str) -> SiteRoom:
    file = read_site_file(path)
    dataset = with_features(_load(file.data, path, file.classes), features, device=file.device)
    labels = _in_vocabulary(dataset, file)
    train, held = dataset.train, dataset.test
    if len(held) == 0 and file.held_out > 0:
        groups = None if dataset.groups is None else dataset.groups[train]
        larger, smaller = split(
            labels[train], file.held_out, numpy_generator(0, file.name, "held out"), groups
        )
        train, held = train[larger], train[smaller]
    if len(train) == 0:
        raise DataError(f"site '{file.name}' has no training sample: check the [data] table of {path}")
    pool = torch.from_numpy(dataset.images).to(file.device)
    public = _public(file, path)
    test = _common_test(file, path)
    return SiteRoom(
        file=file,
        notebook=path.parent / file.notebook,
        samples=_samples(pool, train, file),
        given=torch.from_numpy(labels[train]),
        held_out=_samples(pool, held, file) if len(held) else None,
        held_out_given=torch.from_numpy(labels[held]) if len(held) else None,
        public=public,
        public_digest="" if public is None else public.digest(),
        test=None if test is None else test[0],
        test_labels=None if test is None else test[1],
        secret=own_secret(path.parent / file.notebook) if file.secret else "",
    )


def _public(file: SiteFile, path: Path) -> Samples | None:
    if not file.public:
        return None
    data = _load(file.public, path, file.classes)
    pool = torch.from_numpy(data.images).to(file.device)
    mean, std = file.public_mean or file.mean, file.public_std or file.std
    return Samples(pool, torch.from_numpy(data.train), mean, std)


def _common_test(file: SiteFile, path: Path) -> tuple[Samples, Tensor] | None:
    if not file.test:
        return None
    data = _load(file.test, path, file.classes)
    pool = torch.from_numpy(data.images).to(file.device)
    return _samples(pool, data.train, file), torch.from_numpy(_in_vocabulary(data, file)[data.train])


def own_secret(notebook: Path) -> str:
    """Entropy that only this site knows, drawn once and kept beside its notebook."""
    file = notebook / "secret"
    notebook.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        beside = notebook / f"secret.{os.getpid()}.new"
        beside.write_text(secrets.token_hex(32), "ascii")
        beside.chmod(0o600)
        try:
            os.link(beside, file)  # the first of two processes wins; both then read the same
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    return file.read_text("ascii").strip()


def read_site_file(path: Path) -> SiteFile:
    """A site.toml with every key checked."""
    table = _toml(path)
    file = build(SiteFile, table, "")
    if not file.name.strip():
        raise ConfigError(f"{path}: 'name' is empty; the federation knows a site by its name")
    if len(set(file.classes)) != len(file.classes) or not file.classes:
        raise ConfigError(f"{path}: 'classes' must name every class of the federation once")
    for name in file.annotated or ():
        if name not in file.classes:
            raise ConfigError(f"{path}: 'annotated' names '{name}', which is not one of 'classes'")
    return file


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"site file '{path}' does not exist")
    return read_toml(path)


def _load(table: Mapping[str, Any], site_file: Path, classes: tuple[str, ...]) -> Dataset:
    """The dataset of a table, with paths relative to the site's file."""
    filled = dict(table)
    if filled.get("name") == "folder" and not filled.get("label_columns"):
        filled.setdefault("classes", list(classes))  # a site may lack classes that others have
    source: Source = build_named(sources, filled, "data")
    here = {
        f.name: site_file.parent / value
        for f in dataclasses.fields(source)
        if isinstance(value := getattr(source, f.name), Path)
    }
    located: Source = dataclasses.replace(source, **here)  # type: ignore[arg-type]
    dataset = located.load()
    return dataset if dataset.given is None else dataclasses.replace(dataset, labels=dataset.given)


def _in_vocabulary(dataset: Dataset, file: SiteFile) -> Labels:
    """The labels as numbers of the federation's classes."""
    if dataset.multilabel != file.multilabel:
        kind = "several labels" if dataset.multilabel else "one label"
        raise DataError(
            f"site '{file.name}': its data have {kind} a sample, its site.toml says otherwise (multilabel)"
        )
    unknown = [name for name in dataset.classes if name not in file.classes]
    if unknown:
        raise DataError(
            f"site '{file.name}': its data have class '{unknown[0]}', which is not one of its site.toml's "
            f"classes {', '.join(file.classes)}"
        )
    if dataset.classes == file.classes:
        return dataset.labels
    number = np.array([file.classes.index(name) for name in dataset.classes])
    if not dataset.multilabel:
        return number[dataset.labels].astype(np.int64)
    labels = np.zeros((len(dataset.labels), len(file.classes)), np.int64)
    labels[:, number] = dataset.labels
    return labels


def _samples(pool: Tensor, rows: Rows, file: SiteFile) -> Samples:
    return Samples(pool, torch.from_numpy(rows), file.mean, file.std)


def read_notebooks(files: Iterable[Path], run: str, accepted: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Pages of simulated sites as they stand, by site: what only a simulation may look at."""
    notebooks = {}
    for path in files:
        file = read_site_file(path)
        store = NotebookStore(path.parent / file.notebook, run, file.name)
        notebooks[file.name] = store.pages(accepted[file.name]) if file.name in accepted else {}
    return {site: pages for site, pages in notebooks.items() if pages}


# Sites from a study's own data, for simulations and trials -----------------------------------------------------------


def export_sites(
    spread: Spread, models: Mapping[str, str], folder: Path, *, simulated: bool = True
) -> list[Path]:
    """One folder a site, with its site.toml and its samples, in the federation's order. The truth stays behind.

    `simulated` sites also get what no real one has: the common test set, and draws that follow from the run's seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = _export_common(spread, folder, simulated)
    files = []
    for number, site in enumerate(spread.sites):
        place = folder / f"{number:05d}-{safe_name(site)}"
        if not (place / SITE_FILE).is_file():
            _export(spread, site, {"model": models.get(site, ""), **common}, place)
        files.append(place / SITE_FILE)
    return files


def _export_common(spread: Spread, folder: Path, simulated: bool) -> dict[str, Any]:
    """What all sites share, written once beside their folders; the keys that point to it."""
    data, public = spread.dataset, spread.public
    keys: dict[str, Any] = {} if not simulated else {"secret": False}
    if simulated and len(data.test):
        arrays = {
            "images": data.images[data.test],
            "labels": data.labels[data.test],
            "classes": np.array(data.classes),
        }
        _save_arrays(folder / "test.npz", arrays)
        keys["test"] = {"name": "npz", "path": "../test.npz"}
    if public is not None:
        unlabelled = np.zeros(len(public.rows), np.int64)
        _save_arrays(folder / "public.npz", {"images": public.images[public.rows], "labels": unlabelled})
        keys |= {"public": {"name": "npz", "path": "../public.npz"}}
        keys |= {"public_mean": list(public.mean), "public_std": list(public.std)}
    return keys


def _export(spread: Spread, site: str, keys: Mapping[str, Any], place: Path) -> None:
    data = spread.dataset
    place.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "images": data.images[spread.rows[site]],
        "labels": spread.given[site],
        "classes": np.array(data.classes),
    }
    held_out = spread.held_out.get(site, np.zeros(0, np.int64))
    if len(held_out):
        arrays |= {"test_images": data.images[held_out], "test_labels": spread.held_out_given[site]}
    _save_arrays(place / "data.npz", arrays)
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
    if spread.annotated is not None:
        table["annotated"] = [data.classes[k] for k in np.flatnonzero(spread.annotated[site])]
    write_atomically(place / SITE_FILE, tomli_w.dumps(table).encode("utf-8"))


def _save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    if path.is_file():
        return
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
    beside.replace(path)
