"""A study of data as they lie there: somebody names a folder, a table or arrays, and everything else is usual."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from fedsift.data.doctor import kind_at
from fedsift.data.sources.base import sources
from fedsift.study.scenarios import preset_names
from fedsift.study.study import Study
from fedsift.study.toml_tables import BasePaths, apply_overrides


def names_data(path: Path | str) -> bool:
    """Whether a path leads to data, and neither to a study's file or a scenario nor to a run's folder."""
    there = Path(path)
    if there.as_posix() in preset_names() and not there.is_file():
        return False
    return there.exists() and there.suffix.lower() != ".toml" and not (there / "study.toml").is_file()


def study_of_data(path: Path | str, settings: list[str] | None = None) -> Study:
    """The study that has these data and nothing else; `size=32` among the settings means `data.size=32`."""
    kind = kind_at(Path(path))
    [name] = [name for name in sources.names() if sources.get(name) is kind]
    own = {field.name for field in fields(kind)}
    dotted = [f"data.{each}" if each.partition("=")[0].strip() in own else each for each in settings or []]
    table = apply_overrides({"data": {"name": name, "path": str(path)}}, dotted)
    return Study.from_table(table, BasePaths(Path.cwd()))
