"""A finished run as a row of a table: for runs too long to be made in one go by `run.py`.

    python benchmarks/papers/collect.py TABLE.toml LABEL RUN-FOLDER [LABEL RUN-FOLDER ...]

Kept are the figures of the summary, the minutes, and accuracy along the way by what had been sent until then.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run import KEPT

POINTS = 40
"""Places of the curve that are kept, about."""


def collect(folder: Path) -> dict[str, Any]:
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]
    study = tomllib.loads((folder / "study.toml").read_text("utf-8"))
    summary_file = folder / "summary.json"
    summary = json.loads(summary_file.read_text("utf-8")) if summary_file.is_file() else {}
    visits, curve = 0, []
    for row in rounds:
        visits += row["participants"]
        if "accuracy" in row:
            curve.append({"round": row["round"], "site_visits": visits, "accuracy": row["accuracy"]})
    every = max(1, len(curve) // POINTS)
    last = [point["accuracy"] for point in curve[-10:]]
    outcome = {key: summary[key] for key in KEPT if key in summary}
    outcome.setdefault("accuracy", {"last": sum(last) / len(last), "final": last[-1]})
    return {
        **outcome,
        "seed": study.get("seed", 0),
        "finished": bool(summary),
        "rounds": len(rounds),
        "site_visits": visits,
        "minutes": round(sum(row["seconds"] for row in rounds) / 60, 2),
        "curve": curve[every - 1 :: every],
    }


def main() -> None:
    table, *pairs = sys.argv[1:]
    path = Path(table)
    settings = tomllib.loads(path.read_text("utf-8"))
    results = {label: collect(Path(folder)) for label, folder in zip(pairs[::2], pairs[1::2], strict=True)}
    out = path.parent / "results" / f"{path.stem}.json"
    data = {"table": path.name, "what": settings["what"], "preset": settings["preset"], "results": results}
    out.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    for label, row in results.items():
        print(f"{label:<12} accuracy {row['accuracy']}, {row['site_visits']} visits, {row['minutes']} min")


if __name__ == "__main__":
    main()
