"""`python -m benchmarks.attacks.presets [--only TEXT] [--minutes N] [--anew]`: small presets, protected and not.

Each preset with a small form is run twice, cut to a few rounds of every stage and to 600 to 1,500 samples: once with
heuristics that judge (`always`), once without (`never`). The whole states must be equal: model, and whatever else the
method keeps.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.files import SOURCE, missing, source
from benchmarks.attacks.light import conducted
from benchmarks.files import read_tree, write_tree

from fedsift.core.codec import digest_of
from fedsift.data.download import DataNotFound
from fedsift.methods._base import methods
from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.study import Study

FILE = Path(__file__).parent / "results" / "presets.csv"
KEY = ("preset",)
SMALL = "-small"
SAMPLES, OF_A_SITE = 1500, 200
FEWER: Mapping[str, int] = {"fednoro": 600, "fedmlp": 600}
"""Methods whose presets have larger networks or pictures."""
ON: Mapping[str, Any] = {"heuristics": "always", "largest_share": 1.0}
OFF: Mapping[str, Any] = {"heuristics": "never"}
"""Shares are not bounded in either: a bound changes a federation of very uneven sites, whoever it is."""
ROUNDS: Mapping[str, Mapping[str, Any]] = {
    "fedcorr": {"iterations": 1, "fine_tuning_rounds": 2, "usual_rounds": 3, "joins": {}},
    "feddpcont": {"rounds": 5},
    "fedmlp": {"rounds": 4, "warm_up": 2},
    "fednoro": {"rounds": 4, "warm_up": 2},
    "rhfl": {"rounds": 1, "pretrain_rounds": 1, "pretrain_epochs": 1},
}
"""A few rounds of every stage."""


def small_presets() -> list[str]:
    return [name for name in preset_names() if name.endswith(SMALL)]


def study_of(name: str, gate: Mapping[str, Any]) -> Study:
    """A small preset, cut short."""
    table = preset_table(name)
    method = table["method"]["name"]
    known = {entry.name for entry in dataclasses.fields(methods.get(method))}
    method_rounds = {key: value for key, value in ROUNDS[method].items() if key in known}
    if name == "extra/late-joiner-small":
        method_rounds["joins"] = {"site-02": 1}
    table["method"] = {**table["method"], **method_rounds}
    table["data"]["train_limit"] = FEWER.get(method, SAMPLES)
    table["data"]["test_limit"] = 200
    if "size" in table["partition"]:
        table["partition"]["size"] = OF_A_SITE
    table["engine"] = {"threads": 1}
    table["gate"] = {**table.get("gate", {}), **gate}
    return Study.from_table(table)


def compared(name: str) -> dict[str, Any]:
    """One preset, twice."""
    found = {}
    for key, gate in (("on", ON), ("off", OFF)):
        study = study_of(name, gate)
        run = conducted(study, study.load_data())
        found[key] = digest_of(run.state)
        found[f"refused {key}"] = run.refused
    return {**found, "rounds": run.steps, "equal": found["on"] == found["off"], SOURCE: source()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.presets")
    parser.add_argument("--only", default="", help="presets whose name holds this")
    parser.add_argument("--anew", action="store_true", help="rows of other versions of the source as well")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    for name in small_presets():
        asked = options.only in name and missing(read_tree(FILE, KEY).get(name), options.anew)
        if not asked or time.monotonic() > until:
            continue
        began = time.process_time()
        try:
            row = compared(name)
        except DataNotFound as error:
            print(name, "is left out:", error)
            continue
        write_tree(FILE, read_tree(FILE, KEY) | {name: row}, KEY)
        print(name, row, f"{time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
