"""Label Studio's own SDK reads our tasks and configuration (in its own environment: it would downgrade numpy)."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from fedsift.audit import write_site
from fedsift.audit.verdicts import read_verdicts
from tests.audit.made import digits_audit

PROGRAM = """
import json, sys
from label_studio_sdk.label_interface import LabelInterface
folder = sys.argv[1]
interface = LabelInterface(open(folder + "/label-studio-config.xml").read())
interface.validate()
tasks = json.load(open(folder + "/label-studio-tasks.json"))
for number, task in enumerate(tasks):
    interface.validate_task({"id": number, **task}, validate_only_data=True)
    for prediction in task.get("predictions", []):
        assert interface.validate_prediction(prediction), prediction
    # what a reader makes of it: the first choice every time, in the SDK's own form
    choice = interface.get_control("label").labels[0]
    result = {"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": [choice]}}
    annotation = {"result": [result], "completed_by": 1, "was_cancelled": False, "ground_truth": False}
    assert interface.validate_annotation(annotation), annotation
    task["annotations"] = [annotation]
json.dump(tasks, open(folder + "/export.json", "w"))
print(len(tasks))
"""


@pytest.mark.slow
def test_the_sdk_accepts_tasks_and_verdicts_come_back(tmp_path: Path) -> None:
    audit, _ = digits_audit(200)
    folder = write_site(tmp_path, audit)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    got = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "label-studio-sdk"],
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"label-studio-sdk cannot be installed: {got.stderr.strip().splitlines()[-1]}")
    done = subprocess.run(
        [python, "-c", PROGRAM, str(folder.review)], env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tasks = json.loads((folder.review / "label-studio-tasks.json").read_text())
    assert int(done.stdout.split()[-1]) == len(tasks)
    found = read_verdicts(folder.review / "export.json", audit)
    assert len(found) == len(tasks) and {one.labels for one in found} == {(audit.classes[0],)}
