"""Checks data before any training: each finding has a severity, examples and a suggestion."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.build import check_dataset
from fedsift.data.csv_tables import MISSING
from fedsift.data.dataset import Dataset
from fedsift.data.images import DARK, load_pictures
from fedsift.data.input_files import open_regular
from fedsift.data.label_space import similar_names
from fedsift.data.sources.base import Source
from fedsift.data.sources.folder import FolderSource, SitesSource, site_folders
from fedsift.data.sources.listing import ListedSource
from fedsift.data.sources.npz import Npz
from fedsift.data.sources.table import TableSource
from fedsift.protocol.federation import FederationFacts
from fedsift.protocol.method import Method

# The doctor's checks: each looks at one thing and returns what it found
# ------------------------------------------------------------------------------

EXAMPLES = 5
IMBALANCE = 10.0
"""A largest class so many times the smallest is worth a word."""
TINY = 10
"""A site with fewer training samples is worth a word."""

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class DataFinding:
    """One thing that was found."""

    code: str
    severity: Severity
    text: str
    fix: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteSummary:
    """One site in numbers; classes by name."""

    name: str
    train: int
    test: int
    counts: dict[str, int]
    absent: tuple[str, ...]


# Files


def check_files(source: FolderSource) -> list[DataFinding]:
    """Unreadable and missing pictures, labels outside the vocabulary, empty sites."""
    findings: list[DataFinding] = []
    if isinstance(source, SitesSource):
        listings, _, empty = source.listing_by_site()
        missing = [f"{site}/{name}" for site, listing in listings.items() for name in listing.missing]
        outside = Counter({name: count for part in listings.values() for name, count in part.outside.items()})
        pictures = [picture for listing in listings.values() for picture in listing.pictures]
        findings += [
            DataFinding("empty-site", "warning", f"site '{site}' is empty", "remove it or add its data", (site,))
            for site in empty
        ]
    else:
        listing = source.listing()
        missing, outside, pictures = list(listing.missing), Counter(listing.outside), listing.pictures
        findings += _emptied_sites(source, listing.sites)
    decoded = load_pictures(
        pictures,  # in the order in which they are loaded afterwards, so that they are decoded once
        source.form,
        cache=source.cache,
        what=source.path.name,
    )
    if decoded.broken:
        words = tuple(f"{name}: {reason}" for name, reason in decoded.broken)
        text = f"{len(words)} of {len(pictures)} pictures cannot be read; they are left out"
        findings.append(DataFinding("unreadable", "warning", text, "repair or remove them", words))
    if decoded.dark:
        text = f"{counted(len(decoded.dark), '16-bit picture')} almost black: values below 1/16 of {source.bits} bits"
        fix = (
            "set bits to what they use, e.g. bits = 12 for values up to 4095; before that they are not looked "
            "through for duplicates"
        )
        findings.append(DataFinding("dark", "warning", text, fix, decoded.dark))
    if missing:
        text = f"{counted(len(missing), 'picture')} of the table not there"
        findings.append(DataFinding("missing-file", "warning", text, "add them or remove their rows", tuple(missing)))
    return findings + check_labels(outside)


def check_labels(outside: Mapping[str, int]) -> list[DataFinding]:
    """Labels outside the vocabulary, with how often each occurs."""
    if not outside:
        return []
    words = tuple(f"{name or 'no label at all'} ({count})" for name, count in Counter(outside).most_common())
    count = counted(sum(outside.values()), "sample")
    text = f"{count} without a label or with one outside the vocabulary; left out"
    return [DataFinding("unknown-label", "warning", text, "correct them or extend `classes`", words)]


def _emptied_sites(source: FolderSource, sites: NDArray[np.str_] | None) -> list[DataFinding]:
    """Sites that the table names but of which no picture is there."""
    table = source.table_path()
    if sites is None or table is None:
        return []
    named = {name for name in source.read_csv(table).get(source.site_column, []) if name}
    gone = sorted(named - {str(site) for site in sites})
    return [
        DataFinding(
            "empty-site",
            "warning",
            f"no picture of site '{site}' is there",
            "add them or drop the site",
            (site,),
        )
        for site in gone
    ]


# Samples


def check_duplicates(dataset: Dataset, dark: bool = False) -> list[DataFinding]:
    """The same content twice: across the split (a leak), across sites, or with two labels.

    dark: some 16-bit pictures came out almost black. Pictures that dark are left out: little is left of what made
    them differ.
    """
    same: dict[bytes, list[int]] = defaultdict(list)
    used = np.sort(np.concatenate([dataset.train, dataset.test]))
    for row in used:
        if dark and dataset.images[row].max(initial=0) < 256 // DARK:
            continue
        same[hashlib.blake2b(np.ascontiguousarray(dataset.images[row]).data, digest_size=16).digest()].append(int(row))
    groups = [rows for rows in same.values() if len(rows) > 1]
    test = set(dataset.test.tolist())
    across = [g for g in groups if 0 < sum(row in test for row in g) < len(g)]
    findings = []
    if across:
        text = f"{counted(len(across), 'picture')} both in training and in test: the test would be too kind"
        findings.append(_duplicate(dataset, "duplicate-across-splits", "warning", text, across))
    if dataset.sites is not None:
        names = dataset.sites
        between = [g for g in groups if g not in across and len({str(names[row]) for row in g}) > 1]
        if between:
            text = f"{counted(len(between), 'picture')} at more than one site"
            findings.append(_duplicate(dataset, "duplicate-across-sites", "warning", text, between))
    labels = dataset.labels if dataset.given is None else dataset.given
    torn = [g for g in groups if len({tuple(np.atleast_1d(labels[row])) for row in g}) > 1]
    if torn:
        text = f"{counted(len(torn), 'picture')} with two different labels"
        findings.append(_duplicate(dataset, "conflicting-labels", "warning", text, torn))
    inside = len(groups) - len(across)
    if inside:
        text = f"{counted(inside, 'picture')} more than once on one side of the split"
        findings.append(_duplicate(dataset, "duplicate", "note", text, [g for g in groups if g not in across]))
    return findings


def check_ids(dataset: Dataset) -> list[DataFinding]:
    """Names that stand for several samples, or for none."""
    if dataset.ids is None:
        return []
    used = np.concatenate([dataset.train, dataset.test])
    counts = Counter(dataset.ids[used].tolist())
    findings = []
    repeated = {str(name): count for name, count in counts.items() if count > 1 and name}
    if repeated:
        text = f"{counted(len(repeated), 'id')} for more than one sample: an audit could not distinguish them"
        words = tuple(f"{name} ({count} samples)" for name, count in repeated.items())
        findings.append(DataFinding("repeated-id", "warning", text, "give every row an id of its own", words))
    if counts.get("") and dataset.sites is None:
        text = f"{counted(counts[''], 'sample')} without an id"
        findings.append(DataFinding("no-id", "warning", text, "fill in the id column"))
    return findings


def check_values(dataset: Dataset) -> list[DataFinding]:
    """Pictures as floats are used as they are: a range of 0..255 is far from what networks are made for."""
    if not dataset.holds_pictures or dataset.images.dtype.kind != "f":
        return []
    largest = float(np.abs(dataset.images[dataset.train[:1024]]).max(initial=0.0))
    if largest <= 30:
        return []
    text = f"pictures are floats with values up to {largest:.0f}, which are not normalised"
    fix = "save them as uint8 (then they are normalised), or divide by their range"
    return [DataFinding("float-range", "warning", text, fix)]


def _duplicate(dataset: Dataset, code: str, severity: Severity, text: str, groups: list[list[int]]) -> DataFinding:
    words = tuple(" = ".join(sample_name(dataset, row) for row in group) for group in groups)
    return DataFinding(code, severity, text, "keep one of each", words)


def counted(number: int, thing: str) -> str:
    """'1 picture', '2 pictures'."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def sample_name(dataset: Dataset, row: int) -> str:
    return str(row) if dataset.ids is None else str(dataset.ids[row])


def check_groups(dataset: Dataset) -> list[DataFinding]:
    if dataset.groups is None:
        return []
    torn = sorted(set(dataset.groups[dataset.train].tolist()) & set(dataset.groups[dataset.test].tolist()) - {""})
    if not torn:
        return []
    text = f"{counted(len(torn), 'group')} (patient, lesion) on both sides of the split"
    fix = "drop the split column and set test_fraction: then whole groups are split"
    return [DataFinding("group-on-both-sides", "warning", text, fix, tuple(map(str, torn)))]


# Classes and sites


def class_counts(dataset: Dataset, rows: NDArray[np.int64]) -> dict[str, int]:
    labels = (dataset.labels if dataset.given is None else dataset.given)[rows]
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=dataset.n_classes)
    return {name: int(count) for name, count in zip(dataset.classes, counts)}


def check_names(dataset: Dataset) -> list[DataFinding]:
    """Class names that look like a misspelling of a more frequent one."""
    rows = np.concatenate([dataset.train, dataset.test])
    counts = {name: count for name, count in class_counts(dataset, rows).items() if count}
    findings = [
        DataFinding(
            "missing-value",
            "warning",
            f"class '{name}' ({counted(count, 'sample')}) looks like a missing value",
            'leave the cell empty and set unknown = "drop", or name the classes in `classes`',
            (name,),
        )
        for name, count in counts.items()
        if name.strip().lower() in MISSING
    ]
    return findings + [
        DataFinding(
            "look-alike",
            "warning",
            f"class '{rare}' ({counted(counts[rare], 'sample')}) looks like '{usual}' ({counts[usual]})",
            "if it is a misspelling, correct it; else name all classes in `classes`",
            (rare,),
        )
        for rare, usual in similar_names(counts)
    ]


def summarise_sites(dataset: Dataset) -> list[SiteSummary]:
    if dataset.sites is None:
        return []
    summaries = []
    for site in sorted({str(name) for name in dataset.sites if str(name)}):
        train = dataset.train[dataset.sites[dataset.train] == site]
        test = dataset.test[dataset.sites[dataset.test] == site]
        counts = class_counts(dataset, train)
        absent = tuple(name for name, count in counts.items() if count == 0)
        summaries.append(SiteSummary(site, len(train), len(test), counts, absent))
    return summaries


def check_sites(dataset: Dataset, sites: Sequence[SiteSummary]) -> list[DataFinding]:
    findings = []
    for site in sites:
        if site.train == 0:
            text = f"site '{site.name}' has no training sample"
            findings.append(DataFinding("empty-site", "warning", text, "add data or drop the site", (site.name,)))
        elif site.train < TINY:
            text = f"site '{site.name}' has {counted(site.train, 'training sample')} only"
            fix = "its updates will be noisy; a natural partition can leave it out with `minimum`"
            findings.append(DataFinding("tiny-site", "note", text, fix, (site.name,)))
        if site.absent and site.train:
            words = f"{', '.join(site.absent[:EXAMPLES])}{', ...' if len(site.absent) > EXAMPLES else ''}"
            text = f"site '{site.name}' lacks {len(site.absent)} of {len(site.counts)} classes: {words}"
            fix = "nothing to mend; prefer methods that mask absent classes (fedla, fednoro)"
            findings.append(DataFinding("absent-class", "note", text, fix, site.absent))
    if len(dataset.train) == 0:
        findings.append(DataFinding("no-train", "error", "there is no training sample", "check the split column"))
    elif dataset.n_classes < 2 and not dataset.multilabel:
        findings.append(DataFinding("one-class", "error", "all samples have one class", "check the label column"))
    return findings


def check_balance(dataset: Dataset) -> list[DataFinding]:
    counts = class_counts(dataset, dataset.train)
    held = {name: count for name, count in counts.items() if count}
    nobody = tuple(name for name, count in counts.items() if not count)
    findings = []
    if nobody:
        text = f"no training sample has class {', '.join(nobody[:EXAMPLES])}"
        findings.append(
            DataFinding("class-without-samples", "warning", text, "drop it from `classes` or add samples", nobody)
        )
    if held and max(held.values()) >= IMBALANCE * min(held.values()):
        most, least = max(held, key=lambda name: held[name]), min(held, key=lambda name: held[name])
        ratio = held[most] / held[least]
        text = f"'{most}' ({held[most]}) is {ratio:.0f} times as frequent as '{least}' ({held[least]})"
        findings.append(
            DataFinding("imbalance", "note", text, "judge by balanced accuracy; fedla and fednoro adjust for it")
        )
    return findings


UNUSABLE = 3
"""Exit code: the data cannot be used at all (as every data error)."""
FOUND = 7
"""Exit code: the data can be used, but something should be looked at first."""


@dataclass(frozen=True)
class ResourceEstimate:
    """What a run will need on this machine."""

    image_bytes: int
    """Memory (and cache on disk) for the decoded images, one copy."""
    first_load_seconds: float
    """Reading and decoding everything, measured here; later starts read the cache."""
    epoch_seconds: float
    """One pass of a small network over all training samples, extrapolated from a few batches."""


@dataclass(frozen=True)
class MethodFit:
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
class DoctorReport:
    """All that the doctor says."""

    name: str
    kind: str
    shape: tuple[int, ...]
    train: int
    test: int
    counts: dict[str, int]
    sites: tuple[SiteSummary, ...]
    findings: tuple[DataFinding, ...]
    estimate: ResourceEstimate
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
    with open_regular(path) as file:
        header = file.readline(65536).decode("utf-8", "replace")
    return "path" in (name.strip(' "\ufeff\r\n').lower() for name in re.split(r"[,;\t|]", header))


Look = Callable[[Dataset], list[DataFinding]]


def examine(source: Source, look: Look | None = None) -> DoctorReport:
    """Load what can be loaded and look at it from every side; nothing broken is fatal.

    look: something more to look for, for callers that may import more than this package.
    """
    findings: list[DataFinding] = []
    start = time.perf_counter()
    if isinstance(source, ListedSource):
        source = replace(source, unknown="drop")
    if isinstance(source, FolderSource):
        findings += check_files(source)
    if isinstance(source, TableSource):
        table = source.examined()
        findings += [DataFinding(each.code, "warning", each.text, each.fix) for each in table.remarks]
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
        findings.append(DataFinding("no-test", "note", text, "give a split column or test_fraction to decide yourself"))
    order = {"error": 0, "warning": 1, "note": 2}
    return DoctorReport(
        name=dataset.name,
        kind="multilabel" if dataset.multilabel else "multiclass",
        shape=dataset.shape,
        train=len(dataset.train),
        test=len(dataset.test),
        counts=class_counts(dataset, dataset.train),
        sites=tuple(sites),
        findings=tuple(sorted(findings, key=lambda finding: order[finding.severity])),
        estimate=ResourceEstimate(int(dataset.images.nbytes), round(seconds, 2), epoch_seconds(dataset)),
        annotates_all=not any(set(dataset.classes) - set(names) for names in (dataset.site_classes or {}).values()),
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


def federation_facts(report: DoctorReport) -> FederationFacts:
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


def fitting(report: DoctorReport, catalogue: Mapping[str, Method]) -> list[MethodFit]:
    """Which methods fit; each says so itself."""
    facts = federation_facts(report)
    fits = []
    for name in sorted(catalogue):
        incompatibility = catalogue[name].completed(facts).fits(facts)
        fits.append(
            MethodFit(
                name,
                incompatibility is None or not incompatibility.refuses,
                incompatibility.reason if incompatibility else "",
            )
        )
    return fits
