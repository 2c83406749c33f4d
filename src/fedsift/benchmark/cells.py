"""A cell of a table: its study, its key, and running it in a folder from which it can be resumed."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedsift.benchmark.store import RunRecord, digest, key_of
from fedsift.benchmark.table import Table, TableColumn, TableRow, read_seeds, table_of
from fedsift.core.errors import ConfigError, FedsiftError
from fedsift.core.numbers import plain
from fedsift.core.version import __version__
from fedsift.data.download import data_roots
from fedsift.models.weights import digest_of, find_weights
from fedsift.runs.folder import SUMMARY, RunFolder
from fedsift.runs.reading import CURVES, read_run
from fedsift.study.families import merged
from fedsift.study.running import run
from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.study import Study, read_toml
from fedsift.study.toml_tables import BasePaths, apply_overrides, defaults_of, read_overrides

# The cells of a table: every row in every column with every seed, as a resolved study with its key
# ------------------------------------------------------------------------------

LEFT_OUT = ("name",)
"""Keys of a study that change no result."""
LEFT_OUT_OF_ENGINE = ("workers",)


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    row: str
    column: str
    seed: int
    study: Study

    @property
    def label(self) -> str:
        place = f" in {self.column}" if self.column else ""
        return f"{self.row}{place}, seed {self.seed}"

    # kept once computed: how far a table is, is asked of all its cells at every piece of news
    @cached_property
    def study_key(self) -> str:
        """What is computed: the settings without what changes no result."""
        return digest(canonical(self.study))

    @cached_property
    def version(self) -> str:
        return version_of(self.study.to_table())

    @cached_property
    def key(self) -> str:
        """What is computed, and by which program."""
        return key_of(self.study_key, self.version)


def canonical(study: Study) -> str:
    """The study as text that is the same wherever it is made: every setting that is not its class's default.

    What a default is belongs to the version, which is part of a run's key: a version with one more switch, off unless
    a study turns it on, must not orphan the results of those before it.
    """
    table = {key: value for key, value in study.to_table().items() if key not in LEFT_OUT}
    table["engine"] = {k: v for k, v in table["engine"].items() if k not in LEFT_OUT_OF_ENGINE}
    for key, owner in _owners(study).items():
        usual = defaults_of(type(owner))
        table[key] = {k: v for k, v in table[key].items() if k not in usual or v != usual[k]}
    return json.dumps(table, sort_keys=True, default=str)


def _owners(study: Study) -> dict[str, Any]:
    """The dataclass that each table of a study is made of."""
    return {
        "data": study.source,
        "partition": study.partition,
        "noise": study.noise,
        "model": study.model,
        "train": study.train,
        "method": study.method,
        "engine": study.engine,
        "federation": study.federation,
        "gate": study.gate,
        "evaluate": study.evaluate,
    }


def cells_of(table: Table, seeds: tuple[int, ...] = ()) -> Iterator[Cell]:
    """All cells, seed by seed, so that a table that was stopped has whole seeds."""
    for seed in seeds or table.seeds:
        for column in table.columns:
            for row in table.rows:
                if column in table.columns_of(row):
                    yield Cell(row.label, column.label, seed, study_of(table, row, column, seed))


def study_of(table: Table, row: TableRow, column: TableColumn, seed: int) -> Study:
    """The study of one cell; what is wrong with it names the row and the column."""
    try:
        content, base = _scenario(column.scenario or table.scenario, table.base)
        for settings in (table.everywhere, column.settings, row.settings, row.at.get(column.label, {})):
            content = merged(content, settings)
        content = apply_overrides(content, list(table.settings))
        where = f"{table.name}: {row.label}, {column.label}" if column.label else f"{table.name}: {row.label}"
        content.update(name=where, seed=seed)
        return Study.from_table(content, BasePaths(base))
    except FedsiftError as error:
        raise ConfigError(f"table '{table.name}', row '{row.label}', column '{column.label}': {error}") from None


def _scenario(name: str, base: Path | None) -> tuple[dict[str, Any], Path]:
    """A preset's tables, or those of a study's file; and where its paths start."""
    here = base or Path.cwd()
    if name in preset_names():
        return preset_table(name), here
    path = here / name
    return read_toml(path), path.parent


Listener = Callable[[dict[str, Any]], None]

DECIMALS = 6
COUNTED = ("rounds", "participations", "bytes_down", "bytes_up", "refused")
NOT_OF_SITES = frozenset({"given_label_counts", "held_out", "replies_refused"})
"""Columns of the site table that a table of runs does not keep."""


def measure(study: Study, place: Path, listen: Listener | None = None, *, keep: bool = False) -> RunRecord:
    """Run a study in `place`, or go on with it there, and read its outcome; the folder goes unless it is kept."""
    folder = RunFolder(place)
    if not folder.study_file.is_file():
        place.mkdir(parents=True, exist_ok=True)
        folder.write_text("study.toml", study.to_toml())
    if not folder.finished:
        run(study, folder, listen)
    found = outcome_of(folder)
    table = study.to_table()
    study_key, version = digest(canonical(study)), version_of(table)
    if not keep:
        shutil.rmtree(place, ignore_errors=True)
    return RunRecord(
        key=key_of(study_key, version),
        study_key=study_key,
        version=version,
        torch=torch.__version__,
        outcome=found,
        study=plain(table),
    )


def outcome_of(folder: RunFolder) -> dict[str, Any]:
    """What a table may show of a finished run; nothing in it depends on a clock."""
    summary, rows = folder.read_json(SUMMARY) or {}, folder.rounds()
    outcome: dict[str, Any] = {name: summary[name] for name in COUNTED}
    outcome["scores"] = {name: _rounded(summary[name]) for name in CURVES if name in summary}
    outcome["curve"] = _curve(rows)
    outcome["warnings"] = summary.get("warnings", [])
    outcome["notes"] = summary.get("notes", [])
    if summary.get("oracle"):
        outcome["oracle"] = summary["oracle"]
    if "detection" in summary:
        outcome["detection"] = _rounded(summary["detection"])
    if "corrections" in summary:
        parts = summary["corrections"]
        outcome["corrections"] = _rounded({**parts.get("samples", {}), **parts["overall"]})
        outcome["levels"] = _rounded(parts.get("noise_level", {}))
    last = next((row["site_accuracy"] for row in reversed(rows) if "site_accuracy" in row), None)
    if last is not None:
        outcome["site_accuracy"] = [[site, value] for site, value in _rounded(last).items()]
    outcome["sites"] = [
        {key: value for key, value in _rounded(line).items() if key not in NOT_OF_SITES}
        for line in read_run(folder.path).sites
    ]
    # as it will be read again: keys in order, so that a table has the same bytes from memory and from disk
    return dict(json.loads(json.dumps(plain(outcome), sort_keys=True)))


def _curve(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Scores of the evaluated rounds, by round and by how often a site had taken part until then."""
    visits, curve = 0, {"round": [], "visits": []}  # type: tuple[int, dict[str, list[Any]]]
    names = [name for name in CURVES if any(row.get(name) is not None for row in rows)]
    curve.update({name: [] for name in names})
    for row in rows:
        visits += row["participants"]
        if any(row.get(name) is not None for name in names):
            curve["round"].append(row["round"])
            curve["visits"].append(visits)
            for name in names:
                value = row.get(name)
                curve[name].append(None if value is None else round(value, DECIMALS))
    return curve


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shares with a few decimals: what machines differ in is not shown, and files stay small."""
    return {
        str(key): round(value, DECIMALS) if isinstance(value, float) else value for key, value in plain(values).items()
    }


# The program that computed a run
# ------------------------------------------------------------------------------


PACKAGES = (
    "core", "protocol", "data", "models", "formulas", "detection", "training", "methods", "label_audit", "runtime",
    "study",
)  # fmt: skip
SUFFIXES = frozenset({".py", ".cpp", ".h"})


@cache
def source_digest() -> str:
    """Of all source files of the packages that compute, whatever folder they are installed in."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted(f for f in (root / package).rglob("*") if f.suffix in SUFFIXES):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def version_of(study: Mapping[str, Any]) -> str:
    """The version that a run of this study has: the program's, and that of every class which it names by address."""
    tables = [table for table in study.values() if isinstance(table, Mapping)]
    named = sorted({module for table in tables for module in _addresses(table)})
    own = "".join(f"+{module}@{_module_digest(module)}" for module in named)
    model = study.get("model", {})
    if model.get("weights"):
        origin = find_weights(model["weights"], model.get("name", ""), data_roots())
        own += f"+weights@{digest_of(origin)}"
    return f"{__version__}+{source_digest()[:16]}{own}"


def _addresses(value: Any) -> Iterator[str]:
    """The modules of `package.module:Name` anywhere in a study."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("name", "cycle", "sites"):
                for text in _texts(item):
                    head, colon, tail = text.removeprefix("features:").partition(":")
                    if colon and tail and head != "own":
                        yield head
            if isinstance(item, Mapping):
                yield from _addresses(item)


def _texts(item: Any) -> Iterator[str]:
    parts = item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else [item]
    yield from (part for part in parts if isinstance(part, str))


def _module_digest(module: str) -> str:
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return "unknown"
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:16]


# A table from the command line
# ------------------------------------------------------------------------------


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
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
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
