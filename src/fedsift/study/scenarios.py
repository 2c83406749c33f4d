"""Scenario presets: every column of the papers' tables, and small twins of each, from one file of families a paper."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest
from fedsift.study.families import BASES, LIKE, members_of, with_bases

STUDY_TABLES = ("data", "partition", "noise", "public", "model", "train", "method")
"""Tables of a study that a scenario has, in the order in which it shows them."""
WHAT, FULL = "what", "full"


def preset_names() -> list[str]:
    """All presets, such as `fedcorr/cifar10-iid-0.6-0.5`, in alphabetical order."""
    return list(_presets())


def preset_text(name: str) -> str:
    """The preset as a study's file, with what it is in the first line."""
    if name not in _presets():
        raise ConfigError(f"unknown scenario '{name}'.{nearest(name, preset_names())}")
    preset = _presets()[name]
    parts = [f"# {preset[WHAT]}\n"]
    for table in STUDY_TABLES:
        if table in preset:
            lines = [f"{key} = {_toml(value)}\n" for key, value in _name_first(preset[table]).items()]
            parts.append(f"[{table}]\n{''.join(lines)}")
    return "\n".join(parts)


def preset_table(name: str) -> dict[str, Any]:
    """The preset as tables, ready for a study; its name is the study's name."""
    return {"name": name, **tomllib.loads(preset_text(name))}


def preset_summary(name: str) -> str:
    """The line that says which table it is."""
    return preset_text(name).splitlines()[0].removeprefix("#").strip()


def write_preset(name: str, path: Path) -> None:
    """A copy to change and run."""
    path.write_text(preset_text(name), encoding="utf-8")


@cache
def _presets() -> dict[str, dict[str, Any]]:
    folder = files("fedsift.study") / "scenario_files"
    papers = {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    }
    return dict(sorted(pair for paper in papers for pair in _families(paper, papers)))


def _families(paper: str, papers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every member of every family of a paper, in each of its sizes. Bases of another paper go by `paper/name`."""
    bases = dict(papers[paper].get(BASES, {}))
    for other, content in papers.items():
        known = content.get(BASES, {})
        bases |= {f"{other}/{name}": with_bases(base, known) for name, base in known.items()}
    for name, family in papers[paper].items():
        if name == BASES:
            continue
        own = {key: value for key, value in family.items() if key not in (WHAT, LIKE)}
        for size, what in family[WHAT].items():
            entry = with_bases({**own, WHAT: what, LIKE: family.get(LIKE, {}).get(size, ())}, bases)
            whole = f"{paper}/{name}" if size == FULL else f"{paper}/{name}-{size}"
            yield from members_of(whole, entry, STUDY_TABLES)


def _name_first(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table[key] for key in sorted(table, key=lambda key: key != "name")}


def _toml(value: Any) -> str:
    """A value on one line, tables too."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(part)}' for key, part in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
