"""`fedsift.run`, `load` and `resume`: what goes in, what comes back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors import safe_open

import fedsift
from fedsift.api.run import Rows
from fedsift.api.start import assembled
from fedsift.core.errors import ConfigError, DataError, RunError
from fedsift.extend import Recipe
from fedsift.runs.events import Changed, read_events
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study
from tests.api.own import Calm, FirstWrong, Halves, Line, Stripes

SMALL = {
    "name": "small",
    "seed": 5,
    "partition": {"name": "iid", "sites": 3},
    "model": {"name": "linear"},
    "train": {"lr": 0.1},
    "method": {"name": "fedavg", "rounds": 2},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedsift.Run:
    return fedsift.run(SMALL, data=Stripes(), out=tmp_path_factory.mktemp("runs"))


def test_a_run_gives_its_figures_rounds_and_sites(finished: fedsift.Run) -> None:
    assert finished.finished
    assert finished.summary == json.loads((finished.path / "summary.json").read_text())
    assert [row["round"] for row in finished.rounds] == [1, 2]
    assert finished.rounds.column("accuracy")[-1] == finished.summary["accuracy"]["final"]
    assert [row["site"] for row in finished.sites] == ["site-00", "site-01", "site-02"]
    assert finished.study["method"]["rounds"] == 2
    assert finished.noisy_sites is None
    assert "FedAvg reaches" in finished.headline
    assert str(finished.path) in repr(finished)


def test_the_model_predicts_what_its_network_says(finished: fedsift.Run) -> None:
    data = Stripes().read()
    images = data.images[data.test]
    network = finished.model()
    assert not network.training
    assert {key: value.shape for key, value in network.state_dict().items()} == {
        key: value.shape for key, value in finished.weights.items()
    }
    mean, std = finished.card.mean, finished.card.std
    assert mean is not None and std is not None
    normalised = (torch.from_numpy(images).float() / 255 - mean[0]) / std[0]
    with torch.no_grad():
        expected = torch.softmax(network(normalised), -1).numpy()
    found = finished.predict(images)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert found.numbers.tolist() == expected.argmax(1).tolist()
    assert found.labels == ["abcd"[k] for k in expected.argmax(1)]
    accuracy = float((found.numbers == data.labels[data.test]).mean())
    assert accuracy == pytest.approx(finished.summary["accuracy"]["final"])
    # fractions of 0..1 are the same pictures
    again = finished.predict((images / 255).astype(np.float32))
    np.testing.assert_array_equal(again.probabilities, found.probabilities)
    rows = finished.predict(images[:2], ids=["x", "y"]).rows()
    assert [row["id"] for row in rows] == ["x", "y"]
    assert rows[0]["confidence"] == pytest.approx(max(rows[0][f"p_{name}"] for name in "abcd"))


def test_pictures_of_another_shape_are_refused(finished: fedsift.Run) -> None:
    with pytest.raises(DataError, match=r"images are 1x9x8 each, the model was trained on 1x8x8"):
        finished.predict(np.zeros((2, 1, 9, 8), np.uint8))


def test_load_reads_the_same_run(finished: fedsift.Run) -> None:
    again = fedsift.load(finished.path)
    assert again.summary == finished.summary
    assert again.rounds == finished.rounds
    for key, value in finished.weights.items():
        assert torch.equal(again.weights[key], value)
    with pytest.raises(RunError, match="is not a run folder"):
        fedsift.load(finished.path / "nothing")


def test_a_study_is_a_file_a_dict_a_study_or_a_scenario(finished: fedsift.Run, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(fedsift.Study.from_table({**SMALL, "data": Stripes()}).to_toml())
    assert "tests.api.own:Stripes" in file.read_text()
    for study in (file, str(file), fedsift.Study.from_file(file)):
        again = fedsift.run(study, out=tmp_path / "runs")
        assert again.rounds.column("accuracy") == finished.rounds.column("accuracy")
        for key, value in finished.weights.items():
            assert torch.equal(again.weights[key], value)
    changed = fedsift.run(fedsift.Study.from_file(file), seed=6, method={"rounds": 1}, out=tmp_path / "runs")
    assert (changed.summary["seed"], len(changed.rounds)) == (6, 1)
    small = fedsift.run(
        "fedcorr/cifar10-iid-0.6-0.5-small" if _known("fedcorr/cifar10-iid-0.6-0.5-small") else _any_scenario(),
        data=Stripes(),
        partition=Halves(),
        noise=FirstWrong(),
        model="linear",
        method="fedavg",
        train={"epochs": 1},
        out=tmp_path / "runs",
    )
    assert small.study["noise"]["name"] == "tests.api.own:FirstWrong"


def _known(name: str) -> bool:
    from fedsift.study.scenarios import preset_names

    return name in preset_names()


def _any_scenario() -> str:
    from fedsift.study.scenarios import preset_names

    return next(name for name in preset_names() if name.startswith("fednoro/"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"name": "fedagv"}}, "Did you mean 'fedavg'"),
        ({"methods": {"name": "fedavg"}}, "unknown key 'methods'.*Did you mean 'method'"),
        ({"data": 3}, "'data' = 3: it must be a table"),
        ({"model": Line((64,), 4)}, "every site needs its own: give a factory"),
        ({"model": "resnet"}, "unknown model 'resnet'"),
        ({"seed": "three"}, "must be a whole number"),
    ],
)
def test_mistakes_are_named_before_a_folder_is_made(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        fedsift.run(SMALL, out=tmp_path / "runs", **changes)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="a study is a file"):
        fedsift.run(3)  # type: ignore[arg-type]


def test_own_classes_need_no_registration_and_come_back_from_the_folder(tmp_path: Path) -> None:
    method = Calm(rounds=2, weight=0.5, local=Recipe(lr=0.1))
    run = fedsift.run(
        SMALL | {"method": method, "partition": Halves()},
        data=Stripes(),
        noise=FirstWrong(sites=1),
        model=Line,
        train=None,
        out=tmp_path,
    )
    assert [row["stage"] for row in run.rounds] == ["calm training"] * 2
    assert [row["truth_noisy"] for row in run.sites] == [True, False]
    assert run.study["method"] == {"name": "tests.api.own:Calm", "rounds": 2, "weight": 0.5}
    assert run.study["model"]["name"] == "tests.api.own:Line"
    again = fedsift.Study.from_file(run.path / "study.toml")
    assert (again.source, again.partition, again.noise) == (Stripes(), Halves(), FirstWrong(sites=1))
    assert again.method == Calm(rounds=2, weight=0.5, local=again.train)
    assert again.train.lr == 0.1
    # the term counts: without it the weights are others
    other = fedsift.run(again, method={"weight": 0.0}, out=tmp_path)
    assert not torch.equal(other.weights["layer.weight"], run.weights["layer.weight"])


def test_a_factory_of_the_session_trains_the_same_however_it_is_numbered(tmp_path: Path) -> None:
    runs = [
        fedsift.run(SMALL, data=Stripes(), model=lambda shape, classes: Line(shape, classes), out=tmp_path)
        for _ in range(2)
    ]
    assert runs[0].study["model"]["name"] != runs[1].study["model"]["name"]
    for key, value in runs[0].weights.items():
        assert torch.equal(runs[1].weights[key], value)
    images = Stripes().read().images
    np.testing.assert_array_equal(runs[0].predict(images).probabilities, runs[1].predict(images).probabilities)


def test_a_factory_of_another_session_is_asked_for(tmp_path: Path) -> None:
    def factory(shape: tuple[int, ...], classes: int) -> Line:
        return Line(shape, classes)

    run = fedsift.run(SMALL, data=Stripes(), model=factory, out=tmp_path)
    card = json.loads((run.path / "model.json").read_text())
    RunFolder(run.path).write_json("model.json", {**card, "model": "own:of another session"})
    with pytest.raises(ConfigError, match=r"was a factory in another Python session: pass it again, model="):
        fedsift.load(run.path).model()
    assert isinstance(fedsift.load(run.path, model=factory).model(), Line)


class Stop(Exception):
    pass


def stopped(tmp_path: Path, **what: object) -> Path:
    """A run that ends after its first round."""

    def stop(row: dict[str, object]) -> None:
        raise Stop

    with pytest.raises(Stop):
        fedsift.run(SMALL, listen=stop, out=tmp_path / "stopped", **what)  # type: ignore[arg-type]
    [path] = (tmp_path / "stopped").iterdir()
    return path


def arrays(shift: int = 0) -> fedsift.Arrays:
    data = Stripes().read()
    return fedsift.Arrays(data.images, np.roll(data.labels, shift), site=["n", "s", "e"] * 20)


def test_resume_goes_on_with_objects_that_are_passed_again(tmp_path: Path) -> None:
    path = stopped(tmp_path, data=arrays(), partition=None)
    run = fedsift.load(path)
    assert not run.finished
    with pytest.raises(RunError, match="is not finished, so it has no model yet"):
        run.model()
    with pytest.raises(DataError, match=r"go on there with fedsift.resume\(run, data=fedsift.Arrays"):
        fedsift.resume(path)
    with pytest.raises(RunError, match="began with other arrays"):
        fedsift.resume(path, data=arrays(shift=1))
    heard: list[int] = []
    done = fedsift.resume(path, data=arrays(), listen=lambda row: heard.append(row["round"]))
    assert heard == [2]
    whole = fedsift.run(SMALL, data=arrays(), out=tmp_path / "whole")
    for key, value in whole.weights.items():
        assert torch.equal(done.weights[key], value)
    with pytest.raises(RunError, match="is finished"):
        fedsift.resume(path, data=arrays())


def test_resume_takes_a_lower_quorum_and_a_wider_gate(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    with pytest.raises(ConfigError, match=r"federation\.min_count cannot be changed in a run that has begun"):
        fedsift.resume(path, federation={"min_count": 2})
    run = fedsift.resume(
        path, gate={"norm_factor": 9.0}, federation={"quorum": 0.25, "stages": {"train": {"quorum": 0.1}}}
    )
    assert run.finished
    study = Study.from_file(path / "study.toml")
    assert (study.gate.norm_factor, study.federation.of("train")[0], study.federation.quorum) == (9.0, 0.1, 0.25)
    [change] = [moment.event for moment in read_events(path) if isinstance(moment.event, Changed)]
    assert change.round == 1
    assert change.now == {"federation.quorum": 0.25, "federation.stages.train.quorum": 0.1, "gate.norm_factor": 9.0}
    assert change.before == {"federation.quorum": 0.5, "federation.stages.train.quorum": None, "gate.norm_factor": 6.0}


def test_resume_of_a_class_that_nothing_can_import_says_so(tmp_path: Path) -> None:
    class Local(Calm):
        """Of this function only."""

    path = stopped(tmp_path, data=Stripes(), method=Local(rounds=2))
    with pytest.raises(RunError, match="pass the object itself in Python, or move it into a module"):
        fedsift.resume(path)
    assert len(fedsift.resume(path, method=Local(rounds=2)).rounds) == 2


def test_a_method_without_a_common_model_says_so(tmp_path: Path) -> None:
    run = fedsift.run(SMALL, data=Stripes(), method={"name": "local", "rounds": 1}, out=tmp_path)
    with pytest.raises(RunError, match="every site keeps its own"):
        run.predict(Stripes().read().images)


def test_export(finished: fedsift.Run, tmp_path: Path) -> None:
    file = finished.export(tmp_path / "new" / "m.safetensors")
    with safe_open(file, "pt") as stored:
        assert set(stored.keys()) == set(finished.weights)
        assert json.loads(stored.metadata()["fedsift"])["classes"] == list("abcd")
        assert torch.equal(stored.get_tensor("head.weight"), finished.weights["head.weight"])
    images = Stripes().read().images[:7]
    script = torch.jit.load(str(finished.export(str(tmp_path / "m.pt"))))
    logits = script(torch.from_numpy(images).float() / 255)
    np.testing.assert_allclose(torch.softmax(logits, -1).numpy(), finished.predict(images).probabilities, atol=1e-5)
    with pytest.raises(ConfigError, match=r"ends in none of .safetensors, .pt, .onnx"):
        finished.export(tmp_path / "m.h5")


def test_onnx_without_its_packages_is_one_clear_line(
    finished: fedsift.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsift.api.export.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs onnx and onnxscript, not installed here"):
        finished.export(tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_onnx_computes_the_same(finished: fedsift.Run, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    images = Stripes().read().images[:7]
    model = onnx.load(finished.export(tmp_path / "m.onnx"))
    [logits] = ReferenceEvaluator(model).run(None, {"samples": (images / 255).astype(np.float32)})
    found = torch.softmax(torch.from_numpy(logits), -1).numpy()
    np.testing.assert_allclose(found, finished.predict(images).probabilities, atol=1e-5)


def test_report_and_card(finished: fedsift.Run, tmp_path: Path) -> None:
    file = finished.report(tmp_path / "r.html", compare=[finished])
    assert file == tmp_path / "r.html"
    assert "<html" in file.read_text()
    card = finished._repr_html_()
    assert "FedAvg reaches" in card
    assert "<polyline" in card
    assert f"{100 * finished.summary['accuracy']['final']:.1f}%" in card
    assert "http" not in card.replace("http://www.w3.org", "")


def test_the_card_escapes_names(tmp_path: Path) -> None:
    site = ["<b>n</b>", "s", "e"] * 20
    data = Stripes().read()
    run = fedsift.run(
        SMALL, data=fedsift.Arrays(data.images, data.labels, site=site), partition={"name": "natural"},
        method={"name": "fednoro", "rounds": 2, "warm_up": 1, "detection": "paper"}, out=tmp_path,
    )  # fmt: skip
    assert run.noisy_sites is not None
    summary = {**run.summary, "noisy_sites_found": ["<b>n</b>"]}
    RunFolder(run.path).write_json("summary.json", summary)
    card = fedsift.load(run.path)._repr_html_()
    assert "&lt;b&gt;n&lt;/b&gt;" in card
    assert "<b>n</b>" not in card


def test_rows_become_a_frame_where_pandas_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows([{"a": 1}, {"a": 2, "b": 3}])
    assert rows.column("b") == [None, 3]
    with pytest.raises(ConfigError, match="no row has 'c': there are a, b"):
        rows.column("c")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="needs pandas"):
        rows.frame()
    fake = ModuleType("pandas")
    fake.DataFrame = lambda rows: ("frame", rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert rows.frame() == ("frame", [{"a": 1}, {"a": 2, "b": 3}])


def test_paths_in_a_study_start_at_its_file_and_typed_ones_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, here = tmp_path / "own", tmp_path / "here"
    for folder, size in ((own, 20), (here, 12)):
        folder.mkdir()
        rows = "\n".join(f"{k},{k % 5},{'uv'[k % 2]}" for k in range(size))
        (folder / "data.csv").write_text(f"id,x,label\n{rows}\n", "utf-8")
    study = """
data = { name = "table", path = "data.csv" }
partition = { name = "iid", sites = 2 }
model = { name = "linear" }
method = { name = "fedavg", rounds = 1 }
"""
    (own / "study.toml").write_text(study, "utf-8")
    monkeypatch.chdir(here)
    assert assembled(own / "study.toml", {}).source.path == own / "data.csv"
    assert assembled("../own/study.toml", {"seed": 3}).source.path == own / "data.csv"
    assert assembled(own / "study.toml", {"data": {"path": "data.csv"}}).source.path == here / "data.csv"
    assert assembled({"data": {"name": "table", "path": "data.csv"}}, {}).source.path == here / "data.csv"
    assert fedsift.run(own / "study.toml", out=tmp_path / "runs").summary["rounds"] == 1
