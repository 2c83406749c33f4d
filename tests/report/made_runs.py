"""Run folders of any size, made without training: what a report must cope with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.runs.folder import Checkpoint, RunFolder
from fedsift.runs.reading import summarise
from fedsift.runtime.loop import write_plan
from fedsift.study.study import Study


def study_table(method: str = "fednoro", sites: int = 4, seed: int = 1, **more: Any) -> dict[str, Any]:
    own = {"rounds": 6, "warm_up": 3} if method == "fednoro" else {"rounds": 6}
    return {
        "name": "made",
        "seed": seed,
        "partition": {"name": "iid", "sites": sites},
        "method": {"name": method, **own},
        **more,
    }


def round_row(number: int, stage: str, classes: int, **more: Any) -> dict[str, Any]:
    score = round(1 - 0.6 / number, 6)
    row: dict[str, Any] = {"round": number, "stage": stage, "trains": stage != "find noisy sites"}
    if row["trains"]:
        recall = [None if k == classes - 1 else round(score - 0.01 * (k % 5), 6) for k in range(classes)]
        row.update(loss=2 / number, accuracy=score, bacc=score - 0.02, recall=recall, train_loss=3 / number)
    row.update(
        participants=4,
        refused={},
        replies={"Train": ["Trained"]} if row["trains"] else {"Indicate": ["Indicators"]},
        bytes_down=1000,
        bytes_up=900,
        warnings=[],
        seconds=0.5,
    )
    return {**row, **more}


def fednoro_rows(classes: int, found: Sequence[str], rounds: int = 7, warm_up: int = 3) -> list[dict[str, Any]]:
    rows = [round_row(n, "warm up", classes) for n in range(1, warm_up + 1)]
    rows.append(round_row(warm_up + 1, "find noisy sites", classes, findings={"noisy": list(found)}))
    return rows + [round_row(n, "robust training", classes) for n in range(warm_up + 2, rounds + 1)]


def site_lines(
    names: Sequence[str], classes: int, found: Sequence[str] | None, truth: Sequence[str] | None
) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    lines = []
    for name in names:
        counts = random.integers(0, 60, classes) * (random.random(classes) < 0.8)
        line: dict[str, Any] = {"site": name, "samples": int(counts.sum()), "held_out": 0, "model": "cnn"}
        if found is not None:
            loss = random.gamma(2.0, 0.2, classes) + (2.0 if name in found else 0.0)
            line["noisy"] = name in found
            line["indicator"] = [float(v) if c else None for v, c in zip(loss, counts)]
            line["aggregation_weight"] = 1 / len(names)
        line.update(replies_refused=0, given_label_counts=counts.tolist())
        if truth is not None:
            line.update(truth_noisy=name in truth, truth_level=0.5 * (name in truth), truth_noise_rate=0.25)
        lines.append(line)
    return lines


def make_run(
    parent: Path,
    *,
    names: Sequence[str] = ("a", "b", "c", "d"),
    classes: Sequence[str] = ("cat", "dog", "owl"),
    rows: Sequence[dict[str, Any]] | None = None,
    found: Sequence[str] | None = ("b",),
    truth: Sequence[str] | None = ("b",),
    method: str = "fednoro",
    finished: bool = True,
    study: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
    folder_name: str = "run",
) -> Path:
    """A folder as a run leaves it; unfinished, with the last round's checkpoint instead of the tables."""
    folder = RunFolder.create(parent, folder_name)
    made = Study.from_table(study or study_table(method, len(names)))
    folder.write_text("study.toml", made.to_toml())
    write_plan(made.method, folder)
    lines = site_lines(names, len(classes), found, truth)
    if rows is None:
        rows = (
            fednoro_rows(len(classes), found)
            if found is not None
            else [round_row(n, "train", len(classes)) for n in range(1, 7)]
        )
    for row in rows:
        folder.append_round(row)
    if finished:
        folder.write_table("sites.csv", lines)
        summary = {
            **summarise(list(rows)),
            "classes": list(classes),
            "dataset": "made-up",
            "sites": len(names),
        }
        if found is not None and truth is not None:
            summary["detection"] = detection(found, truth)
        folder.write_json("summary.json", {**summary, "notes": list(notes)})
    elif rows:
        recorded = ("site", "noisy", "indicator") if found is not None else ("site",)
        sites = [{**{key: line[key] for key in recorded}, "replies_refused": 0} for line in lines]
        folder.checkpoint(Checkpoint(len(rows), b"", sites))
    return folder.path


def detection(found: Sequence[str], truth: Sequence[str]) -> dict[str, Any]:
    right = len(set(found) & set(truth))
    return {
        "precision": right / len(found) if found else 0.0,
        "recall": right / len(truth) if truth else 0.0,
        "exact": set(found) == set(truth),
        "truth": list(truth),
        "missed": sorted(set(truth) - set(found)),
        "false_alarms": sorted(set(found) - set(truth)),
    }
