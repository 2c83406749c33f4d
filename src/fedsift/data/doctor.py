"""What is wrong with data before any training: every finding with its severity, examples and the way out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsift.contract.errors import DataError
from fedsift.contract.facts import FederationFacts
from fedsift.contract.method import Method
from fedsift.data.build import check_dataset
from fedsift.data.checks import (
    Finding,
    SiteSummary,
    check_balance,
    check_duplicates,
    check_files,
    check_groups,
    check_ids,
    check_labels,
    check_names,
    check_sites,
    check_values,
    class_counts,
    summarise_sites,
)
from fedsift.data.dataset import Dataset
from fedsift.data.sources.base import Source
from fedsift.data.sources.folder import FolderSource
from fedsift.data.sources.npz import Npz
from fedsift.data.sources.numbers import TableSource
from fedsift.data.sources.sites import SitesSource, site_folders
from fedsift.data.sources.tabled import Tabled

UNUSABLE = 3
"""Exit code: the data cannot be used at all (as every data error)."""
FOUND = 7
"""Exit code: the data can be used, but something should be looked at first."""


@dataclass(frozen=True)
class Estimate:
    """What a run will need on this machine."""

    image_bytes: int
    """Memory (and cache on disk) for the decoded images, one copy."""
    first_load_seconds: float
    """Reading and decoding everything, measured here; later starts read the cache."""
    epoch_seconds: float
    """One pass of a small network over all training samples, extrapolated from a few batches."""


@dataclass(frozen=True)
class Fit:
    """Whether a method can be run on these data, and what speaks against it."""

    method: str
    fits: bool
    """False where a run would be refused."""
    reason: str
    """What speaks against it, also where it can be run; empty where nothing does."""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if not self.fits:
            return "no"
        return "with care" if self.reason else "yes"


@dataclass(frozen=True)
class Report:
    """All that the doctor says."""

    name: str
    kind: str
    shape: tuple[int, ...]
    train: int
    test: int
    counts: dict[str, int]
    sites: tuple[SiteSummary, ...]
    findings: tuple[Finding, ...]
    estimate: Estimate
    annotates_all: bool = True
    """False when some site does not annotate some class."""

    @property
    def exit_code(self) -> int:
        worst = {finding.severity for finding in self.findings}
        return UNUSABLE if "error" in worst else FOUND if "warning" in worst else 0


def kind_at(path: Path) -> type[Npz] | type[TableSource] | type[FolderSource]:
    """The kind of source that a path most likely is: an .npz, a table of numbers, a folder of sites, a folder or zip of
    pictures."""
    if not path.exists():
        raise DataError(f"there is no {path}")
    if path.suffix == ".npz":
        return Npz
    if path.is_file() and path.suffix.lower() == ".xlsx":
        raise DataError(f"{path} is a spreadsheet: save it as CSV in UTF-8")
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".txt"):
        if names_pictures(path):
            raise DataError(
                f"{path} is a table of pictures: name their folder, with the table in it, or add table={path.name}"
            )
        return TableSource
    own_table = path.is_dir() and any(path.glob("*.csv"))
    if path.is_dir() and not own_table and any(any(part.glob("*.csv")) for part in site_folders(path)):
        return SitesSource
    return FolderSource


def names_pictures(path: Path) -> bool:
    """Whether a table has a column with the paths of pictures, and so no numbers to learn from."""
    with path.open("rb") as file:
        header = file.readline(65536).decode("utf-8", "replace")
    return "path" in (name.strip(' "\ufeff\r\n').lower() for name in re.split(r"[,;\t|]", header))


Look = Callable[[Dataset], list[Finding]]


def examine(source: Source, look: Look | None = None) -> Report:
    """Load what can be loaded and look at it from every side; nothing broken is fatal.

    look: something more to look for, by those who may use more than the data room has.
    """
    findings: list[Finding] = []
    start = time.perf_counter()
    if isinstance(source, Tabled):
        source = replace(source, unknown="drop")
    if isinstance(source, FolderSource):
        findings += check_files(source)
    if isinstance(source, TableSource):
        table = source.examined()
        findings += [Finding(each.code, "warning", each.text, each.fix) for each in table.remarks]
        findings += check_labels(table.outside)
    dataset = source.load()
    check_dataset(dataset)
    seconds = time.perf_counter() - start
    findings += check_ids(dataset)
    findings += check_values(dataset)
    findings += check_duplicates(dataset, dark=any(finding.code == "dark" for finding in findings))
    findings += check_groups(dataset)
    findings += check_names(dataset)
    sites = summarise_sites(dataset)
    findings += check_sites(dataset, sites)
    findings += check_balance(dataset)
    findings += look(dataset) if look is not None else []
    if len(dataset.test) == 0:
        text = "there is no test split: every site will hold out a fifth of its samples"
        findings.append(
            Finding("no-test", "note", text, "give a split column or test_fraction to decide yourself")
        )
    order = {"error": 0, "warning": 1, "note": 2}
    return Report(
        name=dataset.name,
        kind="multilabel" if dataset.multilabel else "multiclass",
        shape=dataset.shape,
        train=len(dataset.train),
        test=len(dataset.test),
        counts=class_counts(dataset, dataset.train),
        sites=tuple(sites),
        findings=tuple(sorted(findings, key=lambda finding: order[finding.severity])),
        estimate=Estimate(int(dataset.images.nbytes), round(seconds, 2), epoch_seconds(dataset)),
        annotates_all=not any(
            set(dataset.classes) - set(names) for names in (dataset.site_classes or {}).values()
        ),
    )


def epoch_seconds(dataset: Dataset, batches: int = 3, batch: int = 32) -> float:
    """Seconds for one pass of a small network over the training samples, from a few timed batches."""
    import torch
    from torch import nn

    rows = dataset.train[:batch]
    if len(rows) == 0:
        return 0.0
    inputs = torch.from_numpy(np.ascontiguousarray(dataset.images[rows])).float()
    if inputs.ndim == 4:
        network = nn.Sequential(
            nn.Conv2d(inputs.shape[1], 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, 2),
        )
    else:
        network = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    times = []
    for _ in range(batches + 1):
        start = time.perf_counter()
        network(inputs).square().mean().backward()
        times.append(time.perf_counter() - start)
    return round(min(times) * len(dataset.train) / len(rows), 3)


def federation_facts(report: Report) -> FederationFacts:
    """What the data say of the federation that they would make."""
    sites = [site for site in report.sites if site.train]
    return FederationFacts(
        sites=len(sites) or None,
        samples=tuple(site.train for site in sites),
        classes=len(report.counts),
        multilabel=report.kind == "multilabel",
        own_labels=True,
        natural=bool(sites),
        annotates_all=report.annotates_all,
    )


def fitting(report: Report, catalogue: Mapping[str, Method]) -> list[Fit]:
    """Which methods fit; each says so itself."""
    facts = federation_facts(report)
    fits = []
    for name in sorted(catalogue):
        misfit = catalogue[name].completed(facts).fits(facts)
        fits.append(Fit(name, misfit is None or not misfit.refuses, misfit.reason if misfit else ""))
    return fits
