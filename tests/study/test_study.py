"""Studies from TOML: every key checked, errors name the key, the value and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsift.core.errors import ConfigError, FedsiftError
from fedsift.study.study import Study
from tests.promises.federations import multilabel_file


def test_defaults_are_a_working_study() -> None:
    study = Study.from_table({})
    assert study.method_name == "fedavg"
    assert Study.from_table(study.to_table()) == study


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"metod": {}}, "unknown key 'metod'. Did you mean 'method'?"),
        ({"nam": "x"}, "unknown key 'nam'. Did you mean 'name'?"),
        ({"method": {"nam": "fedavg"}}, "unknown key 'method.nam'. Did you mean 'name'?"),
        ({"method": {"name": "fedavg", "nam": 3}}, "unknown key 'method.nam'. Did you mean 'name'?"),
        ({"data": {"nam": "digits"}}, "unknown key 'data.nam'. Did you mean 'name'?"),
        ({"data": {"train_limit": 5}}, "'data.name' is required: one of arrays, "),
        ({"method": {"name": "fednorro"}}, "unknown method 'fednorro'. Did you mean 'fednoro'?"),
        (
            {"method": {"name": "fednoro", "warmup": 3}},
            "unknown key 'method.warmup'. Did you mean 'warm_up'?",
        ),
        ({"method": {"name": "fednoro", "rounds": "ten"}}, "'method.rounds' = 'ten'"),
        (
            {"method": {"name": "fednoro", "rounds": 5, "warm_up": 10}},
            "method.warm_up = 10: it must be between 0 and method.rounds = 5",
        ),
        ({"method": {"name": "fednoro", "indicator": "los"}}, "'method.indicator' = 'los'"),
        ({"method": {"rounds": 3}}, "'method.name' is required"),
        ({"train": {"lr": -1.0}}, "train.lr = -1.0: it must be positive"),
        ({"train": {"epochs": 0}}, "train.epochs = 0"),
        ({"train": {"augment": {"flipp": True}}}, "unknown key 'train.augment.flipp'. Did you mean 'flip'?"),
        ({"train": {"objective": {}}}, "unknown key 'train.objective'"),
        ({"method": {"name": "fedavg", "local": {}}}, "unknown key 'method.local'"),
        ({"model": {"name": "resnet"}}, "unknown model 'resnet'"),
        ({"data": "digits"}, "'data' = 'digits': it must be a table"),
        ({"seed": "one"}, "'seed' = 'one'"),
        ({"noise": {"name": "fedcorr", "rho": 1.5}}, "rho is a rate in [0, 1], not 1.5"),
        ({"partition": {"name": "iid", "sites": 0}}, "at least one site"),
    ],
)
def test_mistakes_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(FedsiftError) as caught:
        Study.from_table(table).load_data()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_command_line_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('seed = 3\n[method]\nname = "fedprox"\nmu = 0.5\nrounds = 7\n')
    study = Study.from_file(file, ["method.mu=0.25", "train.augment.flip=true", "model.name=lenet5"])
    assert study.seed == 3
    assert study.method.mu == 0.25  # type: ignore[attr-defined]
    assert study.method.rounds == 7  # type: ignore[attr-defined]
    assert study.train.augment.flip is True
    assert study.model.name == "lenet5"
    assert study.method.local == study.train  # type: ignore[attr-defined]


@pytest.mark.parametrize("override", ["method.mu", "=3", "seed.deep=1"])
def test_bad_overrides(tmp_path: Path, override: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text("seed = 3\n")
    with pytest.raises(ConfigError):
        Study.from_file(file, [override])


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Study.from_file(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("seed = = 1")
    with pytest.raises(ConfigError, match="bad.toml"):
        Study.from_file(tmp_path / "bad.toml")


def test_a_folder_and_what_is_not_text_are_no_study(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder: name the study's TOML file"):
        Study.from_file(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"name = 'd\xf6g'")
    with pytest.raises(ConfigError, match=r"must be TOML in UTF-8 \(byte 9 is not\)"):
        Study.from_file(tmp_path / "x.toml")


def test_a_method_for_another_kind_of_label_is_refused(tmp_path: Path) -> None:
    table = {"data": {"name": "npz", "path": str(multilabel_file(tmp_path))}, "method": {"name": "fednoro"}}
    with pytest.raises(ConfigError, match="method 'fednoro' does not fit: it is for multiclass labels"):
        Study.from_table(table).load_data()


def test_another_network_for_an_unknown_site() -> None:
    with pytest.raises(ConfigError, match=r"unknown site 'model.sites.site-99'"):
        Study.from_table({"model": {"sites": {"site-99": "mlp"}}}).load_data()


def test_initial_weights_are_taken_from_a_file_and_said_to_be_missing_where_they_are(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    from fedsift.models.factory import initial_weights
    from fedsift.study.running import open_in_process

    table = {
        "data": {"name": "digits"},
        "model": {"name": "lenet5"},
        "partition": {"name": "iid", "sites": 2},
    }
    study = Study.from_table(table)
    federated = study.load_data()
    trained = initial_weights("lenet5", federated.dataset.shape, 10, seed=77)
    save_file(trained, tmp_path / "own.safetensors")
    given = Study.from_table({**table, "model": {"name": "lenet5", "weights": str(tmp_path / "own.safetensors")}})
    assert Study.from_table(given.to_table()) == given
    started = open_in_process(given, federated, "run").initial_weights()
    assert all((started[name] == value).all() for name, value in trained.items())
    drawn = open_in_process(study, federated, "run").initial_weights()
    assert any((drawn[name] != value).any() for name, value in trained.items())

    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path))
    wanted = Study.from_table({**table, "model": {"name": "lenet5", "weights": "imagenet"}})
    assert wanted.load_data().notes[0].startswith("architecture only: lenet5 is to start from ImageNet weights")
    (tmp_path / "weights").mkdir()
    save_file(trained, tmp_path / "weights" / "lenet5.safetensors")
    assert not wanted.load_data().notes
    with pytest.raises(ConfigError, match="serve one network"):
        Study.from_table({**table, "model": {"cycle": ["cnn", "mlp"], "weights": "imagenet"}})
