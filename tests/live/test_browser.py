"""The live page in a real Chromium: a run is started, watched, stopped, resumed and read to its end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.errors import Stopped
from fedsift.report.page import write_report
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from tests.label_audit.browser import MISSING, Browser
from tests.live.made import Made

pytest.importorskip("starlette", reason="the live page needs starlette: pip install 'fedsift[live]'")

from fedsift.live.companion import runs_page_beside

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "Chromium is there"),
    pytest.mark.xdist_group("chromium"),
]
ROUNDS = 60
TABLE: dict[str, Any] = {
    "name": "watched",
    "partition": {"name": "iid", "sites": 5},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 64, "lr": 0.02},
    "method": {"name": "fedavg", "rounds": ROUNDS},
    "gate": {"heuristics": "always", "norm_factor": 1.02},  # so strict that some honest updates are set aside
    "federation": {"quorum": 0.1},
}
PAINTED = """Array.from(document.querySelectorAll('#lanes canvas')).filter(function (canvas) {
    var pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some(function (value) { return value > 0; });
}).length"""
POINTS = "document.querySelectorAll('#plots path.curve')[0].getAttribute('d').split('L').length"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: FEDSIFT_PICTURES, or with the test's other files."""
    place = Path(os.environ.get("FEDSIFT_PICTURES") or tmp_path_factory.mktemp("pictures"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    window = Browser(tmp_path_factory.mktemp("browser"))
    yield window
    window.close()


def test_a_run_from_its_start_to_its_report(tmp_path: Path, browser: Browser, pictures: Path) -> None:
    study = Study.from_table(TABLE)
    folder = new_run(study, tmp_path)
    worker = threading.Thread(target=_slowly, args=(study, folder))
    with runs_page_beside(tmp_path) as address:
        browser.visit(address.url)
        browser.wait_for("#runs .name", folder.id)
        browser.click("#runs a")
        browser.wait_for("#state", "new")
        worker.start()
        try:
            browser.wait_for("#state", "running")
            browser.wait_until("document.querySelectorAll('#plots path.curve').length > 0")
            before = browser.run(f"return {POINTS}")
            browser.wait_until(f"{POINTS} > {before} + 2")
            browser.wait_until("document.querySelector('#lines .refused') !== null")
            assert "times the usual" in browser.text("#lines .refused")
            browser.run("document.getElementById('sites').scrollIntoView()")
            browser.wait_until(f"{PAINTED} === 5")  # lanes are painted when they are seen
            browser.picture(pictures / "running.png")
            browser.click("#stop")
            browser.wait_for("#state", "stopped")
        finally:
            folder.ask_to_stop()
            worker.join()
        stopped_after = len(folder.rounds())
        assert 0 < stopped_after < ROUNDS
        assert browser.text("#headline") == f"FedAvg was stopped after {stopped_after} of {ROUNDS} rounds."
        browser.picture(pictures / "stopped.png")
        browser.click("#resume")
        browser.wait_for("#state", "finished", seconds=120)
        browser.wait_until("!document.getElementById('report').hidden && document.getElementById('main').hidden", 120)
        browser.picture(pictures / "finished.png")
        assert len(folder.rounds()) == ROUNDS
        shown = browser.run("return fetch('report.html').then(function (answer) { return answer.text(); })")
        elsewhere = browser.run(
            "return performance.getEntriesByType('resource').map(function (e) { return e.name; })"
            ".filter(function (name) { return !name.startsWith(location.origin + '/'); })"
        )
        logged = browser.logged()
    assert shown == write_report(folder.path, tmp_path / "again.html").read_text("utf-8")
    assert elsewhere == []
    assert [line for line in logged if "Canvas2D" not in line] == []  # which is about reading pixels, as above


def _slowly(study: Study, folder: RunFolder) -> None:
    def wait(row: dict[str, Any]) -> None:
        time.sleep(0.15)

    with suppress(Stopped):
        run(study, folder, listen=wait)


def test_keys_phone_and_an_action_without_the_token(tmp_path: Path, browser: Browser, pictures: Path) -> None:
    hostile = ("<img src=x onerror=alert(1)>", "‮gnp.exe", "a, b", "c" * 80)
    made = Made(tmp_path, "run & <b>", sites=hostile)
    holder = RunFolder(made.folder.path)
    holder.lock()
    made.start()
    made.round(1)
    made.ask(2)
    with runs_page_beside(tmp_path) as address:
        browser.visit(address.plain)
        browser.wait_for("#runs .name", "run & <b>")
        browser.run("document.querySelector('#runs a').focus()")
        browser.press("enter")
        browser.wait_for("#state", "running")
        browser.wait_for("#lanes tr td", hostile[0])
        assert browser.count("#lanes img") == 0
        browser.cdp("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        browser.picture(pictures / "phone.png")
        browser.cdp("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        assert wide <= 0
        browser.cdp("Network.clearBrowserCookies")
        browser.click("#stop")
        browser.wait_until("document.querySelector('#said input') !== null")
        assert not made.folder.asked_to_stop
        browser.write("#said input", address.token)
        browser.press("enter")
        browser.wait_for("#state", "stopping")
        assert made.folder.asked_to_stop
        holder.unlock()
        browser.wait_for("#state", "interrupted")
        browser.logged()
