"""The page on trackers lists those that there are, and what it shows works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedsift.study.tracking import TrackerThreads, read_track
from fedsift.tracking.base import trackers
from tests.docs import pictures
from tests.docs.blocks import blocks
from tests.docs.contributed import contributed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tracking.md"


def test_the_table_lists_every_tracker_and_the_extra_that_installs_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    wanted = {name: trackers.get(name).extra for name in trackers}
    assert {name: install.strip("`") for name, install in rows} == {
        name: f"fedsift[{extra}]" if extra else "nothing" for name, extra in wanted.items()
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {extra for extra in wanted.values() if extra} <= set(extras)


def test_the_study_of_the_page_names_real_keys() -> None:
    [table] = [block.text for block in blocks(PAGE) if block.kind == "toml"]
    assert set(read_track(tomllib.loads(table)["track"])) == {"tensorboard", "mlflow"}


def test_a_tracker_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contributed(tmp_path, PAGE):
        following = TrackerThreads(read_track({"mine.tracker:Chat": True}), tmp_path / "first", {})
        following.round({"round": 1, "accuracy": 0.5})
        following.close("finished")
        assert following.news() == []
    assert Path("chat.txt").read_text() == "first, round 1: 50.0%\n"


def test_every_picture_that_the_script_takes_is_there_and_loads_nothing() -> None:
    for name in pictures.FILES:
        assert (pictures.PLACE / name).is_file(), f"{name} is missing: make pictures"
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", (pictures.PLACE / "watch.svg").read_text("utf-8"))
