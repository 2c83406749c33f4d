"""A model that was trained on a table of numbers, applied: new rows are measured by the scale of the old ones."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedsift
from fedsift.cli.main import app
from fedsift.core.errors import DataError, FedsiftError
from fedsift.runs.folder import RunFolder

STUDY = """
data = { name = "table", path = "own.csv", categories = ["sex"], ignore = ["record"] }
model = { name = "linear" }
train = { epochs = 2, batch_size = 16, lr = 0.2 }
method = { name = "fedavg", rounds = 4 }
"""


def write(path: Path, count: int, seed: int, *, label: bool = True) -> list[str]:
    """The larger `length`, in micrometres, the likelier a dog; returns the classes."""
    draw = np.random.default_rng(seed)
    classes = ["cat", "dog"]
    true = draw.integers(0, 2, count)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["id", "record", "site", "length", "sex", "weight", *(["label"] if label else [])]
        writer.writerow(names)
        for k, y in enumerate(true):
            length = 50000 + 4000 * (2 * y - 1) + 1000 * draw.normal()
            row = [
                f"n{k}",
                900 + k,
                ("north", "south")[k % 2],
                round(length),
                "fm"[k % 2],
                "" if k == 3 else 0.001 * k,
            ]
            writer.writerow([*row, *([classes[y]] if label else [])])
    return [classes[y] for y in true]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fedsift.Run]:
    place = tmp_path_factory.mktemp("table")
    write(place / "own.csv", 120, 1)
    (place / "study.toml").write_text(STUDY, "utf-8")
    return place, fedsift.run(place / "study.toml", out=place / "runs")


def test_the_model_card_has_the_scale(trained: tuple[Path, fedsift.Run]) -> None:
    _, run = trained
    scale = json.loads((run.path / "model.json").read_text("utf-8"))["scale"]
    assert list(scale) == ["length", "sex", "weight"]
    assert scale["sex"] == ["f", "m"]
    assert 49000 < scale["length"][0] < 51000 and 3000 < scale["length"][1] < 5000


def test_new_rows_are_measured_by_the_old_ones(trained: tuple[Path, fedsift.Run]) -> None:
    """Ten dogs alone: by their own mean half of them would be small."""
    place, run = trained
    truth = write(place / "more.csv", 60, 2, label=False)
    dogs = [row for row, name in zip((place / "more.csv").read_text().splitlines()[1:], truth) if name == "dog"][:10]
    (place / "dogs.csv").write_text("\n".join(["id,record,site,length,sex,weight", *dogs]) + "\n", "utf-8")
    words = ["predict", str(run.path), str(place / "dogs.csv"), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    found = json.loads(done.stdout)["predictions"]
    assert [row["predicted_label"] for row in found] == ["dog"] * 10
    assert [row["id"] for row in found] == [row.split(",")[0] for row in dogs]


def test_arrays_and_exported_models_take_the_table_s_own_units(trained: tuple[Path, fedsift.Run]) -> None:
    place, run = trained
    rows = np.array([[46000, 1, 0, 0.05], [54000, 0, 1, 0.02]], np.float32)
    found = run.predict(rows)
    assert found.labels == ["cat", "dog"]
    network = torch.jit.load(str(run.export(place / "model.pt")))
    again = torch.softmax(network(torch.from_numpy(rows)), -1).numpy()
    np.testing.assert_allclose(again, found.probabilities, atol=1e-5)


def test_what_does_not_fit_the_model_is_told(trained: tuple[Path, fedsift.Run]) -> None:
    place, run = trained
    (place / "bad.csv").write_text("id,length,sex\na,1,f\n", "utf-8")
    (place / "odd.csv").write_text("id,length,sex,weight\na,1,x,1\n", "utf-8")
    for name, words in (
        ("bad", "no column 'weight'"),
        ("odd", "has 'x', which the scale does not list: it lists f, m"),
    ):
        done = CliRunner().invoke(app, ["predict", str(run.path), str(place / f"{name}.csv")])
        assert isinstance(done.exception, DataError)
        assert words in str(done.exception)
    other = place / "other"
    shutil.copytree(run.path, other)
    card = json.loads((other / "model.json").read_text("utf-8"))
    RunFolder(other).write_json("model.json", {**card, "scale": {"length": [1, 0]}})
    with pytest.raises(FedsiftError, match="'length': it must be"):
        fedsift.load(other).predict(np.zeros((1, 4), np.float32))


def test_later_samples_of_an_audit_are_measured_by_the_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path / "own.csv", 160, 3)
    data = 'data = { name = "table", path = "own.csv", categories = ["sex"], ignore = ["record"] }\n'
    (tmp_path / "own.toml").write_text(data, "utf-8")
    few = ["--folds", "3", "--rounds", "4", "--model", "linear"]
    ask = ["audit", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, [*ask, *few], catch_exceptions=False).exit_code == 0
    write(tmp_path / "later.csv", 40, 4)
    lines = (tmp_path / "later.csv").read_text("utf-8").splitlines()
    dogs = [line for line in lines[1:] if line.endswith("dog")]
    wrong = dogs[0].replace("dog", "cat")
    (tmp_path / "later.csv").write_text("\n".join([lines[0], wrong, *dogs[1:]]) + "\n", "utf-8")
    new = [
        "--new",
        str(tmp_path / "later.csv"),
        'categories=["sex"]',
        'ignore=["record"]',
        'classes=["cat","dog"]',
    ]
    done = CliRunner().invoke(app, [*ask, *new, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    sites = json.loads(done.stdout)["sites"]
    found = []
    for line in sites.values():
        with Path(line["list"]).open(encoding="utf-8", newline="") as file:
            found += list(csv.DictReader(file))
    assert {row["predicted_label"] for row in found} == {"dog"}, "by their own mean half of them would be cats"
    assert min(found, key=lambda row: float(row["label_score"]))["id"] == wrong.split(",")[0]
