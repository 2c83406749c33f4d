"""A table of numbers from the file to the corrected file: what a reviewer sees, and what is written back."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.data.sources.digits import Digits
from fedsift.data.sources.table import ShownFeature, TableSource
from fedsift.label_audit.exports import data_uri
from fedsift.label_audit.page import FARTHEST, MOST, SIDE, card, row_cards

HOSTILE = "größe </text><script>alert(1)</script>"
SVG = "{http://www.w3.org/2000/svg}"


def bars(drawing: str) -> list[tuple[float, float]]:
    """Left end and width of each bar."""
    found = ElementTree.fromstring(drawing).findall(f"{SVG}rect[@fill='#0b5a94']")
    return [(float(each.attrib["x"]), float(each.attrib["width"])) for each in found]


def test_a_card_shows_what_is_farthest_from_usual() -> None:
    names = "abcdefgh"
    features = [ShownFeature(name, f"{k}", float(k - 3)) for k, name in enumerate(names)]  # h: 4, g: 3, a: -3, ...
    drawing = card([*features, ShownFeature("sex", "f", None)])
    texts = [each.text for each in ElementTree.fromstring(drawing).findall(f"{SVG}text")]
    assert texts[::2] == ["h", "a", "g", "b", "f", "c"]
    assert texts[1::2] == ["7", "0", "6", "1", "5", "2"]
    assert len(texts) == 2 * MOST
    half = SIDE / 2 - 8
    assert bars(drawing)[:2] == [(SIDE / 2, half), (SIDE / 2 - half * 3 / FARTHEST, half * 3 / FARTHEST)]


def test_a_bar_ends_and_words_have_none() -> None:
    drawing = card([ShownFeature("a", "1e9", 1e9), ShownFeature("sex", "", None)])
    assert bars(drawing) == [(SIDE / 2, SIDE / 2 - 8)]
    assert [each.text for each in ElementTree.fromstring(drawing).findall(f"{SVG}text")][2:] == ["sex", "–"]


def test_a_hostile_header_is_text_in_the_picture() -> None:
    drawing = card([ShownFeature(HOSTILE, "\x00<b>&", 1.0)])
    assert {each.tag for each in ElementTree.fromstring(drawing).iter()} == {
        f"{SVG}svg",
        f"{SVG}rect",
        f"{SVG}text",
    }
    assert data_uri(drawing.encode()).startswith("data:image/svg+xml;base64,")


def test_other_sources_have_no_cards() -> None:
    assert row_cards(Digits(), np.arange(3)) is None


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """Three sites in a table as a European spreadsheet saves it; at the third 40 % of the labels are wrong."""
    place = tmp_path_factory.mktemp("numbers")
    draw = np.random.default_rng(4)
    true = draw.integers(0, 3, 360)
    values = 3.0 * np.eye(3, 4)[true] + draw.normal(size=(360, 4))
    text, wrong = io.StringIO(), set()
    writer = csv.writer(text, delimiter=";", lineterminator="\r\n")
    writer.writerow(["id", "site", HOSTILE, "b", "c", "d", "label"])
    for k, row in enumerate(values):
        label = int(true[k])
        if k % 3 == 2 and draw.random() < 0.4:
            label = (label + int(draw.integers(1, 3))) % 3
            wrong.add(f"p{k}")
        numbers = [f"{1000 * value:.2f}".replace(".", ",") for value in row]
        writer.writerow([f"p{k}", ("north", "east", "west")[k % 3], *numbers, ("cat", "cow", "dog")[label]])
    (place / "own.csv").write_bytes(text.getvalue().encode("cp1252"))
    study = 'data = { name = "table", path = "own.csv", delimiter = ";", decimal = ",", encoding = "cp1252" }\n'
    (place / "own.toml").write_text(study, "utf-8")
    words = [
        "audit",
        place / "own.toml",
        "--out",
        place / "out",
        "--folds",
        3,
        "--rounds",
        4,
        "--model",
        "linear",
    ]
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return place, wrong


def test_the_page_of_a_site_shows_its_rows(audited: tuple[Path, set[str]]) -> None:
    place, wrong = audited
    page = (place / "out" / "sites" / "west" / "report.html").read_text("utf-8")
    assert "<script>alert(1)" not in page
    drawings = [base64.b64decode(part.split('"')[0]) for part in page.split("data:image/svg+xml;base64,")[1:]]
    assert len(drawings) >= len(wrong)
    assert any(HOSTILE[:5] in text for d in drawings for text in ElementTree.fromstring(d).itertext())


def test_the_corrected_table_is_written_as_the_original_was(audited: tuple[Path, set[str]]) -> None:
    place, wrong = audited
    words = ["labels", "apply", str(place / "out" / "sites" / "west"), "--by", "probability", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    corrected = place / "own.corrected.csv"
    before, after = (path.read_bytes().decode("cp1252") for path in (place / "own.csv", corrected))
    assert after.count("\r\n") == before.count("\r\n") == after.count("\n") == 361
    old, new = (list(csv.DictReader(io.StringIO(text), delimiter=";")) for text in (before, after))
    changed = {row["id"] for row, then in zip(new, old) if row["label"] != then["label"]}
    assert len(changed & wrong) > 0.8 * len(wrong)
    assert len(changed - wrong) < 0.1 * len(wrong)
    assert all({**then, **row} == row for row, then in zip(new, old) if row["id"] not in changed)
    read, read_again = (
        TableSource(path, delimiter=";", decimal=",", encoding="cp1252").load()
        for path in (place / "own.csv", corrected)
    )
    np.testing.assert_array_equal(read_again.images, read.images)
    assert json.loads(done.stdout)["changed"] == len(changed)
