"""Files for other tools, against stored examples of what they accept, and round trips."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedsift.label_audit.exports import (
    data_uri,
    fiftyone_samples,
    label_studio_config,
    label_studio_tasks,
    queue_csv,
    write_review,
)
from fedsift.label_audit.review import ReviewItem, draw_plan
from fedsift.label_audit.verdicts import read_verdicts
from tests.label_audit.made import HOSTILE, digit_pictures, digits_audit, make_audit, multilabel_audit

AUDIT = make_audit(
    [0, 1, 1],
    [[0.1, 0.9], [0.8, 0.2], [0.1, 0.9]],
    classes=("cat", "dog"),
    ids=("x", "y", "z"),
    paths=("x.png", "y.png", "z.png"),
)
ITEMS = (ReviewItem("x", "worst", False), ReviewItem("y", "worst", True), ReviewItem("z", "unflagged", False))

EXAMPLE = {
    "data": {"image": "x.png", "sample_id": "x", "given_label": "cat"},
    "predictions": [
        {
            "model_version": "fedsift abababababab",
            "score": 0.9,
            "result": [{"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": ["dog"]}}],
        }
    ],
}
"""A task as Label Studio's SDK accepts it: from_name, to_name, type and value are required, a score is in 0 to 1."""


def assert_is_task(task: dict[str, Any], names: set[str]) -> None:
    assert isinstance(task["data"]["image"], str) and isinstance(task["data"]["sample_id"], str)
    for prediction in task.get("predictions", ()):
        assert 0 <= prediction["score"] <= 1 and isinstance(prediction["model_version"], str)
        for result in prediction["result"]:
            assert {"from_name", "to_name", "type", "value"} <= set(result)
            assert result["type"] == "choices" and isinstance(result["value"]["choices"], list)
            assert set(result["value"]["choices"]) <= names


def choices_of(config: str) -> list[str]:
    view = ElementTree.fromstring(config)
    [image], [choices] = view.findall("Image"), view.findall("Choices")
    assert choices.get("toName") == image.get("name") == "img" and choices.get("name") == "label"
    assert image.get("value") == "$image"
    return [str(choice.get("value")) for choice in choices]


def test_tasks_are_as_the_example_and_blind_ones_have_no_prediction() -> None:
    shown, blind, agreed = label_studio_tasks(AUDIT, ITEMS)
    assert shown == EXAMPLE
    assert blind == {"data": {"image": "y.png", "sample_id": "y", "given_label": "dog"}}
    assert "predictions" not in agreed  # nothing is proposed for it
    assert label_studio_tasks(AUDIT, ITEMS, prefix="/data/local-files/?d=")[0]["data"]["image"].endswith("?d=x.png")


def test_paths_in_an_address_are_quoted() -> None:
    audit = make_audit([0], [[0.1, 0.9]], classes=("cat", "dog"), ids=("x",), paths=("a b/c&d#e+f%ü.png",))
    [task] = label_studio_tasks(audit, ITEMS[:1], prefix="/data/local-files/?d=")
    assert task["data"]["image"] == "/data/local-files/?d=a%20b/c%26d%23e%2Bf%25%C3%BC.png"
    [plain] = label_studio_tasks(audit, ITEMS[:1], prefix="s3://bucket/")
    assert plain["data"]["image"] == "s3://bucket/a b/c&d#e+f%ü.png"


@pytest.mark.parametrize(
    "audit",
    [
        AUDIT,
        multilabel_audit(40),
        make_audit([0] * 8, [[0.1, *[0.9 / 7] * 7]] * 8, classes=HOSTILE, ids=HOSTILE),
    ],
)
def test_every_task_belongs_to_its_configuration(audit: Any) -> None:
    names = choices_of(label_studio_config(audit))
    assert len(set(names)) == len(names) >= len(audit.classes) + 1
    for task in label_studio_tasks(audit, draw_plan(audit).items):
        assert_is_task(task, set(names))


def test_samples_without_files_carry_their_picture() -> None:
    audit, _ = digits_audit(30)
    bare = make_audit(audit.given, audit.probability, classes=audit.classes, ids=audit.ids)
    [task] = label_studio_tasks(bare, [ReviewItem(bare.ids[0], "worst", False)], digit_pictures(30))
    assert task["data"]["image"].startswith("data:image/png;base64,")


def test_the_configuration_offers_what_a_reader_may_say() -> None:
    assert choices_of(label_studio_config(AUDIT)) == ["cat", "dog", "both given and proposed", "cannot tell"]
    several = ElementTree.fromstring(label_studio_config(multilabel_audit(5))).find("Choices")
    assert several is not None and several.get("choice") == "multiple"


def test_verdicts_come_back_from_label_studio(tmp_path: Path) -> None:
    audit = make_audit([0] * 8, [[0.1, *[0.9 / 7] * 7]] * 8, classes=HOSTILE, ids=HOSTILE)
    choices = choices_of(label_studio_config(audit))
    tasks = label_studio_tasks(audit, draw_plan(audit).items)
    for number, task in enumerate(tasks):
        result = {
            "from_name": "label",
            "to_name": "img",
            "type": "choices",
            "value": {"choices": [choices[number]]},
        }
        task["annotations"] = [
            {
                "id": number,
                "completed_by": 1,
                "was_cancelled": False,
                "ground_truth": False,
                "result": [result],
            }
        ]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    found = read_verdicts(tmp_path / "export.json", audit)
    assert [one.labels for one in found] == [(name,) for name in HOSTILE]


def test_the_queue_hides_what_is_blind_and_comes_back_filled(tmp_path: Path) -> None:
    text = queue_csv(AUDIT, ITEMS)
    rows = list(csv.DictReader(text.splitlines()))
    assert rows[0]["proposed_label"] == "dog" and rows[0]["probability_wrong"] == "0.900000"
    assert rows[1]["proposed_label"] == rows[1]["probability_wrong"] == ""
    for row in rows:
        row.update(verdict="other", other_label="dog", reader="ann")
    with (tmp_path / "q.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert [one.decision for one in read_verdicts(tmp_path / "q.csv", AUDIT)] == [
        "proposal",
        "given",
        "given",
    ]


def test_fiftyone_samples() -> None:
    first, *_ = fiftyone_samples(AUDIT)
    assert first["filepath"] == "x.png" and first["mistakenness"] == 0.9
    assert first["ground_truth"] == {"_cls": "Classification", "label": "cat"}
    assert first["prediction"]["label"] == "dog" and first["tags"] == ["label issue"]
    several = fiftyone_samples(multilabel_audit(10))[0]
    assert several["ground_truth"]["_cls"] == "Classifications"


def test_pictures_are_known_by_their_first_bytes() -> None:
    assert data_uri(b"\xff\xd8\xff\xe0") == "data:image/jpeg;base64,/9j/4A=="
    assert data_uri(b"RIFF1234WEBP").startswith("data:image/webp;")
    assert data_uri(b"GIF89a").startswith("data:image/gif;")
    assert data_uri(b"<svg onload=alert(1)>") == data_uri(b"") == data_uri(None) == ""
    for hostile in (
        b"<svg><script>alert(1)</script></svg>",
        b'<svg onload="alert(1)"></svg>',
        b'<svg><rect fill="url(http://elsewhere)"></rect></svg>',
        b'<svg><text x="1" onclick="alert(1)">a</text></svg>',
        b'<svg><image href="http://elsewhere"></image></svg>',
        b"<svg></svg><script></script>",
    ):
        assert data_uri(hostile) == ""


def test_the_folder_is_private(tmp_path: Path) -> None:
    files = write_review(tmp_path / "review", AUDIT, draw_plan(AUDIT))
    assert {file.name for file in files} == {
        "plan.json", "queue.csv", "label-studio-tasks.json", "label-studio-config.xml", "fiftyone.json"
    }  # fmt: skip
    assert stat.S_IMODE((tmp_path / "review").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert isinstance(json.loads((tmp_path / "review" / "fiftyone.json").read_text()), list)
