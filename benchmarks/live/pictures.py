"""The pictures of docs/live.md, from a real run: `python -m benchmarks.live.pictures`."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.label_audit.browser import MISSING, Browser

from fedsift.live.companion import runs_page_beside
from fedsift.report.page import write_report
from fedsift.study.running import new_run, run
from fedsift.study.study import Study

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
TABLE: dict[str, Any] = {
    "name": "digits at twelve sites",
    "seed": 7,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "sites": 12},
    "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
    "model": {"name": "cnn"},
    "train": {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
    "method": {"name": "fednoro", "warm_up": 10, "rounds": 30},
    "gate": {"heuristics": "always", "norm_factor": 1.2},  # strict, so that there is a refusal to be seen
    "federation": {"quorum": 0.5},
}
SEEN_FROM = 20
"""The round after which the pictures are taken."""


def main() -> None:
    if MISSING:
        sys.exit(MISSING)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedsift-pictures-") as place:
        take(Path(place))


def take(place: Path) -> None:
    study = Study.from_table(TABLE)
    folder = new_run(study, place / "runs")
    reached, go_on = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> None:
        if row["round"] == SEEN_FROM:
            reached.set()
            go_on.wait()

    worker = threading.Thread(target=run, args=(study, folder, wait))
    with runs_page_beside(place / "runs") as address:
        url = f"{address.plain}runs/{folder.id}/"
        worker.start()
        reached.wait()
        shoot(place, url, "live", (1280, 1760))
        shoot(place, url, "live-dark", (1280, 900), dark=True)
        shoot(place, url, "live-phone", (390, 844))
        go_on.set()
        worker.join()
        write_report(folder.path)
        shoot(place, url, "live-finished", (1280, 900))


def shoot(place: Path, url: str, name: str, size: tuple[int, int], *, dark: bool = False) -> None:
    window = Browser(place / name, size=size, dark=dark)
    window.visit(url)
    window.wait_until("window.fedsiftUpdates && window.fedsiftUpdates.length > 0")
    time.sleep(1.5)  # lanes are drawn, a report is laid out
    window.picture(PICTURES / f"{name}.png")
    window.close()


if __name__ == "__main__":
    main()
