"""`write_report`: one offline HTML file from a run folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsift.contract.files import write_atomically
from fedsift.report.page import page
from fedsift.runs import read_run

FILE = "report.html"


def write_report(run: Path, out: Path | None = None, compare: Sequence[Path] = ()) -> Path:
    """Write the report of a run, finished or not, and return where it is.

    out: the file, or a folder that gets a `report.html`; by default that is the run's own folder.
    compare: other runs on the same federation, drawn beside it.
    """
    text = page(read_run(Path(run)), [read_run(Path(other)) for other in compare or ()])
    target = Path(run) / FILE if out is None else Path(out)
    if target.is_dir():
        target = target / FILE
    write_atomically(target, text.encode("utf-8"))
    return target
