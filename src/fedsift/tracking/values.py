"""A round's line as figures that every tracker takes; a study's tables as settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsift.contract.findings import Findings

NO_FIGURES = frozenset({"round", "of"})


def figures_of(row: Mapping[str, Any], classes: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of a round's line: one a name, lists as `recall/cat`; how many sites look noisy and were refused.

    No site's name is among them: what a tracker is told may leave the machine.
    """
    found: dict[str, float] = {}
    for name, value in row.items():
        if name in NO_FIGURES:
            continue
        if isinstance(value, list):
            found.update(_of_classes(name, value, classes))
        elif (figure := _figure(value)) is not None:
            found[name] = figure
    refused = row.get("refused")
    if isinstance(refused, Mapping):
        found["refused"] = float(len(refused))
    said = Findings.last([dict(row)])
    if said is not None:
        found["noisy_sites"] = float(len(said.noisy))
    return found


def _of_classes(name: str, values: Sequence[Any], classes: Sequence[str]) -> dict[str, float]:
    if len(values) != len(classes):
        return {}
    figures = {f"{name}/{label}": _figure(value) for label, value in zip(classes, values)}
    return {label: figure for label, figure in figures.items() if figure is not None}


def _figure(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def settings_of(table: Mapping[str, Any], above: str = "") -> dict[str, str | int | float | bool]:
    """A study's tables as `method.rounds = 40`; lists as text."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in table.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            found.update(settings_of(value, name))
        else:
            found[name] = value if isinstance(value, str | int | float | bool) else str(value)
    return found
