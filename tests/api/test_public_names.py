"""The public API is a list that a person reads: `fedsift.__all__` is docs/api.md's, and nothing is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedsift

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

NAMES = {
    "Arrays", "Bench", "FedsiftError", "Predictions", "Run", "Study", "__version__", "audit", "audit_labels", "bench",
    "load", "resume", "run",
}  # fmt: skip


def test_the_list_is_this_one() -> None:
    assert set(fedsift.__all__) == NAMES
    assert len(fedsift.__all__) == len(NAMES)
    assert set(dir(fedsift)) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_every_name_is_there_and_explains_itself(name: str) -> None:
    thing = getattr(fedsift, name)
    assert thing.__name__ == name
    assert (thing.__doc__ or "").strip()
    assert getattr(fedsift, name) is thing


def test_the_page_has_the_same_names() -> None:
    headings = re.findall(r"^\| `fedsift\.(\w+)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fedsift' has no attribute 'simulate'"):
        fedsift.simulate  # noqa: B018


def test_members_that_the_page_names_exist() -> None:
    """`run.xxx` in the page's table of a run, and no public member besides."""
    page = PAGE.read_text("utf-8")
    named = set(re.findall(r"^\| `run\.(\w+)", page, re.MULTILINE))
    public = {name for name in vars(fedsift.Run) if not name.startswith("_")} | {"path"}
    assert named == public
