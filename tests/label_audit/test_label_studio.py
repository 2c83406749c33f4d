"""Label Studio's own SDK reads our tasks and configuration (in its own environment: it would downgrade numpy)."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from fedsift.label_audit.verdicts import read_verdicts
from fedsift.label_audit.writing import write_site
from tests.label_audit.made import digits_audit, hostile_audit, multilabel_audit

PROGRAM = """
import json, sys
from label_studio_sdk.label_interface import LabelInterface
for folder in sys.argv[1:]:
    interface = LabelInterface(open(folder + "/label-studio-config.xml").read())
    interface.validate()
    tasks = json.load(open(folder + "/label-studio-tasks.json"))
    for task in tasks:
        assert interface.validate_task({"data": task["data"]}), task
        for prediction in task.get("predictions", []):
            assert interface.validate_prediction(prediction, return_errors=True) == [], prediction
        # a reader who takes the first choice every time
        choice = interface.get_control("label").labels[0]
        result = {"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": [choice]}}
        annotation = {"result": [result], "completed_by": 1, "was_cancelled": False, "ground_truth": False}
        assert interface.validate_annotation(annotation), annotation
        task["annotations"] = [annotation]
    bad = {"result": [{"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": ["no such"]}}]}
    assert not interface.validate_prediction(bad)
    json.dump(tasks, open(folder + "/export.json", "w"))
"""


@pytest.mark.slow
def test_the_sdk_accepts_tasks_and_verdicts_come_back(tmp_path: Path) -> None:
    hostile = hostile_audit(site="h")
    audits = [digits_audit(200)[0], multilabel_audit(60), hostile]
    folders = [write_site(tmp_path, audit).review for audit in audits]
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    wanted = [python, "-m", "pip", "install", "--quiet", "label-studio-sdk"]
    got = subprocess.run(wanted, env=own, capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"label-studio-sdk cannot be installed: {got.stderr.strip().splitlines()[-1]}")
    done = subprocess.run([python, "-c", PROGRAM, *folders], env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for audit, folder in zip(audits, folders):
        tasks = json.loads((folder / "label-studio-tasks.json").read_text())
        found = read_verdicts(folder / "export.json", audit)
        assert len(found) == len(tasks) > 5
        assert {one.labels for one in found} == {(audit.classes[0],)}
