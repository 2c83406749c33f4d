"""Tables of text: CSV files as columns."""

from __future__ import annotations

import csv
import difflib
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.text import visible
from fedsift.data.input_files import read_file

Table = dict[str, list[str]]

MISSING = frozenset({"na", "n/a", "nan", "none", "null", "?", "-", "#n/a", "missing", "unknown"})
"""Words that tables write for nothing, in small letters."""
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
MARKS = {
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"PK\x03\x04": "",  # a zip: what spreadsheets save by default
}


def read_table(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> Table:
    """Columns by name, values stripped of blanks; every row must have as many values as there are columns."""
    if len(delimiter) != 1:
        raise ConfigError(f"data.delimiter = '{delimiter}': it must be one character, e.g. ';'")
    text = _text(path, encoding)
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error
    if not lines:
        raise DataError(f"{path} is empty")
    names = [name.strip() for name in lines[0]]
    _check_names(names, path, delimiter)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataError(f"{path}, line {number}: {len(line)} values for {len(names)} columns")
    if len(lines) == 1:
        raise DataError(f"{path} has a header and no row: add a row for each sample")
    return {name: [line[k].strip() for line in lines[1:]] for k, name in enumerate(names)}


def _text(path: Path, encoding: str) -> str:
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise DataError(f"there is no table {path}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not a table") from None
    except DataError as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None
    for mark, name in MARKS.items():
        if data.startswith(mark) and encoding in ("utf-8", "utf-8-sig"):
            looks = f'it looks like {name}: set encoding = "{name}"' if name else "it looks like a spreadsheet"
            raise DataError(f"{path} is not a CSV file in UTF-8: {looks}, or save it as CSV in UTF-8")
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except LookupError:
        raise ConfigError(f"data.encoding = '{encoding}': no such encoding; e.g. utf-8, cp1252, utf-16") from None
    except UnicodeDecodeError as error:
        guess = _likely_encoding(data)
        raise DataError(
            f"{path} is not a CSV file in {encoding.upper()} (byte {error.start}): it looks like {guess}: "
            f'set encoding = "{guess}", or save it as UTF-8'
        ) from None
    if "\x00" in text:
        raise DataError(f"{path} is not a CSV file: it holds zero bytes; it looks like utf-16 or binary")
    return text


def _likely_encoding(data: bytes) -> str:
    """utf-16 when every other byte is zero; cp1252 unless a byte has no meaning there; then latin-1."""
    if len(data) >= 4 and (data[1::2].count(0) > len(data) // 4 or data[::2].count(0) > len(data) // 4):
        return "utf-16"
    try:
        data.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


def _check_names(names: Sequence[str], path: Path, delimiter: str) -> None:
    """One column whose name holds another delimiter means that the file is separated by that."""
    if len(names) == 1:
        counts = {sign: names[0].count(sign) for sign in DELIMITERS if sign != delimiter}
        likely = max(counts, key=lambda sign: counts[sign])
        if counts[likely]:
            written = "\\t" if likely == "\t" else likely
            raise DataError(
                f"{path} looks separated by {DELIMITERS[likely]}, not {DELIMITERS.get(delimiter, delimiter)}: "
                f'set delimiter = "{written}", or save it with commas'
            )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path} has two columns called '{visible(twice[0])}': rename or remove one")


def column(table: Table, name: str, where: Path) -> list[str]:
    """A column that must be there; an error names the nearest one."""
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, list(table), n=1)
    hint = f"did you mean '{visible(close[0])}'?" if close else f"it has {', '.join(map(visible, table))}"
    raise DataError(f"{where} has no column '{name}': {hint}")
