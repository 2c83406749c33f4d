"""`python -m benchmarks.learns.reasons`: why a row is behind FedAvg, each reason with the run that shows it.

`reasons.json` holds for a row that is behind the words and the tries: the same method with more rounds, another step or
one of its parts taken out, without wrong labels, on another seed than the table's, and what its reference reaches with
the same budget. Tries without a figure are computed here, clean runs only; those that have one are left alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.learns.rows import KINDS, Row

FILE = Path(__file__).parent / "reasons.json"
NEAR = 0.03
"""Without wrong labels a method may end so far below its reference."""


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def of(kind: str, method: str, reasons: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The reason of one row."""
    return next((one for one in reasons if (one["kind"], one["method"]) == (kind, method)), None)


def catches_up(reason: dict[str, Any] | None) -> str | None:
    """What a row needs to come near its reference, in words; None where nothing that was tried is enough."""
    for tried in (reason or {}).get("tries", []):
        if tried["fair"] and known(tried) and ahead(tried) >= -NEAR:
            return str(tried["what"])
    return None


def known(tried: dict[str, Any]) -> bool:
    return tried.get("value") is not None and tried.get("reference_value") is not None


def ahead(tried: dict[str, Any]) -> float:
    return float(tried["value"] - tried["reference_value"])


def words(reason: dict[str, Any]) -> str:
    """The reason and its figures, in one sentence; a reason without any is called what it is."""
    shown = "; ".join(
        f"{tried['what']}: {100 * tried['value']:.1f} where FedAvg has {100 * tried['reference_value']:.1f}"
        for tried in reason["tries"]
        if known(tried)
    )
    if not shown:
        return f"supposed, not shown by a run: {reason['words']}"
    return f"{reason['words']} ({shown}; seed {reason['seed']})"


def main() -> None:
    from benchmarks.learns.__main__ import ending

    from fedsift.contract.files import write_atomically

    reasons = read()
    done: dict[str, float] = {}

    def figure(kind: str, method: dict[str, Any], settings: list[str], seed: int) -> float:
        name = json.dumps([kind, method, settings, seed], sort_keys=True)
        if name not in done:
            row = Row(method, tuple(settings))
            done[name] = ending(KINDS[kind], row, KINDS[kind].clean, seed)[KINDS[kind].metric]
        return done[name]

    for reason in reasons:
        for tried in reason["tries"]:
            for method, settings, value in (
                ("method", "set", "value"),
                ("reference", "reference_set", "reference_value"),
            ):
                if tried.get(value) is None:
                    tried[value] = figure(
                        reason["kind"], tried[method], tried.get(settings, []), reason["seed"]
                    )
                    write_atomically(FILE, (json.dumps(reasons, indent=1) + "\n").encode())
            print(
                f"{reason['kind']:<10} {reason['method']:<16} {tried['what']}: {ahead(tried):+.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
