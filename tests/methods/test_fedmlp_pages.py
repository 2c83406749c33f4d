"""The worked examples of the method pages are studies that build, and the pages name every parameter."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from fedsift.methods._base import methods
from fedsift.study.study import Study

PAGES = Path(__file__).parents[2] / "docs" / "methods"
COMMON = {"rounds", "fraction", "local", "aggregate", "hostile"}
"""Described once for all methods, the last two in aggregation.md."""


@pytest.mark.parametrize("name", ["fedmlp", "fedavg-pl", "feddpcont"])
def test_the_worked_example_builds(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    study = Study.from_table(tomllib.loads(example))
    assert study.method_name == name


@pytest.mark.parametrize("name", ["fedmlp", "fedavg-pl", "feddpcont"])
def test_the_page_names_every_parameter(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    fields = {field.name for field in dataclasses.fields(methods.get(name))} - COMMON
    assert sorted(field for field in fields if not re.search(rf"\b{field}\b", text)) == []
