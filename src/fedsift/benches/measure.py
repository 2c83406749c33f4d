"""One cell: a study to its outcome, in a folder where it can go on after it was stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedsift.benches.cells import canonical, digest
from fedsift.benches.store import Record
from fedsift.benches.version import version_of
from fedsift.contract.plain import plain
from fedsift.runs import RunFolder, read_run
from fedsift.runs.folder import SUMMARY
from fedsift.runs.summary import CURVES
from fedsift.study import Study
from fedsift.study.running import run

Listener = Callable[[dict[str, Any]], None]

DECIMALS = 6
COUNTED = ("rounds", "participations", "bytes_down", "bytes_up", "refused")
NOT_OF_SITES = frozenset({"given_label_counts", "held_out", "replies_refused"})
"""Columns of the site table that a table of runs does not keep."""


def measure(study: Study, place: Path, listen: Listener | None = None, *, keep: bool = False) -> Record:
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
    return Record(
        key=digest(f"{study_key}\n{version}"),
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
        str(key): round(value, DECIMALS) if isinstance(value, float) else value
        for key, value in plain(values).items()
    }
