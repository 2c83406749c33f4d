"""`python -m benchmarks [--check]`: write every page that benchmarks make from their results, or say which is not
what its results give."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import benchmarks.attacks.page
import benchmarks.audit.page
import benchmarks.faults.page
import benchmarks.floor.__main__
import benchmarks.leakage.page
import benchmarks.learns.page
import benchmarks.live.page
import benchmarks.phases.page
import benchmarks.speed.methods
import benchmarks.tables.excerpts
import benchmarks.tables.page
import benchmarks.tables.standings
import benchmarks.verdicts.__main__
import benchmarks.verdicts.rates
import benchmarks.verdicts.reference
from benchmarks.section import Page
from fedsift.benchmark.advice import LEADERBOARD


def pages() -> Iterator[tuple[Page, str]]:
    """Every page, or part of one, with what it says by the results."""
    for whole in (benchmarks.attacks, benchmarks.audit, benchmarks.faults, benchmarks.leakage, benchmarks.learns):
        yield whole.page.PAGE, whole.page.page()
    yield benchmarks.tables.page.PAGE, benchmarks.tables.page.page()
    yield benchmarks.tables.standings.PAGE, benchmarks.tables.standings.page()
    for name, body in benchmarks.tables.excerpts.bodies().items():
        yield benchmarks.tables.excerpts.section_of(name), body
    for part in (
        benchmarks.floor.__main__, benchmarks.live.page, benchmarks.phases.page, benchmarks.speed.methods,
        benchmarks.verdicts.__main__, benchmarks.verdicts.rates, benchmarks.verdicts.reference,
    ):  # fmt: skip
        yield part.SECTION, part.body()


def main(arguments: list[str]) -> int:
    standings = benchmarks.tables.standings
    advice = standings.advice_of(benchmarks.tables.page.kept_result(LEADERBOARD))
    wrong = []
    for page, body in pages():
        if "--check" not in arguments:
            page.write(body)
        elif not page.is_current(body):
            wrong.append(f"docs/{page.page} is not what its results give: run `{page.command}`")
    if "--check" not in arguments:
        standings.ADVICE.write_text(advice, "utf-8")
    elif standings.ADVICE.read_text("utf-8") != advice:
        wrong.append(f"{standings.ADVICE.name} is not what its results give: run `{standings.PAGE.command}`")
    print("\n".join(wrong) or "every page says what its results give")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
