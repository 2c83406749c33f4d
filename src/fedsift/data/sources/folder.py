"""The data source `folder`: a user's pictures in a folder or zip, and a CSV with their labels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.ranges import Range
from fedsift.core.text import readable, visible
from fedsift.data.csv_tables import Table, column
from fedsift.data.dataset import Dataset
from fedsift.data.dicom import header_values
from fedsift.data.images import PictureForm, load_pictures
from fedsift.data.input_files import Picture, PictureFinder, find_pictures, inside_reference
from fedsift.data.label_space import LabelSpace, unite
from fedsift.data.sources.base import normalisation, sources
from fedsift.data.sources.listing import ListedSource, Listing, broken_notes, dark_notes, folder_table, join_listings


@sources.register("folder")
@dataclass(frozen=True)
class FolderSource(ListedSource):
    """Pictures in a folder (or zip) and a CSV with a row for each.

    Without a CSV the folder of a picture is its class: `class/file` or `train/class/file`.
    """

    summary: ClassVar[str] = "your own pictures: a folder or zip, and a CSV with id, path, label, site, split, group"

    path: Path
    """The folder or zip with the pictures."""
    table: Path | None = None
    """The CSV (default: `labels.csv` in the folder, or the only CSV there)."""
    path_column: str = "path"
    """Column with the picture's path in the folder; without it the id, with any ending, is looked for."""
    size: Annotated[int, Range(1, 4096)] = 64
    """Side of the decoded pictures in pixels."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    fit: Literal["squash", "crop"] = "squash"
    """"squash" the whole picture into the square, or "crop" its centre."""
    bits: Annotated[int, Range(8, 16)] = 16
    """Bits that 16-bit grey pictures really use: 12 for values up to 4095."""
    dicom_id: str = ""
    """DICOM attribute that the table's ids are, e.g. "AccessionNumber"; nothing else of a header is kept."""
    statistics: Literal["data", "imagenet"] = "data"
    """Mean and deviation for normalising: of these pictures, or ImageNet's."""
    cache: Path | None = None
    """Where decoded pictures are kept (default: the user's cache folder)."""

    def read(self) -> Dataset:
        return self.read_listing(self.listing())

    def read_listing(self, listing: Listing) -> Dataset:
        """Decode what is listed, leave out what cannot be read, and split."""
        decoded = load_pictures(listing.pictures, self.form, cache=self.cache, what=self.path.name)
        notes = [*listing.notes, *broken_notes(decoded.broken), *dark_notes(decoded.dark, self.bits)]
        if len(decoded.kept) == 0:
            raise DataError(f"{self.path}: none of {len(listing.pictures)} pictures could be read")
        listing = listing.take(decoded.kept)
        train, test, more = self.sides(listing)
        # Rows follow the pictures' names, so that every table shares one cache; `train` follows the table.
        train = train[np.argsort(listing.order[train], kind="stable")]
        mean, std = normalisation(decoded.images, train, self.statistics)
        return Dataset(
            name=self.path.stem,
            images=decoded.images,
            labels=listing.labels,
            classes=listing.classes,
            train=train,
            test=test,
            multilabel=listing.labels.ndim == 2,
            mean=mean,
            std=std,
            ids=np.array(listing.ids),
            paths=np.array([picture.name for picture in listing.pictures]),
            groups=listing.groups,
            sites=listing.sites,
            given=listing.given,
            trusted=self.trusted or listing.given is not None,
            notes=(*notes, *more),
        )

    @property
    def form(self) -> PictureForm:
        """What the pictures are brought to."""
        return PictureForm(self.size, self.channels, self.fit, self.bits)

    def listing(self, table: Table | None = None) -> Listing:
        """What a table (this one, the CSV, or the folder's layout) says, before any picture is decoded."""
        found_table = None if table is not None else self.table_path()
        pictures = find_pictures(self.path)
        if not pictures:
            raise DataError(
                f'there is no picture in {self.path}; rows of numbers are read by name = "table" from a CSV, '
                'or by name = "npz" from arrays'
            )
        if table is None:
            table = folder_table(pictures) if found_table is None else self.read_csv(found_table)
        where = found_table or self.path
        finder = PictureFinder(pictures, header_values(pictures, self.dicom_id) if self.dicom_id else {})
        found, missing = self._match(table, finder, where)
        notes = [f"{len(missing)} pictures of the table are not there, e.g. '{visible(missing[0])}'"] if missing else []
        table = {name: [values[k] for k in found] for name, values in table.items()}
        listing = self.listed(table, where, self._names(table, where), list(found.values()), missing, notes)
        by_name = sorted(range(len(listing.pictures)), key=lambda k: listing.pictures[k].name)
        return listing.take(np.array(by_name, np.int64))

    def table_path(self) -> Path | None:
        """The CSV that `listing` reads, if there is one."""
        if self.table is not None:
            beside = self.path / self.table.name
            if not self.table.is_file() and beside.is_file():
                raise DataError(f"there is no table {self.table}, but there is {beside}: name it with `table`")
            return self.table
        if not self.path.is_dir():
            return None
        if (self.path / "labels.csv").is_file():
            return self.path / "labels.csv"
        # a corrected table that `fedsift labels apply` wrote beside the original is read when it is named, not found
        tables = sorted(t for t in self.path.glob("*.csv") if not t.name.endswith(".corrected.csv"))
        if len(tables) > 1:
            names = ", ".join(table.name for table in tables)
            raise DataError(f"{self.path} has several tables ({names}): say which with `table`")
        return tables[0] if tables else None

    def _match(self, table: Table, finder: PictureFinder, where: Path) -> tuple[dict[int, Picture], list[str]]:
        """Pictures by row of the table, and the references that lead nowhere."""
        by = self.path_column if self.path_column in table else self.id_column
        found: dict[int, Picture] = {}
        missing: list[str] = []
        for row, reference in enumerate(column(table, by, where)):
            inside = inside_reference(reference, self.path)
            if inside is None:
                raise DataError(
                    f"{where}, sample {row + 1}: '{visible(reference)}' leads out of {self.path}; only what lies in "
                    "that folder is read: write the path inside it, or move `path` up"
                )
            picture = finder.find(inside)
            if picture is None:
                missing.append(reference)
            else:
                found[row] = picture
        if not found:
            raise DataError(f"no picture of column '{by}' in {where} is in {self.path}, e.g. '{visible(missing[0])}'")
        return found, missing

    def _names(self, table: Table, where: Path) -> list[str]:
        return table[self.id_column] if self.id_column in table else column(table, self.path_column, where)


# A folder of sites
# ------------------------------------------------------------------------------


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
        # Names found in lists of findings do not say which others were looked for; only a `classes.txt`
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
