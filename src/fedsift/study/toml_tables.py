"""Builds dataclasses from TOML tables: unknown keys are refused with the nearest name, types and ranges are checked,
paths made absolute."""

from __future__ import annotations

import dataclasses
import functools
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import ranges_of
from fedsift.core.registry import Registry, is_near, nearest
from fedsift.core.type_checks import declarations

T = TypeVar("T")
NAME = "name"
"""The key by which a table chooses its class."""


@dataclasses.dataclass(frozen=True)
class BasePaths:
    """Where relative paths start: in a study at its file, on the command line at the working directory."""

    file: Path
    typed: frozenset[str] = frozenset()
    """Keys of the settings that a person typed, such as `data.path`."""

    def of(self, key: str) -> Path:
        return Path.cwd() if key in self.typed else self.file


def build(
    cls: type[T],
    table: Mapping[str, Any],
    where: str,
    *,
    fixed: Mapping[str, Any] | None = None,
    bases: BasePaths | None = None,
    taken: tuple[str, ...] = (),
) -> T:
    """An instance of a dataclass from a table. `fixed` fields are set by the program and are not keys; `taken` keys
    were read before, and an unknown key may have meant one of them.

    With `bases` relative paths become absolute ones; without, they stay as they are written.
    """
    fixed = dict(fixed or {})
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in fixed and f.init}  # type: ignore[arg-type]
    hints, ranges = {f.name: hint for f, hint in declarations(cls)}, ranges_of(cls)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"unknown key '{_join(where, key)}'.{nearest(key, [*taken, *fields])}")
        values[key] = _value(hints[key], value, _join(where, key), bases)
        outside = ranges[key].refusal(values[key]) if key in ranges else None
        if outside is not None:
            raise ConfigError(f"{_join(where, key)} = {value}: {outside}")
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"'{_join(where, missing[0])}' is required")
    return cls(**values, **fixed)


def build_named(
    registry: Registry[Any],
    table: Mapping[str, Any],
    where: str,
    *,
    fixed: Mapping[str, Any] | None = None,
    bases: BasePaths | None = None,
) -> Any:
    """An instance of the class that the table's `name` chooses: registered, an entry point, `package.module:Name`."""
    rest = dict(table)
    name = rest.pop(NAME, None)
    if name is None:
        for key in rest:
            if is_near(key, NAME):
                raise ConfigError(f"unknown key '{_join(where, key)}'.{nearest(key, [NAME])}")
    if not isinstance(name, str):
        raise ConfigError(f"'{where}.name' is required: one of {', '.join(registry.names())}")
    return build(registry.get(name), rest, where, fixed=fixed, bases=bases, taken=(NAME,))


def as_table(value: Any, *, leave: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The table that builds this dataclass again; fields that are None are left out."""
    table: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        if f.name in leave or not f.init:
            continue
        item = getattr(value, f.name)
        if item is not None:
            table[f.name] = _plain(item)
    return table


def defaults_of(kind: type) -> dict[str, Any]:
    """What the fields of a dataclass are if nobody says anything, as a table has them; those without a default are
    left out."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if f.default is not dataclasses.MISSING:
            found[f.name] = _plain(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            found[f.name] = _plain(f.default_factory())
    return found


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return as_table(item)
    if isinstance(item, Path):
        return str(item)
    if isinstance(item, list | tuple):
        return [_plain(part) for part in item]
    if isinstance(item, dict):
        return {str(key): _plain(part) for key, part in item.items()}
    return item


def _value(hint: Any, value: Any, where: str, bases: BasePaths | None) -> Any:
    nested = _dataclass_in(hint)
    if nested is not None and isinstance(value, Mapping):
        return build(nested, value, where, bases=bases)
    try:
        checked = _adapter(hint).validate_python(value)
        if bases is not None and isinstance(checked, Path):
            # `absolute` and not `resolve`: a folder of links is named as its owner names it
            return Path(os.path.normpath(bases.of(where) / checked.expanduser()))
        return checked
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"'{where}' = {value!r}: {problem['msg'].lower()}") from None


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """Made once for each type: a table of runs checks the same keys thousands of times."""
    return TypeAdapter(hint)


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass that a hint means: itself, or the one member of an optional."""
    candidates = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    for candidate in candidates:
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def read_overrides(overrides: list[str]) -> dict[str, Any]:
    """`a.b=value` settings by key; values are read as TOML, and as plain text where that fails."""
    settings: dict[str, Any] = {}
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"'{override}' is not of the form key=value")
        try:
            settings[key.strip()] = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = text
    return settings


def apply_overrides(table: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`a.b=value` settings over a table."""
    return with_settings(table, read_overrides(overrides))


def with_settings(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by key over a table; None takes a key out."""
    result = _deep_copy(table)
    for key, value in settings.items():
        *path, last = key.split(".")
        place = result
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"'{key}': '{part}' is a value, not a table")
        place[last] = value
        if value is None:
            del place[last]
    return result


def leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table and of the tables inside it, by keys such as `a.b`."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys in which two tables differ, sorted, with both values; None is not set."""
    old, new = dict(leaves(before)), dict(leaves(after))
    return {key: (old.get(key), new.get(key)) for key in sorted(old | new) if old.get(key) != new.get(key)}


def leave_other_keys(
    table: Mapping[str, Any], where: str, name: str, registry: Registry[Any]
) -> tuple[dict[str, Any], str]:
    """The table without the keys that another method (noise, ...) of the same table had, and a note about them.

    Keys that the named one has too, such as `rounds`, stay: a person who only changes the name compares like with
    like.
    """
    before = table.get("name")
    if before == name or name not in registry:
        return dict(table), ""
    known = {f.name for f in dataclasses.fields(registry.get(name))}
    kept = {key: value for key, value in table.items() if key in known and key != "name"}
    dropped = [key for key in table if key not in known and key != "name"]
    words = []
    if dropped:
        words.append(f"{', '.join(dropped)} of '{before}' {'is' if len(dropped) == 1 else 'are'} left out")
    if kept:
        words.append(f"kept: {', '.join(f'{key} = {value}' for key, value in kept.items())}")
    return kept, f"{where}.name = '{name}': {'; '.join(words)}" if words else ""


def _deep_copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in table.items()}
