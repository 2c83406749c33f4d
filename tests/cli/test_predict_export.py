"""`fedsift predict` and `fedsift export`: a trained model in other hands."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedsift
from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError, RunError
from tests.api.own import Stripes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fedsift.Run:
    return fedsift.run(
        {"partition": {"sites": 2, "name": "iid"}, "model": {"name": "linear"}, "train": {"lr": 0.1}},
        data=Stripes(), method={"name": "fedavg", "rounds": 2}, out=tmp_path_factory.mktemp("runs"),
    )  # fmt: skip


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def images() -> np.ndarray:
    return Stripes().read().images[:25]


def test_predictions_of_arrays(trained: fedsift.Run, images: np.ndarray, tmp_path: Path) -> None:
    expected = trained.predict(images)
    ids = [f"={k}" for k in range(25)]
    for name, array in (("a", images), ("b", images[:, 0]), ("c", images.transpose(0, 2, 3, 1))):
        np.savez(tmp_path / f"{name}.npz", images=array, ids=ids)
        found = json.loads(run("predict", trained.path, tmp_path / f"{name}.npz", "--json"))
        assert [row["predicted_label"] for row in found["predictions"]] == expected.labels
        assert found["predictions"][3]["id"] == "=3"
    np.save(tmp_path / "d.npy", images)
    text = run("predict", trained.path, tmp_path / "d.npy", "--out", tmp_path / "new" / "p.csv")
    assert "25 predictions" in text
    with (tmp_path / "new" / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["predicted_label"] for row in rows] == expected.labels
    assert float(rows[0]["p_a"]) == pytest.approx(float(expected.probabilities[0, 0]))
    assert "and 5 more" in run("predict", trained.path, tmp_path / "d.npy")
    run("predict", trained.path, tmp_path / "a.npz", "--out", tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_text().splitlines()[1].startswith("'=0,")  # no formula for a spreadsheet


def test_predictions_of_pictures(trained: fedsift.Run, images: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "deep").mkdir(parents=True)
    for k in range(3):
        Image.fromarray(images[k, 0]).save(tmp_path / "pictures" / "deep" / f"{k}.png")
    (tmp_path / "pictures" / "torn.png").write_bytes(b"no picture")
    found = json.loads(run("predict", trained.path, tmp_path / "pictures", "--json"))
    assert [row["id"] for row in found["predictions"]] == ["deep/0.png", "deep/1.png", "deep/2.png"]
    assert [row["predicted_label"] for row in found["predictions"]] == trained.predict(images[:3]).labels
    assert found["left_out"] == {"torn.png": "not a picture"}
    one = json.loads(run("predict", trained.path, tmp_path / "pictures" / "deep" / "2.png", "--json"))
    assert one["predictions"] == [{**found["predictions"][2], "id": "2.png"}]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "there is no"), ("empty", "holds no picture"), ("other.npz", "has no array 'images'"),
     ("short.npz", "1 ids for 2 images"), ("torn.npy", "cannot be read as .npy"), ("torn", "no picture of")],
)  # fmt: skip
def test_data_that_cannot_be_predicted(name: str, message: str, trained: fedsift.Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "x.png").write_bytes(b"x")
    np.savez(tmp_path / "other.npz", pixels=np.zeros(3))
    np.savez(tmp_path / "short.npz", images=np.zeros((2, 8, 8), np.uint8), ids=["a"])
    (tmp_path / "torn.npy").write_bytes(b"x")
    with pytest.raises(DataError, match=message):
        run("predict", trained.path, tmp_path / name)


def test_export_chooses_by_the_ending(trained: fedsift.Run, images: np.ndarray, tmp_path: Path) -> None:
    assert json.loads(run("export", trained.path, tmp_path / "m.safetensors", "--json"))["model"].endswith(
        "m.safetensors"
    )
    run("export", trained.path, tmp_path / "m.pt")
    logits = torch.jit.load(str(tmp_path / "m.pt"))(torch.from_numpy(images).float() / 255)
    assert logits.argmax(1).tolist() == trained.predict(images).numbers.tolist()
    with pytest.raises(ConfigError, match="the ending chooses the format"):
        run("export", trained.path, tmp_path / "m.bin")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        run("export", trained.path, tmp_path / "file" / "m.pt")
    with pytest.raises(RunError, match="is not a run folder"):
        run("export", tmp_path, tmp_path / "m.pt")
