"""`python -m benchmarks.leakage.methods [--only NAME] [--minutes N]`: methods.csv and fields.csv, method by method.

A small federation of digits with uneven classes for every method, once without a policy and once for each policy below,
with the sites answering as deployed ones do (`deployed`). What leaves them is attacked (`replies`). A method that is in
the file is not run again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.attacks.accuracy import FINDINGS, WITH
from benchmarks.attacks.light import conducted
from benchmarks.files import read_list
from benchmarks.leakage.deployed import Deployed, Left, introduced, site_files
from benchmarks.leakage.measure import MIN_COUNT
from benchmarks.leakage.replies import FROM, Reader, figures, lengths, read

from fedsift.benchmark.rows import flat, read_rows, write_rows
from fedsift.core.errors import FedsiftError
from fedsift.data.dataset import FederatedDataset
from fedsift.deploy.site.policy import fields_in
from fedsift.methods._base import methods
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study

RESULTS = Path(__file__).parent / "results"
RUNS, FIELDS = RESULTS / "methods.csv", RESULTS / "fields.csv"
KEY = ("method", "policy", "seed")
"""What a row of both files is of; in `fields.csv` each field that was attacked has a row of its own."""
SEEDS = (1, 2)
SITES = 8
"""As many as one process keeps open at once (`deploy.sites`): with more, every request reads a site's data again."""
NOISE = 1.0
"""Standard deviation of the noise in units of the clipping bound."""
FIGURES = ("labels", "member")
APPLIED = "policy table"
POLICIES = ("no policy", "floor", "clipped", "noise")
MODEL = "mlp"
SHOWN = 12
"""Training samples of each site that are among the public ones, where a method has a public set."""
UNEVEN = {"p": 0.6, "alpha": 2.0}
UNEVEN_FINDINGS = {"p": 0.35, "alpha": 5.0}
"""Of fewer digits a site: four findings of many would come to nearly equal shares, with nothing to be known of them."""
ROUNDS = 2
SHORT: Mapping[str, dict[str, Any]] = {
    "cbafed": {"warmup": 1, "rounds": 2},
    "dividemix": {"warmup": 1, "rounds": 1},
    "fedclean": {"rounds_1": 1, "rounds_2": 1, "rounds_3": 1, "cnll_epochs": 4, "cnll_warm": 2},
    "fedcorr": {"iterations": 1, "fine_tuning_rounds": 1, "usual_rounds": 1},
    "feddiv": {"iterations": 1, "rounds": 2},
    "fedmd": {"rounds": 1, "pretrain_rounds": 1, "pretrain_epochs": 3},
    "fedmlp": {"rounds": 2, "warm_up": 1},
    "fednoro": {"rounds": 2, "warm_up": 1},
    "joint-opt": {"warmup": 1, "rounds": 1},
    "label-audit": {"rounds": 2, "folds": 2},
    "lc": {"warmup": 1, "rounds": 1},
    "rhfl": {"rounds": 1, "pretrain_rounds": 1, "pretrain_epochs": 3},
    "t-revision": {"warmup": 1, "rounds": 1, "revision": 1},
}
"""A few rounds of every stage; two for the others."""


def study_of(name: str, seed: int, folder: Path) -> Study:
    """Uneven sites of digits, or of digits with four findings each, which hold out a fifth as real sites do."""
    method = methods.get(name)
    known = {entry.name for entry in dataclasses.fields(method)}
    table: dict[str, Any] = {
        "name": f"leakage-{name}-{seed}",
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": SITES, **UNEVEN},
        "noise": {"name": "clean"},
        "model": {"name": MODEL},
        "train": {"epochs": 3, "batch_size": 32, "lr": 0.2, "momentum": 0.5},
        "evaluate": {"held_out": 0.2},
        "engine": {"threads": 1},
        "method": {"name": "fedavg"},
    }
    if "multiclass" not in method.tasks:
        table["partition"] = {**table["partition"], **UNEVEN_FINDINGS}
        path = _several_labels(Study.from_table(table).load_data(), folder / f"findings-{seed}.npz")
        table["data"] = {"name": "npz", "path": str(path)}
        table["partition"] = {"name": "natural"}
        table["noise"] = {"name": "class-missing", "missing": 1}
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    settings = {"rounds": ROUNDS, "fraction": 1.0, **SHORT.get(name, {})}
    table["method"] = {"name": name, **{key: value for key, value in settings.items() if key in known}}
    return Study.from_table(table)


def _several_labels(federated: FederatedDataset, path: Path) -> Path:
    """The same sites with four yes/no findings a digit."""
    data = federated.dataset
    findings = np.stack([np.isin(data.labels, WITH[k]) for k in range(len(FINDINGS))], axis=1)
    rows = {site: np.concatenate([federated.rows[site], federated.held_out[site]]) for site in federated.sites}
    every = np.concatenate(list(rows.values()))
    np.savez(
        path,
        images=data.images[every],
        labels=findings[every].astype(np.int64),
        site=np.concatenate([np.full(len(own), site) for site, own in rows.items()]),
        test_images=data.images[data.test],
        test_labels=findings[data.test].astype(np.int64),
        classes=np.array(FINDINGS),
    )
    return path


def public_widened(study: Study) -> FederatedDataset:
    """The study's data; of each site a few samples are public as well, or nobody could ask whether they are there."""
    federated = study.load_data()
    if federated.public is None:
        return federated
    shown = np.concatenate([federated.public.rows, *(rows[:SHOWN] for rows in federated.rows.values())])
    return dataclasses.replace(federated, public=dataclasses.replace(federated.public, rows=shown))


def policy_table(policy: str, clip: float) -> dict[str, Any]:
    """The `[policy]` table of every site; each policy adds to the one before it."""
    table: dict[str, Any] = {} if policy == "no policy" else {"min_count": MIN_COUNT, "audit": True}
    if policy in ("clipped", "noise"):
        table["clip"] = clip
    if policy == "noise":
        table["noise"] = NOISE
    return table


def measured(name: str, seed: int, policies: tuple[str, ...] = POLICIES) -> dict[str, dict[str, Any]]:
    """What left and what it tells, by policy. Clipping is at the median length of the updates without a policy."""
    found: dict[str, dict[str, Any]] = {}
    clip = 1.0
    with tempfile.TemporaryDirectory() as place:
        study = study_of(name, seed, Path(place))
        federated = public_widened(study)
        for number, policy in enumerate(policies):
            folder = Path(place) / f"sites-{number}"
            left, found[policy] = _run(study, federated, folder, policy_table(policy, clip))
            if policy == POLICIES[0] and (long := lengths(left)):
                clip = float(f"{np.median(long):.3g}")
    return found


def _run(
    study: Study, federated: FederatedDataset, folder: Path, policy: Mapping[str, Any]
) -> tuple[list[Left], dict[str, Any]]:
    files = site_files(federated, folder, policy)
    left: list[Left] = []
    failures: list[str] = []
    facts = introduced(files, MODEL)
    seen: dict[str, Any] = {"files": files, "left": left, "failures": failures, "facts": facts}
    row: dict[str, Any] = {"policy": dict(policy)}
    try:
        end = conducted(study, federated, Deployed, **seen)
        row["accuracy"] = None if end.model is None else round(end.accuracy, 3)
        row["set aside"] = end.refused
    except FedsiftError as error:  # a run that a policy ends is a result
        row["ended"] = str(error)[:300]
    reader = Reader(open_in_process(study, federated, study.name, InProcess), facts)
    labels, member = figures(read(left, reader), reader)
    row["labels"] = {key: round(value, 3) for key, value in labels.items()}
    row["member"] = {key: round(value, 3) for key, value in member.items()}
    row["fields"] = sorted({name for each in left for name in fields_in(each.reply)})
    row["replies"] = len(left)
    row["failures"] = dict(Counter(failures))
    return left, row


def read_results() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By method and policy what was found with each seed."""
    attacked: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    for row in read_rows(FIELDS) if FIELDS.is_file() else ():
        place = attacked.setdefault(tuple(row[name] for name in KEY), {what: {} for what in FIGURES})
        for what, exchange in itertools.product(FIGURES, sorted(FROM)):
            if f"{what}.{exchange}" in row:
                place[what][f"{row['field']}, {exchange}"] = row[f"{what}.{exchange}"]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in read_list(RUNS):
        method, policy, seed = (row.pop(name) for name in KEY)
        applied = row.pop(APPLIED)
        whole = {**row, "policy": applied, **attacked.get((method, policy, seed), {what: {} for what in FIGURES})}
        found.setdefault(method, {}).setdefault(policy, []).append(whole)
    return found


def keep(found: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> None:
    """Both files."""
    runs, fields = [], []
    for method, policies in found.items():
        for policy, seed in itertools.product(policies, range(len(SEEDS))):
            row = policies[policy][seed]
            place = dict(zip(KEY, (method, policy, SEEDS[seed])))
            rest = {key: value for key, value in row.items() if key not in (*FIGURES, "policy")}
            runs.append({**place, **flat({**rest, APPLIED: row["policy"]})})
            each: dict[str, dict[str, float]] = {}
            for what in FIGURES:
                for name, value in row[what].items():
                    field, _, exchange = name.rpartition(", ")
                    each.setdefault(field, {})[f"{what}.{exchange}"] = value
            fields += [{**place, "field": field, **values} for field, values in each.items()]
    write_rows(RUNS, runs, KEY)
    write_rows(FIELDS, fields, (*KEY, "field"), [f"{what}.{exchange}" for what in FIGURES for exchange in FROM])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leakage.methods")
    parser.add_argument("--only", default="", help="one method")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    for name in methods.names():
        if name in read_results() or options.only not in ("", name) or time.monotonic() > until:
            continue
        began = time.process_time()
        rows = [measured(name, seed) for seed in SEEDS]
        found = {policy: [row[policy] for row in rows] for policy in POLICIES}
        keep(read_results() | {name: found})
        print(name, f"{time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
