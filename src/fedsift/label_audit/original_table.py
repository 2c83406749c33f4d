"""Writes a copy of the user's original label table with the corrections in it; the original is never changed.

A CSV keeps its columns, order, delimiter, encoding, line ends and byte order mark; an .npz keeps its arrays. Both get
provenance columns.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.csv_tables import column
from fedsift.data.input_files import find_pictures, read_arrays
from fedsift.data.sources.base import Source
from fedsift.data.sources.folder import FolderSource, SitesSource
from fedsift.data.sources.listing import ListedSource, folder_table
from fedsift.data.sources.npz import Npz
from fedsift.label_audit.site_audit import LabelOrigin

PROVENANCE = (
    "fedsift_given_label",
    "fedsift_changed",
    "fedsift_decision",
    "fedsift_probability_wrong",
    "fedsift_ledger_line",
)
MARK = ".corrected"


@dataclass(frozen=True)
class LabelCorrection:
    """One sample's new label, and the ledger's line that says why."""

    id: str
    labels: tuple[str, ...]
    """Class names that are right."""
    decision: str
    probability: float
    line: int


def origin_of(source: Source, site: str) -> LabelOrigin | None:
    """Where a site's labels came from; None for sources that are not files of the user's."""
    if isinstance(source, Npz):
        return LabelOrigin("npz", str(source.path), labels=source.labels, given=source.given, ids=source.ids)
    if not isinstance(source, ListedSource):
        return None
    if isinstance(source, SitesSource):
        folder = source.path / site
        table = FolderSource(folder).table_path()
    else:
        folder, table = source.path, source.table_path()
    columns = source.label_columns
    if table is not None and columns:  # a site may lack some of the classes that others annotate
        has = source.read_csv(table)
        columns = tuple(name for name in columns if name in has)
    return LabelOrigin(
        "folder" if isinstance(source, FolderSource) else "table",
        str(folder),
        table="" if table is None else str(table),
        id_column=source.id_column,
        path_column=source.path_column if isinstance(source, FolderSource) else "",
        label_column=source.label_column,
        label_columns=columns,
        separator=source.separator,
        nothing=source.nothing,
        delimiter=source.delimiter,
        encoding=source.encoding,
    )


def corrected_path(origin: LabelOrigin) -> Path:
    """Beside the original: `labels.corrected.csv`, `data.corrected.npz`."""
    if origin.kind == "npz" or origin.table:
        original = Path(origin.table or origin.path)
        return original.with_name(f"{original.stem}{MARK}{original.suffix}")
    folder = Path(origin.path)
    return (folder if folder.is_dir() else folder.parent) / f"labels{MARK}.csv"


def rendered(
    origin: LabelOrigin,
    site: str,
    classes: Sequence[str],
    corrections: Mapping[str, LabelCorrection],
    *,
    forgotten: Container[str] = (),
    out: Path | None = None,
) -> tuple[Path, bytes]:
    """Where the corrected table goes, and its bytes, without `forgotten` samples; the caller writes it.

    Every correction must find its sample.
    """
    path = out or corrected_path(origin)
    if path.resolve() in {Path(p).resolve() for p in (origin.path, origin.table) if p}:
        raise DataError(f"{path} is the original table: it is never written to; choose another --to")
    if origin.kind == "npz":
        return path, _npz(origin, site, classes, corrections, forgotten)
    if origin.kind in ("folder", "table"):
        return path, _csv(origin, site, classes, corrections, forgotten)
    raise DataError(f"labels of a '{origin.kind}' source cannot be written back: only folder, table and npz are known")


def _wanted(name: str, site: str, corrections: Mapping[str, LabelCorrection]) -> LabelCorrection | None:
    """Sites that were read together have their names before their samples' ids."""
    return corrections.get(name) or corrections.get(f"{site}/{name}")


def _all_found(found: set[str], corrections: Mapping[str, LabelCorrection], where: Path) -> None:
    lost = sorted(set(corrections) - found)
    if lost:
        raise DataError(
            f"{where} has no sample '{lost[0]}' ({len(lost)} corrections find no row): is it the right table?"
        )


# CSV


def _csv(
    origin: LabelOrigin,
    site: str,
    classes: Sequence[str],
    corrections: Mapping[str, LabelCorrection],
    forgotten: Container[str],
) -> bytes:
    where = Path(origin.table or origin.path)
    mark, ending, header, lines = _read_lines(origin, where)
    names = [name.strip() for name in header]
    taken = [name for name in PROVENANCE if name in names]
    if taken:
        raise DataError(f"{where} has a column '{taken[0]}' already: it is a corrected table, name the original")
    table = {name: [line[k] for line in lines] for k, name in enumerate(names)}
    if origin.kind == "table" and origin.id_column not in table:
        ids = [str(row) for row in range(1, len(lines) + 1)]  # as the source names them
    else:
        key = origin.id_column if origin.id_column in table else origin.path_column
        ids = [value.strip() for value in column(table, key, where)]
    repeated = {name for name, count in Counter(ids).items() if count > 1}
    rewrite = _Rewriter(origin, names, classes, where)
    found: set[str] = set()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=ending, delimiter=origin.delimiter)
    writer.writerow([*header, *PROVENANCE])
    for name, line in zip(ids, lines):
        if name in forgotten or f"{site}/{name}" in forgotten:
            continue
        wanted = _wanted(name, site, corrections)
        if wanted is None:
            writer.writerow([*line, "", "0", "", "", ""])
            continue
        if name in repeated:
            raise DataError(f"{where}: two rows are called '{name}', so its correction would be a guess")
        found.add(wanted.id)
        before, after = rewrite(line, wanted)
        writer.writerow([*after, before, "1", wanted.decision, f"{wanted.probability:.6f}", wanted.line])
    _all_found(found, corrections, where)
    return mark + text.getvalue().encode(origin.encoding)


def _read_lines(origin: LabelOrigin, where: Path) -> tuple[bytes, str, list[str], list[list[str]]]:
    """(byte order mark, line end, header, rows), every cell as it stands in the file."""
    if not origin.table:
        table = folder_table(find_pictures(where))
        names = list(table)
        return b"", "\n", names, [list(row) for row in zip(*(table[name] for name in names))]
    try:
        data = where.read_bytes()
        text = data.decode("utf-8-sig" if origin.encoding == "utf-8" else origin.encoding)
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=origin.delimiter) if line]
    except FileNotFoundError:
        raise DataError(f"there is no table {where}: name it with --table") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where} is not a CSV file in {origin.encoding.upper()}: {error}") from error
    if not lines:
        raise DataError(f"{where} is empty")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(lines[0]):
            raise DataError(f"{where}, line {number}: {len(line)} values for {len(lines[0])} columns")
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    return mark, "\r\n" if "\r\n" in text else "\n", lines[0], lines[1:]


class _Rewriter:
    """Puts new labels into a row as the table writes labels: a name, names with a separator, or 0/1 columns."""

    def __init__(self, origin: LabelOrigin, names: Sequence[str], classes: Sequence[str], where: Path) -> None:
        self.origin, self.classes = origin, set(classes)
        places = {name: k for k, name in enumerate(names)}
        table: dict[str, list[str]] = {name: [] for name in names}
        wanted = origin.label_columns or (origin.label_column,)
        for name in wanted:
            column(table, name, where)
        self.places = {name: places[name] for name in wanted}

    def __call__(self, line: Sequence[str], wanted: LabelCorrection) -> tuple[str, list[str]]:
        """(the label before, the row after)."""
        after = list(line)
        if self.origin.label_columns:
            before = [name for name, k in self.places.items() if _is_one(line[k])]
            for name, k in self.places.items():
                after[k] = "1" if name in wanted.labels else "0"
            return "|".join(before), after
        place = self.places[self.origin.label_column]
        before_text = line[place].strip()
        if self.origin.separator:
            after[place] = self._set(before_text, wanted)
        else:
            [after[place]] = wanted.labels
        return before_text, after

    def _set(self, cell: str, wanted: LabelCorrection) -> str:
        """Names outside the audit's classes stay; the audit never judged them."""
        names = [part.strip() for part in cell.split(self.origin.separator) if part.strip()]
        names = [name for name in names if name not in self.origin.nothing]
        kept = [name for name in names if name not in self.classes or name in wanted.labels]
        kept += [name for name in wanted.labels if name not in kept]
        return self.origin.separator.join(kept) or next(iter(self.origin.nothing), "")


def _is_one(cell: str) -> bool:
    try:
        return float(cell.strip() or 0) == 1.0
    except ValueError:
        return False


# npz


def _npz(
    origin: LabelOrigin,
    site: str,
    classes: Sequence[str],
    corrections: Mapping[str, LabelCorrection],
    forgotten: Container[str],
) -> bytes:
    where = Path(origin.path)
    arrays = read_arrays(where)
    name = origin.given if origin.given in arrays else origin.labels
    if name not in arrays:
        raise DataError(f"{where} has no array '{name}': it holds {', '.join(sorted(arrays))}")
    labels = arrays[name].copy()
    n = len(labels)
    ids = [str(k) for k in (arrays[origin.ids] if origin.ids in arrays else range(n))][:n]
    vocabulary = [str(entry) for entry in arrays["classes"]] if "classes" in arrays else list(classes)
    number = {text: k for k, text in enumerate(vocabulary)}
    about: dict[str, NDArray[Any]] = {
        "fedsift_given_label": labels.copy(),
        "fedsift_changed": np.zeros(n, np.bool_),
        "fedsift_decision": np.full(n, "", f"U{max([32, *(len(one.decision) for one in corrections.values())])}"),
        "fedsift_probability_wrong": np.full(n, np.nan),
        "fedsift_ledger_line": np.zeros(n, np.int64),
    }
    found: set[str] = set()
    for k, text in enumerate(ids):
        wanted = _wanted(text, site, corrections)
        if wanted is None:
            continue
        found.add(wanted.id)
        labels[k] = _npz_label(labels[k], wanted, number, where)
        about["fedsift_changed"][k] = True
        about["fedsift_decision"][k] = wanted.decision
        about["fedsift_probability_wrong"][k] = wanted.probability
        about["fedsift_ledger_line"][k] = wanted.line
    _all_found(found, corrections, where)
    keep = np.array([text not in forgotten and f"{site}/{text}" not in forgotten for text in ids], np.bool_)
    result = {**arrays, name: labels, **about}
    if not keep.all():
        result = {key: _kept(key, value, keep) for key, value in result.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **result)  # type: ignore[arg-type]
    return file.getvalue()


def _npz_label(before: Any, wanted: LabelCorrection, number: Mapping[str, int], where: Path) -> Any:
    unknown = [name for name in wanted.labels if name not in number]
    if unknown:
        raise DataError(f"{where} has no class '{unknown[0]}', so sample '{wanted.id}' cannot become one")
    if np.ndim(before) == 0:
        [one] = wanted.labels
        return number[one]
    row = np.zeros_like(before)
    row[[number[name] for name in wanted.labels]] = 1
    return row


def _kept(key: str, values: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
    """Rows of a person who is forgotten leave every array that has a row a sample."""
    per_sample = values.ndim > 0 and len(values) == len(keep) and not key.startswith("test_") and key != "classes"
    return values[keep] if per_sample else values
