"""Paths of a site's audit files, and writing them atomically and privately."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedsift.core.errors import DataError
from fedsift.core.files import safe_name

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
