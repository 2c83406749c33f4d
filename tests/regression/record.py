"""What must not change when code moves: models, verdicts, tables and files of small runs, as digests and plain values.

`python -m tests.regression.record FILE` computes all of it and writes JSON; `test_recorded.py` holds the present code
against `recorded.json`. The last bits of a model depend on the processor and on torch, so the file says where it was
made, and digests are compared on such a machine only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedsift
from fedsift.benchmark.rows import read_rows
from fedsift.benchmark.running import run_table
from fedsift.benchmark.table import find_table, table_names
from fedsift.core.errors import Stopped
from fedsift.methods._base import methods
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, reopen, run
from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.study import Study
from fedsift.training import native
from tests.promises.federations import alone_study, contract_study, multilabel_file, play

ON_FLOWER = (
    "fedavg",
    "fednoro",
    "fedcorr",
    "rhfl",
    "fedmlp",
    "feddpcont",
    "scaffold",
    "feddiv",
    "label-audit",
    "fedmedian",
)
SCENARIOS = (
    "rhfl/digits-pairflip-0.2-small",
    "extra/freeloader-small",
    "extra/late-joiner-small",
    "feddpcont/cifar10-symmetric-0.4-small",
    "everyone/digits-iid-small",
    "everyone/digits-skewed-small",
)
RESUMED = ("fedcorr", "fednoro")
CLOCK = ("seconds", "version", "time", "when", "previous", "hash", "body_hash", "salt", "key", "check")
"""Keys whose values are a clock's, a chain of such values, or the program's own."""
OF_A_CLOCK = ("events.jsonl", "timings.json", "ledger.head", "checksums.txt")


def machine() -> str:
    """What the last bits of a result depend on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "")
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if kind in flags.split()]
    vendor = next((line.split(":")[1].strip() for line in info.splitlines() if "vendor_id" in line), "")
    kernels = "torch" if native.library() is None else "native"
    return f"{vendor} {' '.join(kinds)}, torch {torch.__version__}, numpy {np.__version__}, kernels {kernels}"


def digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clock(inner) for key, inner in value.items() if key not in CLOCK}
    if isinstance(value, list):
        return [without_clock(inner) for inner in value]
    return value


def of_run(folder: RunFolder) -> dict[str, Any]:
    """A run as its model's digest, its rounds', its sites' table's, and its summary in full."""
    rows = [without_clock(row) for row in folder.rounds()]
    sizes = [[row.pop(key, None) for key in ("bytes_down", "bytes_up")] for row in rows]
    model = folder.path / "model.safetensors"
    sites = folder.path / "sites.csv"
    return {
        "model": digest(model.read_bytes()) if model.is_file() else None,
        "rounds": digest(json.dumps(rows, sort_keys=True)),
        "bytes": digest(json.dumps(sizes)),
        "sites": digest(sites.read_bytes()) if sites.is_file() else None,
        "summary": without_clock(json.loads((folder.path / "summary.json").read_text())),
    }


def of_files(folder: Path) -> dict[str, str]:
    """Every file by its digest; lines of JSON without what a clock wrote into them."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not file.is_file() or file.name in OF_A_CLOCK:
            continue
        data = file.read_bytes()
        if file.suffix == ".jsonl":
            lines = [without_clock(json.loads(line)) for line in data.splitlines()]
            data = json.dumps(lines, sort_keys=True).encode()
        elif file.name == "summary.json":
            data = json.dumps(without_clock(json.loads(data)), sort_keys=True).encode()
        found[name] = digest(data)
    return found


def every_method(place: Path) -> Iterator[tuple[str, Any]]:
    for name in methods.names():
        yield f"alone {name}", of_run(play(alone_study(name, place), place))
        yield f"cohort {name}", of_run(play(contract_study(name, place, small=True), place))


def on_flower(place: Path) -> Iterator[tuple[str, Any]]:
    from fedsift.transports.flower.launch import simulate_many

    engine = {"name": "flower", "threads": 1, "trainer": "one"}
    studies = [contract_study(name, place, small=True, engine=engine) for name in ON_FLOWER]
    jobs = [(study, new_run(study, place)) for study in studies]
    for name, (_, folder), outcome in zip(ON_FLOWER, jobs, simulate_many(jobs, lambda job, row: None)):
        assert isinstance(outcome, dict), outcome
        yield f"flower {name}", of_run(folder)


def scenarios(place: Path) -> Iterator[tuple[str, Any]]:
    for name in SCENARIOS:
        table = preset_table(name)
        if table["data"]["name"] != "digits":
            table.update(data={"name": "digits"}, model={"name": "cnn"})
        study = Study.from_table(table)
        study = dataclasses.replace(study, method=study.method.tiny())
        yield f"scenario {name}", of_run(play(study, place))


def resumed(place: Path) -> Iterator[tuple[str, Any]]:
    for name in RESUMED:
        study = alone_study(name, place)
        folder = new_run(study, place)

        def stop(row: dict[str, Any]) -> None:
            if row["round"] == 2:
                raise Stopped("stopped after its second round")

        try:
            run(study, folder, stop)
        except Stopped:
            run(*reopen(folder.path))
        yield f"resumed {name}", of_run(RunFolder.open(folder.path))


def audits(place: Path) -> Iterator[tuple[str, Any]]:
    noise = {"name": "fedcorr", "rho": 0.4, "tau": 0.4, "sites": "exact"}
    common: dict[str, Any] = {"partition": {"name": "iid", "sites": 5}, "noise": noise}
    studies: dict[str, dict[str, Any]] = {
        "digits": {**common, "data": {"name": "digits"}},
        "findings": {
            "partition": common["partition"],
            "data": {"name": "npz", "path": str(multilabel_file(place, 500))},
            "noise": {"name": "class-missing", "missing": 1},
        },
        "rows": {
            **common,
            "data": {
                "name": "table",
                "path": str(rows_file(place)),
                "label_column": "grade",
                "id_column": "id",
            },
        },
    }
    for name, table in studies.items():
        table["name"] = f"recorded {name}"
        table["engine"] = {"threads": 1}
        fedsift.audit(table, out=place / f"audit-{name}", model="linear", rounds=4, progress=False)
        yield f"audit {name}", of_files(place / f"audit-{name}")


def rows_file(place: Path) -> Path:
    """Laboratory values of a formula, so that no file of others is needed."""
    draw = np.random.default_rng(5)
    grade = draw.integers(0, 3, 600)
    values = draw.normal(size=(600, 4)) + np.eye(3, 4)[grade] * 3
    path = place / "rows.csv"
    lines = ["id,a,b,c,d,grade"]
    lines += [
        f"p{i}," + ",".join(f"{v:.3f}" for v in row) + f",{['low', 'mid', 'high'][g]}"
        for i, (row, g) in enumerate(zip(values, grade))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(place: Path) -> Iterator[tuple[str, Any]]:
    """All scenarios and tables, resolved."""
    for name in preset_names():
        yield f"resolved {name}", digest(Study.from_table(preset_table(name)).to_toml())
    for name in table_names():
        yield (
            f"table {name}",
            digest(json.dumps(dataclasses.asdict(find_table(name)), sort_keys=True, default=str)),
        )


def bench(place: Path) -> Iterator[tuple[str, Any]]:
    from tests.benchmark.small import small_table

    run_table(small_table(), place / "bench")
    for name in ("table.md", "table.tex"):
        yield f"bench {name}", digest((place / "bench" / "digits" / name).read_bytes())
    rows = read_rows(place / "bench" / "digits" / "table.csv")
    yield "bench table.csv", digest(json.dumps(without_clock(rows), sort_keys=True))
    cells = sorted((place / "bench" / "cells").rglob("*.json"))
    yield (
        "bench shards",
        [json.dumps(without_clock(json.loads(file.read_text())), sort_keys=True) for file in cells],
    )


PARTS = (settings, every_method, scenarios, resumed, audits, bench, on_flower)


@contextmanager
def place_for(part: Any) -> Iterator[Path]:
    """A folder that is always the same, for studies name it; one process at a time has it."""
    place = Path(tempfile.gettempdir()) / f"fedsift-recorded-{part.__name__}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main(file: Path, only: list[str]) -> None:
    found: dict[str, Any] = {}
    torch.set_num_threads(1)
    for part in PARTS:
        if only and part.__name__ not in only:
            continue
        with place_for(part) as place:
            for key, value in part(place):
                found[key] = value
                print(key, file=sys.stderr, flush=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(found[key], sort_keys=True)}" for key in sorted(found))
    file.write_text(f'{{"machine": {json.dumps(machine())},\n"found": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
