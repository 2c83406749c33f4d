"""The figures of docs/live.md, from the result file: `python -m benchmarks.live.page` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.files import read_list
from benchmarks.section import Section

RESULTS = Path(__file__).parent / "results" / "live.csv"
SECTION = Section("live.md", "python -m benchmarks.live.page", "measured")


def measured(found: dict[str, Any]) -> str:
    """The table, and under which load it was measured."""
    page, run = found["page"], found["beside_a_run"]
    rows = [
        (
            f"page of {page['sites']} sites x {page['rounds']:,} rounds ready",
            f"{page['ready_seconds']:.2f} s",
            "2 s",
        ),
        ("one update of it, median", f"{page['update_ms_median']:.1f} ms", "100 ms"),
        ("one update of it, slowest", f"{page['update_ms_worst']:.1f} ms", "100 ms"),
        ("memory of the server at most", f"{page['server_memory_mb']:.0f} MB", "150 MB"),
        (
            f"CPU time of the server beside a real run of {run['sites']} sites",
            f"{100 * run['server_cpu_share']:.1f} % of the run's",
            "2 %",
        ),
    ]
    lines = ["| | measured | bound |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    where = f"On {found['machine']}, with a load of {found['load']} from other work at the time."
    return "\n".join([*lines, "", where])


def body() -> str:
    [found] = read_list(RESULTS)
    return measured(found)


if __name__ == "__main__":
    SECTION.write(body())
