"""The pages in a real Chromium: no error, nothing wider than the window, every figure can be saved."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedsift.data.overview import portrait_of
from fedsift.report.federation import federation_page
from fedsift.report.page import write_report
from tests.data.test_pictures import digits_data
from tests.label_audit.browser import MISSING, Browser
from tests.report.made_runs import make_run
from tests.report.test_groups import seeded

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

NAMES = ("Berlin, Mitte", "=1+1", "c", "d")
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    sifted = make_run(place, names=NAMES, found=("=1+1",), truth=("=1+1",), folder_name="sifted")
    others = [seeded(place, "fedavg", seed, 0.5 + seed / 10) for seed in (1, 2)]
    return write_report(sifted, place / "report.html", others)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def saved(window: Browser, name: str) -> Path:
    file, end = window.downloads / name, time.monotonic() + 20
    while not file.is_file():
        assert time.monotonic() < end, [one.name for one in window.downloads.iterdir()]
        time.sleep(0.02)
    return file


def test_every_figure_is_saved_as_svg_and_csv(window: Browser, compared: Path) -> None:
    window.open(compared)
    assert window.count("figure .plot") == window.count(".save button") / 2 > 3
    for words in (
        "Save “Accuracy” as SVG",
        "Save the numbers of “Accuracy” as CSV",
        "Save the numbers of “Loss map” as CSV",
    ):
        window.click(f'button[aria-label="{words}"]')
    assert window.logged() == []
    with saved(window, "accuracy.csv").open(newline="", encoding="utf-8-sig") as text:
        rows = list(csv.reader(text))
    assert rows[0] == ["round", "FedNoRo", "FedAvg", "FedAvg, low", "FedAvg, high"]
    assert [float(cell) for cell in rows[1][:3]] == [1, 0.4, pytest.approx(0.55)]
    assert rows[4][1] == "", "FedNoRo's fourth round is not evaluated"
    drawn = ElementTree.parse(saved(window, "accuracy.svg")).getroot()
    lines = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 2
    for line in lines:
        assert line.get("stroke", "").startswith("rgb") and line.get("class") is None
    assert lines[0].get("stroke-dasharray") != lines[1].get("stroke-dasharray")
    loss = saved(window, "loss-map.csv").read_text("utf-8-sig")
    assert "'=1+1," in loss and '"Berlin, Mitte",' in loss, "no spreadsheet computes a site's name"


@pytest.mark.slow
@pytest.mark.parametrize("media", ["screen", "print"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(window: Browser, compared: Path, width: int, media: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    window.cdp("Emulation.setDeviceMetricsOverride", **size)
    window.cdp("Emulation.setEmulatedMedia", media=media)
    window.open(compared)
    if media == "screen" or width > 600:  # paper is never as narrow as a phone
        assert window.run(WIDER) <= 0
    shown = window.run("return getComputedStyle(document.querySelector('.save')).display")
    assert (shown == "none") == (media == "print")
    window.cdp("Emulation.setEmulatedMedia", media="")


@pytest.mark.slow
def test_a_federations_page(window: Browser, tmp_path: Path) -> None:
    page = tmp_path / "federation.html"
    page.write_text(federation_page(portrait_of(digits_data()), "digits", "seed = 1\n"), "utf-8")
    window.open(page)
    assert window.logged() == []
    window.click("figure:nth-of-type(2) .save button:nth-child(2)")
    assert saved(window, "wrong-labels.csv").read_text("utf-8-sig").startswith("site,labels wrong,noise level set\n")
