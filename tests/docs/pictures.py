"""Takes the pictures of the pages, from real runs: `python -m tests.docs.pictures` (or `make pictures`).

It trains three methods with three seeds on the bundled digits, which takes a minute, and photographs what a person
sees. Needs Chromium and chromedriver.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import fedsift
from fedsift.data.overview import portrait_of
from fedsift.report.federation import federation_page
from fedsift.report.page import write_report
from fedsift.report.watching import RunScreen
from fedsift.runs.events import EVENTS
from fedsift.runs.reading import RunState
from fedsift.study.study import Study
from tests.label_audit.browser import MISSING, Browser

PLACE = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 1120
SEEDS = (1, 2, 3)
STUDY = {
    "data": {"name": "digits"},
    "partition": {"name": "bernoulli-dirichlet", "sites": 12, "p": 0.9, "alpha": 2.0},
    "noise": {"name": "fedcorr", "rho": 0.5, "tau": 0.5},
    "model": {"name": "mlp"},
}
METHODS = (
    {"name": "fednoro", "rounds": 16, "warm_up": 6},
    {"name": "fedavg", "rounds": 16},
    {"name": "fedmedian", "rounds": 16},
)
FILES = ("watch.svg", "compared.png", "federation.png")
WATCHED = 0.7
"""The share of a run's events after which the terminal is photographed."""


def main() -> None:
    if MISSING:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        runs = [
            fedsift.run({**STUDY, "method": method, "seed": seed}, out=work / "runs", progress=False).path
            for method in METHODS
            for seed in SEEDS
        ]
        report = write_report(runs[0], work / "compared.html", runs[1:])
        federated = Study.from_table(STUDY).load_data()
        page = work / "federation.html"
        page.write_text(federation_page(portrait_of(federated), "digits at 12 sites", ""), "utf-8")
        photograph(report, PLACE / "compared.png", 1480, work)
        photograph(page, PLACE / "federation.png", 800, work)
        watch(runs[0], PLACE / "watch.svg")
    for file in FILES:
        print(f"{PLACE / file}: {(PLACE / file).stat().st_size / 1000:.0f} kB")


def photograph(page: Path, picture: Path, height: int, work: Path) -> None:
    browser = Browser(work / picture.stem, (WIDTH, height))
    try:
        browser.open(page)
        browser.picture(picture)
    finally:
        browser.close()


def watch(run: Path, picture: Path) -> None:
    """The terminal as it was in the middle of the run: its events up to there are all that it reads."""
    events = (run / EVENTS).read_bytes().splitlines(keepends=True)
    (run / EVENTS).write_bytes(b"".join(events[: int(WATCHED * len(events))]))
    view = RunScreen(run)
    view.look(view.story.last_at + 0.2)
    view.state = RunState("running")
    console = Console(record=True, width=100, height=32, file=io.StringIO(), force_terminal=True)
    for line in view.lines(100, 32):
        console.print(line)
    drawn = console.export_svg(title=f"fedsift watch runs/{view.folder.id}")
    drawn = re.sub(r"@font-face\s*{[^}]*}|<!-- .*? -->", "", drawn)  # rich names fonts of a network
    picture.write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
