"""Scenario presets: one small TOML file for every column of the papers' tables, and small twins of each."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest


def preset_names() -> list[str]:
    """All presets, such as `fedcorr/cifar10-iid-0.6-0.5`, in alphabetical order."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    found = []
    for group in _root().iterdir():
        if group.is_dir():
            found += [f"{group.name}/{file.name.removesuffix('.toml')}" for file in group.iterdir()]
    return tuple(sorted(found))


def preset_text(name: str) -> str:
    """The preset's file as it stands."""
    names = preset_names()
    if name not in names:
        raise ConfigError(f"unknown scenario '{name}'.{nearest(name, names)}")
    group, _, file = name.partition("/")
    return (_root() / group / f"{file}.toml").read_text(encoding="utf-8")


def preset_table(name: str) -> dict[str, Any]:
    """The preset as tables, ready for a study; its name is the study's name."""
    return {"name": name, **tomllib.loads(preset_text(name))}


def preset_summary(name: str) -> str:
    """The line that says which table it is."""
    return preset_text(name).splitlines()[0].removeprefix("#").strip()


def write_preset(name: str, path: Path) -> None:
    """A copy to change and run."""
    path.write_text(preset_text(name), encoding="utf-8")


def _root() -> Traversable:
    return files("fedsift.study") / "scenario_files"
