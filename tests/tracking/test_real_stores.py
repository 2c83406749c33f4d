"""Trackers against what they write to: TensorBoard's event files, a local MLflow store, offline wandb, Trackio.

Each package gets an environment of its own, on top of this one, so that nothing here changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow]

RUN = """
import json, sys
from pathlib import Path
from fedsift.study import Study
from fedsift.study.running import new_run, reopen, run
from fedsift.tracking import following
following.CLOSE_TIMEOUT = following.CLOSE_TIMEOUT_WHEN_STOPPED = 200.0  # importing MLflow takes long on a busy machine
table = json.loads(sys.argv[1])
study = Study.from_table(table)
folder = new_run(study, Path(sys.argv[2]))
def stop(line):
    if line["round"] == 2:
        raise KeyboardInterrupt
try:
    run(study, folder, stop)
except KeyboardInterrupt:
    pass
summary = run(*reopen(folder.path))
print(json.dumps({"run": str(folder.path), "warnings": summary["warnings"]}))
"""
TABLE = {
    "partition": {"name": "iid", "sites": 3},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg", "rounds": 4},
}


def environment(parent: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages; all that is installed here can be imported there too."""
    place = parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    [library] = place.glob("lib/python*/site-packages")
    (library / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    python = place / "bin" / "python"
    words = ["-m", "pip", "install", "-q", "--only-binary", ":all:", *packages]
    done = subprocess.run([str(python), *words], capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"{packages[0]} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return python


def say(python: Path, code: str, *words: str, **variables: str) -> Any:
    """The last line that a program prints, as JSON. It works in its environment's folder: MLflow puts files there."""
    env = {**os.environ, **variables, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [str(python), "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=900,
        env=env,
        check=False,
        cwd=python.parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def tracked(python: Path, place: Path, track: dict[str, Any], **variables: str) -> tuple[Path, list[dict[str, Any]]]:
    """A run that was stopped after two rounds and resumed; its folder and rounds."""
    told = say(python, RUN, json.dumps({**TABLE, "track": track}), str(place), **variables)
    assert told["warnings"] == []
    run = Path(told["run"])
    return run, [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_tensorboard_event_files(tmp_path: Path) -> None:
    python = environment(tmp_path, "tensorboard")
    run, rounds = tracked(python, tmp_path / "runs", {"tensorboard": True})
    code = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
seen = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0}).Reload()
tags = seen.Tags()
print(json.dumps({"scalars": {t: [[e.step, e.value] for e in seen.Scalars(t)] for t in tags["scalars"]},
                  "texts": [t for t in tags["tensors"]]}))
"""
    seen = say(python, code, str(run / "track" / "tensorboard"))
    assert [step for step, _ in seen["scalars"]["accuracy"]] == [1, 2, 3, 4]
    assert [value for _, value in seen["scalars"]["accuracy"]] == pytest.approx([r["accuracy"] for r in rounds])
    assert [value for _, value in seen["scalars"]["recall/3"]] == pytest.approx([r["recall"][3] for r in rounds])
    assert {"study/text_summary", "summary.json/text_summary"} <= set(seen["texts"])


def test_a_local_mlflow_store(tmp_path: Path) -> None:
    python = environment(tmp_path, "mlflow-skinny", "sqlalchemy", "alembic")
    uri = f"sqlite:///{tmp_path}/store.db"
    run, rounds = tracked(python, tmp_path / "runs", {"mlflow": {"uri": uri, "experiment": "trial"}})
    code = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
[run] = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
history = client.get_metric_history(run.info.run_id, "accuracy")
print(json.dumps({"name": run.info.run_name, "status": run.info.status, "params": run.data.params,
                  "accuracy": sorted([m.step, m.value] for m in history),
                  "files": [f.path for f in client.list_artifacts(run.info.run_id)]}))
"""
    seen = say(python, code, uri)
    assert seen["accuracy"] == [[r["round"], r["accuracy"]] for r in rounds]
    assert seen["status"] == "FINISHED" and seen["name"] == run.name
    assert seen["params"]["method.name"] == "fedavg"
    assert set(seen["files"]) == {"study.toml", "summary.json"}


def test_wandb_stays_offline(tmp_path: Path) -> None:
    python = environment(tmp_path, "wandb")
    run, rounds = tracked(python, tmp_path / "runs", {"wandb": True}, HTTPS_PROXY="http://127.0.0.1:9")
    code = """
import json, struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(data):  # LevelDB's log: blocks of 32 kB, records with checksum, length and kind, after a head of 7 bytes
    at, part = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield part
            part = b""

seen = []
for file in Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb"):
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            seen.append([items.get("_step", record.history.step.num), items["accuracy"]])
print(json.dumps(sorted(seen)))
"""
    assert say(python, code, str(run / "track" / "wandb")) == [[r["round"], r["accuracy"]] for r in rounds]


def test_trackio_on_this_machine(tmp_path: Path) -> None:
    python = environment(tmp_path, "trackio")
    own = {"TRACKIO_DIR": str(tmp_path / "trackio-data")}
    run, rounds = tracked(python, tmp_path / "runs", {"trackio": True}, **own)
    code = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("fedsift", sys.argv[1])
print(json.dumps([[one.get("step"), one.get("accuracy")] for one in logs]))
"""
    seen = say(python, code, run.name, **own)
    assert seen == [[r["round"], r["accuracy"]] for r in rounds]
