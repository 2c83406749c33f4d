"""Paths of a site's audit files, and the fingerprint of the data that they were computed from."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedsift.core.errors import DataError
from fedsift.core.files import safe_name
from fedsift.protocol.site import Samples, Site

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


@dataclass(frozen=True)
class SiteFolder:
    """`OUT/sites/SITE/`: everything that one site gets from an audit, and nothing that another may see."""

    path: Path

    @classmethod
    def of(cls, out: Path, site: str) -> SiteFolder:
        return cls(Path(out) / "sites" / safe_name(site))

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """A folder that an audit wrote; a folder of an audit with one site only will do as well."""
        path = Path(path)
        if (path / "findings.npz").is_file():
            return cls(path)
        inside = sorted((path / "sites").glob("*/findings.npz")) if (path / "sites").is_dir() else []
        if len(inside) == 1:
            return cls(inside[0].parent)
        if inside:
            names = ", ".join(file.parent.name for file in inside[:6])
            raise DataError(f"{path} holds {len(inside)} sites ({names}): name one, e.g. {inside[0].parent}")
        raise DataError(f"{path} is not a site's folder of an audit (it has no findings.npz)")

    @property
    def findings(self) -> Path:
        return self.path / "findings.npz"

    @property
    def thumbnails(self) -> Path:
        return self.path / "thumbnails.zip"

    @property
    def labels(self) -> Path:
        return self.path / "labels.csv"

    @property
    def test_labels(self) -> Path:
        return self.path / "labels-test.csv"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def noted_heads(self) -> list[str]:
        """The last hash of the ledger as the summary noted it; none where there is no summary to be read."""
        try:
            return [str(json.loads(self.summary.read_text("utf-8"))["ledger"]["hash"])]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    @property
    def release(self) -> Path:
        return self.path / "release.json"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def review(self) -> Path:
        return self.path / "review"

    @property
    def plan(self) -> Path:
        return self.review / "plan.json"


def make_private(folder: Path) -> None:
    """The folder, readable by its owner only; parents that exist already keep their rights."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, PRIVATE_FOLDER)


# What an audit was computed from
# ------------------------------------------------------------------------------


DATA = "label audit data"
"""The notebook's page: the network that looked at the samples, and the fingerprint of all that it was shown."""
MODELS = "label audit models"
"""The page with the digest of the models that judged, which the site's ledger names."""


def data_of(site: Site) -> tuple[str, str]:
    """The network, and a fingerprint of the site's classes, given and annotated labels, groups and samples."""
    hasher = hashlib.blake2b(repr((site.classes, site.multilabel)).encode(), digest_size=16)
    for part in (site.given, site.known, site.groups):
        hasher.update(_fingerprint(part))
    for samples, labels in ((site.samples, None), (site.held_out, site.held_out_given)):
        if samples is not None and len(samples):
            hasher.update(_fingerprint(samples))
            hasher.update(_fingerprint(labels))
    return site.facts.model, hasher.hexdigest()


def _fingerprint(part: Tensor | Samples | None) -> bytes:
    if isinstance(part, Samples):
        return part.digest().encode()
    if part is None:
        return b"-"
    return repr(tuple(part.shape)).encode() + part.long().cpu().numpy().tobytes()


def note_data(site: Site) -> None:
    """Write the page where there is none yet: data that change during an audit are not those that it began with."""
    if DATA not in site.notebook:
        site.notebook[DATA] = data_of(site)
