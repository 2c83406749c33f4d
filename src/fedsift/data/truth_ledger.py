"""The truth ledger of a simulation: every label that was changed, at which site, from what to what."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.text import csv_text, uncell
from fedsift.data.dataset import FederatedDataset, Labels, Rows


@dataclass(frozen=True)
class LabelChange:
    """One label (one entry, for multi-label data) that differs from the truth."""

    site: str
    part: str
    """"train" or "held-out"."""
    position: int
    """Place in the site's own order."""
    row: int
    """Row in the dataset."""
    sample: str
    """The sample's name."""
    true_label: str
    given_label: str
    entry: str = ""
    """The class concerned, for multi-label data; then the labels are "0" and "1"."""
    kind: str = "wrong"
    """"wrong", or "missing" when the site does not annotate the class at all."""


@dataclass(frozen=True)
class TruthLedger:
    """All changes, in the order of sites and positions."""

    changes: tuple[LabelChange, ...]

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[LabelChange]:
        return iter(self.changes)

    def text(self) -> str:
        """As CSV with a header."""
        return csv_text([field.name for field in fields(LabelChange)], [astuple(change) for change in self.changes])

    @classmethod
    def load(cls, path: Path) -> TruthLedger:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != [field.name for field in fields(LabelChange)]:
                raise DataError(f"{path} is not a truth ledger: its columns are {reader.fieldnames}")
            return cls(
                tuple(
                    LabelChange(
                        site=uncell(line["site"]),
                        part=line["part"],
                        position=int(line["position"]),
                        row=int(line["row"]),
                        sample=uncell(line["sample"]),
                        true_label=uncell(line["true_label"]),
                        given_label=uncell(line["given_label"]),
                        entry=uncell(line["entry"]),
                        kind=line["kind"],
                    )
                    for line in reader
                )
            )


def ledger(federated: FederatedDataset) -> TruthLedger:
    """What the noise model changed; an error when the truth is not known."""
    if federated.truth is None:
        raise DataError("the true labels of these data are not known, so there is no truth ledger")
    changes: list[LabelChange] = []
    for site in federated.sites:
        changes += _changes(
            federated, site, "train", federated.rows[site], federated.given[site], federated.truth.clean[site]
        )
        if site in federated.held_out:
            changes += _changes(
                federated,
                site,
                "held-out",
                federated.held_out[site],
                federated.held_out_given[site],
                federated.truth.clean_held_out[site],
            )
    return TruthLedger(tuple(changes))


def _changes(
    federated: FederatedDataset, site: str, part: str, rows: Rows, given: Labels, clean: Labels
) -> Iterator[LabelChange]:
    dataset = federated.dataset
    annotated = None if federated.annotated is None else federated.annotated[site]
    for where in np.argwhere(given != clean):
        position, row = int(where[0]), int(rows[where[0]])
        name = dataset.id_of(row)
        if given.ndim == 1:
            before, after, entry, kind = (
                dataset.classes[clean[position]],
                dataset.classes[given[position]],
                "",
                "wrong",
            )
        else:
            c = int(where[1])
            before, after, entry = str(clean[position, c]), str(given[position, c]), dataset.classes[c]
            kind = "wrong" if annotated is None or annotated[c] else "missing"
        yield LabelChange(site, part, position, row, name, before, after, entry, kind)
