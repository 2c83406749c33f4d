"""`python -m benchmarks.tables [keep OUT NAME...]`: keep results of tables, and write the page of results."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.tables import excerpts, standings
from benchmarks.tables.page import HERE, PAGE, kept_result, page

from fedsift.benchmark.advice import LEADERBOARD
from fedsift.benchmark.outputs import table_text
from fedsift.benchmark.store import TABLE


def keep(out: Path, names: list[str]) -> None:
    """Copy the results of tables from a folder of `fedsift bench`."""
    for name in names:
        (HERE / name).mkdir(exist_ok=True)
        for file in ("table.json", "times.json"):
            shutil.copyfile(out / name / file, HERE / name / file)


def told_again() -> None:
    """Every kept file anew: labels, notes and claims are those of the table's file today, runs are as they were."""
    for file in sorted(HERE.glob(f"*/{TABLE}")):
        results = kept_result(file.parent.name)
        assert results is not None
        file.write_text(table_text(results), "utf-8")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["keep"]:
        keep(Path(arguments[1]), arguments[2:])
    told_again()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    excerpts.write()
    standings.PAGE.write_text(standings.page(), "utf-8")
    standings.ADVICE.write_text(standings.advice_text(kept_result(LEADERBOARD)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
