"""A folder of sites: every subfolder is a site with its own pictures, its own table and its own class
names."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.text import readable
from fedsift.data.dataset import Dataset
from fedsift.data.label_space import LabelSpace, unite
from fedsift.data.picture_files import find_pictures
from fedsift.data.sources.base import sources
from fedsift.data.sources.folder import FolderSource
from fedsift.data.sources.listing import Listing, join_listings


@sources.register("sites")
@dataclass(frozen=True)
class SitesSource(FolderSource):
    """`path/SITE/` holds a site's pictures and its `labels.csv`; other fields as for "folder", for every
    site.

    Sites name their classes; order never matters. Without `classes` the federation has every class that any
    site names. In multi-label data a class that a site's table does not name is not annotated there.
    """

    summary: ClassVar[str] = "a folder of sites, each with its own pictures, table and class names"

    def listing_by_site(self) -> tuple[dict[str, Listing], LabelSpace, list[str]]:
        """Each site's listing in its own classes, the common label space, and the sites that are empty."""
        if not self.path.is_dir():
            raise DataError(f"{self.path} is not a folder of sites")
        listings: dict[str, Listing] = {}
        empty: list[str] = []
        for folder in site_folders(self.path):
            if find_pictures(folder):
                listings[readable(folder.name)] = self._site(folder).listing()
            else:
                empty.append(readable(folder.name))
        if not listings:
            raise DataError(f"no folder in {self.path} holds a picture")
        space = unite({site: listing.classes for site, listing in listings.items()}, self.classes)
        # Names found in lists of findings do not tell which others were looked for; only a `classes.txt`
        # does.
        silent = [site for site in listings if self.separator and not (self.path / site / "classes.txt").is_file()]
        return listings, replace(space, assumed=tuple(silent)), empty

    def _site(self, folder: Path) -> FolderSource:
        """The same options for one site's folder, with the classes that it declares itself."""
        options: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(FolderSource)}
        options.update(path=folder, table=None, classes=())
        if (folder / "classes.txt").is_file():
            names = (folder / "classes.txt").read_text(encoding="utf-8").splitlines()
            options["classes"] = tuple(name.strip() for name in names if name.strip())
        source = FolderSource(**options)
        table = source.table_path()
        if self.label_columns and table is not None:
            has = self.read_csv(table)
            source = replace(source, label_columns=tuple(name for name in self.label_columns if name in has))
        return source

    def read(self) -> Dataset:
        listings, space, empty = self.listing_by_site()
        united = {
            site: replace(
                listing,
                labels=space.translate(site, listing.labels),
                given=None if listing.given is None else space.translate(site, listing.given),
                classes=space.classes,
                sites=np.full(len(listing.pictures), site),
            ).known(self.unknown, dict.fromkeys(space.unknown[site], 1), f"site '{site}'")
            for site, listing in listings.items()
        }
        notes = [f"site '{site}' is empty and left out" for site in empty]
        if any(listing.labels.ndim == 2 for listing in united.values()):
            absent = {site: names for site, names in space.absent.items() if names}
            notes += [f"site '{site}' does not annotate {', '.join(names)}" for site, names in absent.items()]
        dataset = self.read_listing(join_listings(united, notes))
        return replace(dataset, site_classes={site: space.named(site) for site in space.declared})


def site_folders(path: Path) -> list[Path]:
    """The subfolders, in alphabetical order, hidden ones left out."""
    return sorted(part for part in path.iterdir() if part.is_dir() and not part.name.startswith("."))
