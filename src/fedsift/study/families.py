"""Families of settings: entries of a TOML file that take from one another, and templates with their members filled in.

The scenarios and the tables of runs that come with fedsift are written this way. Three keys make a family:

- `like = "a"`, or a list of names: the entries of `[bases]` below this one;
- `members`: parameters of a template, a table for each group of members. A parameter with a list of values stands for
  each of them. A key that is one of the entry's own tables, such as `noise`, is no parameter but a setting that this
  member alone has;
- `{rho}` in a name or a text is that parameter, with a format where one is given: `{alpha:g}`. A value that is nothing
  else, `rho = "{rho}"`, keeps the parameter's type.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest

BASES, LIKE, MEMBERS = "bases", "like", "members"
NAMED = frozenset({"data", "partition", "noise", "method"})
"""Tables whose `name` chooses a class: another name takes the place of the whole table."""

Merge = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A study's tables with others over them, key by key; one that names another method, dataset, partition or noise
    takes the place of the whole table."""
    result = dict(below)
    for key, value in over.items():
        before = result.get(key)
        if not (isinstance(before, Mapping) and isinstance(value, Mapping)):
            result[key] = dict(value) if isinstance(value, Mapping) else value
            continue
        renamed = key in NAMED and before.keys() & value.keys() >= {"name"} and value["name"] != before["name"]
        result[key] = dict(value) if renamed else {**before, **value}
    return result


def with_bases(entry: Mapping[str, Any], bases: Mapping[str, Any], merge: Merge = merged) -> dict[str, Any]:
    """An entry over all that it is `like`."""
    content: dict[str, Any] = {}
    like = entry.get(LIKE, ())
    for name in [like] if isinstance(like, str) else like:
        if name not in bases:
            raise ConfigError(f"like = '{name}': no such base.{nearest(name, list(bases))}")
        content = merge(content, with_bases(bases[name], bases, merge))
    return merge(content, {key: value for key, value in entry.items() if key != LIKE})


def members_of(
    name: str, entry: Mapping[str, Any], tables: Sequence[str], merge: Merge = merged
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The members of a template by their names, filled in; an entry without members is its only one."""
    content = {key: value for key, value in entry.items() if key != MEMBERS}
    for group in entry.get(MEMBERS, [{}]):
        own = {key: value for key, value in group.items() if key in tables}
        parameters = {key: value for key, value in group.items() if key not in tables}
        choices = [value if isinstance(value, list) else [value] for value in parameters.values()]
        for values in itertools.product(*choices):
            chosen = dict(zip(parameters, values))
            yield str(filled(name, chosen)), filled(merge(content, own), chosen)


def filled(value: Any, parameters: Mapping[str, Any]) -> Any:
    """A value with the parameters in place of their names, in all texts of it and in its keys."""
    if isinstance(value, Mapping):
        return {str(filled(key, parameters)): filled(part, parameters) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, parameters) for part in value]
    if not (isinstance(value, str) and parameters):
        return value
    alone = re.fullmatch(r"\{(\w+)\}", value)
    return parameters[alone[1]] if alone else value.format(**parameters)
