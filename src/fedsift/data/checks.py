"""The doctor's checks: each looks at one thing and returns what it found."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.data.dataset import Dataset
from fedsift.data.images import DARK, load_pictures
from fedsift.data.labelspace import look_alikes
from fedsift.data.sources.folder import FolderSource
from fedsift.data.sources.sites import SitesSource
from fedsift.data.tables import MISSING

EXAMPLES = 5
IMBALANCE = 10.0
"""A largest class so many times the smallest is worth a word."""
TINY = 10
"""A site with fewer training samples is worth a word."""

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
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


def check_files(source: FolderSource) -> list[Finding]:
    """Unreadable and missing pictures, labels outside the vocabulary, empty sites."""
    findings: list[Finding] = []
    if isinstance(source, SitesSource):
        listings, _, empty = source.listing_by_site()
        missing = [f"{site}/{name}" for site, listing in listings.items() for name in listing.missing]
        outside = Counter({name: count for part in listings.values() for name, count in part.outside.items()})
        pictures = [picture for listing in listings.values() for picture in listing.pictures]
        findings += [
            Finding("empty-site", "warning", f"site '{site}' is empty", "remove it or add its data", (site,))
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
        findings.append(Finding("unreadable", "warning", text, "repair or remove them", words))
    if decoded.dark:
        text = f"{counted(len(decoded.dark), '16-bit picture')} almost black: values below 1/16 of {source.bits} bits"
        fix = (
            "set bits to what they use, e.g. bits = 12 for values up to 4095; before that they are not looked "
            "through for duplicates"
        )
        findings.append(Finding("dark", "warning", text, fix, decoded.dark))
    if missing:
        text = f"{counted(len(missing), 'picture')} of the table not there"
        findings.append(
            Finding("missing-file", "warning", text, "add them or remove their rows", tuple(missing))
        )
    return findings + check_labels(outside)


def check_labels(outside: Mapping[str, int]) -> list[Finding]:
    """Labels outside the vocabulary, with how often each occurs."""
    if not outside:
        return []
    words = tuple(f"{name or 'no label at all'} ({count})" for name, count in Counter(outside).most_common())
    count = counted(sum(outside.values()), "sample")
    text = f"{count} without a label or with one outside the vocabulary; left out"
    return [Finding("unknown-label", "warning", text, "correct them or extend `classes`", words)]


def _emptied_sites(source: FolderSource, sites: NDArray[np.str_] | None) -> list[Finding]:
    """Sites that the table names but of which no picture is there."""
    table = source.table_path()
    if sites is None or table is None:
        return []
    named = {name for name in source.read_csv(table).get(source.site_column, []) if name}
    gone = sorted(named - {str(site) for site in sites})
    return [
        Finding(
            "empty-site",
            "warning",
            f"no picture of site '{site}' is there",
            "add them or drop the site",
            (site,),
        )
        for site in gone
    ]


# Samples


def check_duplicates(dataset: Dataset, dark: bool = False) -> list[Finding]:
    """The same content twice: across the split (a leak), across sites, or with two labels.

    dark: some 16-bit pictures came out almost black. Pictures that dark are left out: little is left of what made
    them differ.
    """
    same: dict[bytes, list[int]] = defaultdict(list)
    used = np.sort(np.concatenate([dataset.train, dataset.test]))
    for row in used:
        if dark and dataset.images[row].max(initial=0) < 256 // DARK:
            continue
        same[hashlib.blake2b(np.ascontiguousarray(dataset.images[row]).data, digest_size=16).digest()].append(
            int(row)
        )
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
        findings.append(
            _duplicate(dataset, "duplicate", "note", text, [g for g in groups if g not in across])
        )
    return findings


def check_ids(dataset: Dataset) -> list[Finding]:
    """Names that stand for several samples, or for none."""
    if dataset.ids is None:
        return []
    used = np.concatenate([dataset.train, dataset.test])
    counts = Counter(dataset.ids[used].tolist())
    findings = []
    repeated = {str(name): count for name, count in counts.items() if count > 1 and name}
    if repeated:
        text = f"{counted(len(repeated), 'id')} for more than one sample: an audit could not tell them apart"
        words = tuple(f"{name} ({count} samples)" for name, count in repeated.items())
        findings.append(Finding("repeated-id", "warning", text, "give every row an id of its own", words))
    if counts.get("") and dataset.sites is None:
        text = f"{counted(counts[''], 'sample')} without an id"
        findings.append(Finding("no-id", "warning", text, "fill in the id column"))
    return findings


def check_values(dataset: Dataset) -> list[Finding]:
    """Pictures as floats are used as they are: a range of 0..255 is far from what networks are made for."""
    if dataset.images.ndim != 4 or dataset.images.dtype.kind != "f":
        return []
    largest = float(np.abs(dataset.images[dataset.train[:1024]]).max(initial=0.0))
    if largest <= 30:
        return []
    text = f"pictures are floats with values up to {largest:.0f}, which are not normalised"
    fix = "save them as uint8 (then they are normalised), or divide by their range"
    return [Finding("float-range", "warning", text, fix)]


def _duplicate(
    dataset: Dataset, code: str, severity: Severity, text: str, groups: list[list[int]]
) -> Finding:
    words = tuple(" = ".join(sample_name(dataset, row) for row in group) for group in groups)
    return Finding(code, severity, text, "keep one of each", words)


def counted(number: int, thing: str) -> str:
    """'1 picture', '2 pictures'."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def sample_name(dataset: Dataset, row: int) -> str:
    return str(row) if dataset.ids is None else str(dataset.ids[row])


def check_groups(dataset: Dataset) -> list[Finding]:
    if dataset.groups is None:
        return []
    torn = sorted(
        set(dataset.groups[dataset.train].tolist()) & set(dataset.groups[dataset.test].tolist()) - {""}
    )
    if not torn:
        return []
    text = f"{counted(len(torn), 'group')} (patient, lesion) on both sides of the split"
    fix = "drop the split column and set test_fraction: then whole groups are split"
    return [Finding("group-on-both-sides", "warning", text, fix, tuple(map(str, torn)))]


# Classes and sites


def class_counts(dataset: Dataset, rows: NDArray[np.int64]) -> dict[str, int]:
    labels = (dataset.labels if dataset.given is None else dataset.given)[rows]
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=dataset.n_classes)
    return {name: int(count) for name, count in zip(dataset.classes, counts)}


def check_names(dataset: Dataset) -> list[Finding]:
    """Class names that look like a misspelling of a more frequent one."""
    rows = np.concatenate([dataset.train, dataset.test])
    counts = {name: count for name, count in class_counts(dataset, rows).items() if count}
    findings = [
        Finding(
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
        Finding(
            "look-alike",
            "warning",
            f"class '{rare}' ({counted(counts[rare], 'sample')}) looks like '{usual}' ({counts[usual]})",
            "if it is a misspelling, correct it; else name all classes in `classes`",
            (rare,),
        )
        for rare, usual in look_alikes(counts)
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


def check_sites(dataset: Dataset, sites: Sequence[SiteSummary]) -> list[Finding]:
    findings = []
    for site in sites:
        if site.train == 0:
            text = f"site '{site.name}' has no training sample"
            findings.append(Finding("empty-site", "warning", text, "add data or drop the site", (site.name,)))
        elif site.train < TINY:
            text = f"site '{site.name}' has {counted(site.train, 'training sample')} only"
            fix = "its updates will be noisy; a natural partition can leave it out with `minimum`"
            findings.append(Finding("tiny-site", "note", text, fix, (site.name,)))
        if site.absent and site.train:
            words = f"{', '.join(site.absent[:EXAMPLES])}{', ...' if len(site.absent) > EXAMPLES else ''}"
            text = f"site '{site.name}' lacks {len(site.absent)} of {len(site.counts)} classes: {words}"
            fix = "nothing to mend; prefer methods that mask absent classes (fedla, fednoro)"
            findings.append(Finding("absent-class", "note", text, fix, site.absent))
    if len(dataset.train) == 0:
        findings.append(Finding("no-train", "error", "there is no training sample", "check the split column"))
    elif dataset.n_classes < 2 and not dataset.multilabel:
        findings.append(Finding("one-class", "error", "all samples have one class", "check the label column"))
    return findings


def check_balance(dataset: Dataset) -> list[Finding]:
    counts = class_counts(dataset, dataset.train)
    held = {name: count for name, count in counts.items() if count}
    nobody = tuple(name for name, count in counts.items() if not count)
    findings = []
    if nobody:
        text = f"no training sample has class {', '.join(nobody[:EXAMPLES])}"
        findings.append(
            Finding("class-without-samples", "warning", text, "drop it from `classes` or add samples", nobody)
        )
    if held and max(held.values()) >= IMBALANCE * min(held.values()):
        most, least = max(held, key=lambda name: held[name]), min(held, key=lambda name: held[name])
        ratio = held[most] / held[least]
        text = f"'{most}' ({held[most]}) is {ratio:.0f} times as frequent as '{least}' ({held[least]})"
        findings.append(
            Finding("imbalance", "note", text, "judge by balanced accuracy; fedla and fednoro adjust for it")
        )
    return findings
