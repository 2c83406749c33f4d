"""A preset that departs from its paper fails here: the papers' settings stand once, in papers.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.study import Study

PLACES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("papers.toml").read_text("utf-8"))
SETTINGS = [(where, presets, keys) for where, said in PLACES.items() for presets, keys in said.items()]
PAPERS = ("fednoro/", "rhfl/", "fedcorr/", "fedmlp/", "feddpcont/")
FULL = [name for name in preset_names() if not name.endswith(("-small", "-features")) and name.startswith(PAPERS)]


def leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value, `train.lr` and so on."""
    for key, value in table.items():
        where = f"{above}.{key}" if above else key
        if isinstance(value, Mapping):
            yield from leaves(value, where)
        else:
            yield where, value


def stated(name: str) -> dict[str, tuple[Any, str]]:
    """What the papers say of a preset, by key, and where they say it."""
    found: dict[str, tuple[Any, str]] = {}
    for where, presets, keys in SETTINGS:
        match = re.fullmatch(presets, name)
        if match is None:
            continue
        named = {key.replace("_", ".", 1): float(v) for key, v in match.groupdict().items() if v is not None}
        found.update({key: (value, where) for key, value in [*leaves(keys), *named.items()]})
    return found


@pytest.mark.parametrize("name", FULL)
def test_a_preset_is_as_its_paper_says(name: str) -> None:
    resolved = dict(leaves(Study.from_table(preset_table(name)).to_table()))
    expected = stated(name)
    assert len(expected) >= 8, f"papers.toml says next to nothing about {name}"
    for key, (value, where) in expected.items():
        assert resolved.get(key) == value, f"{name}: {key} = {resolved.get(key)!r}, but {where}: {value!r}"


def test_every_statement_is_about_some_preset() -> None:
    for where, presets, _ in SETTINGS:
        assert any(re.fullmatch(presets, name) for name in FULL), where
