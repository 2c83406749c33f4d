"""`fedsift sweep`: a table given on the command line, e.g. `fedsift sweep study.toml method.beta=1,5,10 seeds=1-5`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedsift.benchmark.table import Table, read_seeds, table_of
from fedsift.core.errors import ConfigError
from fedsift.study.toml_tables import read_overrides


def sweep_table(study: str, settings: Sequence[str], figures: Sequence[str]) -> tuple[Table, str]:
    """The table that a sweep makes, and its file's text. The last key with several values makes the columns where
    there are two or more such keys; all others make the rows."""
    seeds, swept, fixed = _sorted_out(settings)
    if not swept:
        raise ConfigError("a sweep needs a key with several values, e.g. method.beta=1,5,10")
    across = list(swept)[-1] if len(swept) > 1 else ""
    down = [key for key in swept if key != across]
    content: dict[str, Any] = {
        "what": f"{Path(study).stem}: {', '.join(swept)}",
        "scenario": study if not study.endswith(".toml") else str(Path(study).absolute()),
        "seeds": list(seeds),
        "figures": list(figures),
        "all": _tables(fixed),
        "columns": [{"label": f"{across}={_word(v)}", **_tables({across: v})} for v in swept[across]]
        if across
        else [{"label": Path(study).stem}],
        "rows": [
            {
                "label": ", ".join(f"{key}={_word(value)}" for key, value in zip(down, values)),
                **_tables(dict(zip(down, values))),
            }
            for values in itertools.product(*(swept[key] for key in down))
        ],
    }
    text = tomli_w.dumps(content)
    slug = re.sub(r"[^a-z0-9]+", "-", f"sweep-{Path(study).stem}-{'-'.join(swept)}".lower()).strip("-")
    return table_of(slug, content), text


def _sorted_out(settings: Sequence[str]) -> tuple[tuple[int, ...], dict[str, list[Any]], dict[str, Any]]:
    """Seeds, keys with several values, and keys with one."""
    seeds: tuple[int, ...] = (1, 2, 3)
    swept: dict[str, list[Any]] = {}
    fixed: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise ConfigError(f"'{setting}' is not of the form key=value or key=a,b,c")
        if key in ("seeds", "seed"):
            seeds = read_seeds(text, "sweep")
            continue
        if "." not in key:
            raise ConfigError(f"'{key}' is a whole table: name a key of it, e.g. {key}.name")
        values = [read_overrides([f"{key}={part}"])[key] for part in parts_of(text)]
        if not values:
            raise ConfigError(f"'{setting}' has no value: write key=value or key=a,b,c")
        if len(values) > 1:
            swept[key] = values
        else:
            fixed[key] = values[0]
    return seeds, swept, fixed


def parts_of(text: str) -> list[str]:
    """`a,b,c` at its commas, but not at those inside brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`method.beta` = 5 as {"method": {"beta": 5}}."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        place = tables
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return tables


def _word(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
