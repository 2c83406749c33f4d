"""`python -m benchmarks.tables [keep OUT NAME...]`: keep results of tables, and write the pages of results."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.tables import excerpts, page, standings

from fedsift.benchmark.advice import LEADERBOARD
from fedsift.benchmark.store import TABLE


def keep(out: Path, names: list[str]) -> None:
    """Copy the results of tables from a folder of `fedsift bench`."""
    for name in names:
        shutil.copyfile(out / name / TABLE, page.HERE / f"{name}.csv")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["keep"]:
        keep(Path(arguments[1]), arguments[2:])
    page.PAGE.write(page.page())
    excerpts.write()
    standings.PAGE.write(standings.page())
    standings.ADVICE.write_text(standings.advice_of(page.kept_result(LEADERBOARD)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
