"""Initial weights from files: torchvision's names, other heads, wrong networks, hostile files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsift.core.errors import ConfigError
from fedsift.models.factory import initial_weights
from fedsift.models.weights import find_weights, read_state, started_from

SHAPE = (3, 32, 32)


def as_torchvision(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our ResNet's state under torchvision's names."""
    renamed = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "entry":
            name = ".".join([["conv1", "bn1"][int(parts[1])], *parts[2:]])
        elif parts[0] == "groups":
            inner = ".".join(parts[3:]).replace("norm", "bn").replace("shortcut", "downsample")
            name = f"layer{int(parts[1]) + 1}.{parts[2]}.{inner}"
        else:
            name = name.replace("head.", "fc.")
        renamed[name] = value
    return renamed


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_resnet_of_torchvision_is_read_by_its_names_and_keeps_a_head_of_its_own(suffix: str, tmp_path: Path) -> None:
    trained = initial_weights("resnet18-imagenet", SHAPE, 1000, seed=5)
    file = tmp_path / f"weights{suffix}"
    theirs = as_torchvision(trained)
    if suffix == ".pth":
        torch.save({"state_dict": theirs}, file)
    else:
        save_file(theirs, file)
    assert "layer2.0.downsample.1.running_var" in theirs
    fresh = initial_weights("resnet18-imagenet", SHAPE, 8, seed=1)
    state = started_from(fresh, read_state(file), file)
    assert list(state) == list(fresh)
    for name, value in state.items():
        assert torch.equal(value, fresh[name] if name.startswith("head.") else trained[name]), name


def test_grey_pictures_and_other_networks_are_refused() -> None:
    given = initial_weights("resnet18-imagenet", SHAPE, 8, seed=5)
    grey = initial_weights("resnet18-imagenet", (1, 32, 32), 8, seed=1)
    with pytest.raises(ConfigError, match=r"one channel.*set data.channels = 3"):
        started_from(grey, given, "file")
    with pytest.raises(ConfigError, match="has no '.*': these are weights of another network"):
        started_from(initial_weights("lenet5", SHAPE, 8, seed=1), given, "file")


class Hostile:
    def __reduce__(self) -> tuple[type[Path], tuple[str]]:
        return Path, ("somewhere",)


def test_a_file_that_holds_more_than_tensors_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "bad.pth").write_bytes(pickle.dumps({"x": Hostile()}))
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, message in (
        ("bad.pth", "cannot be read"),
        ("bad.safetensors", "cannot be read"),
        ("list.pth", "no state"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_state(tmp_path / name)


def test_where_weights_are_found(tmp_path: Path) -> None:
    file = tmp_path / "weights" / "resnet18-imagenet.pth"
    assert find_weights("imagenet", "resnet18-imagenet", [tmp_path]) is None
    file.parent.mkdir()
    torch.save({}, file)
    assert find_weights("imagenet", "resnet18-imagenet", [tmp_path]) == file
    assert find_weights(str(file), "any", []) == file
    with pytest.raises(ConfigError, match="there is no such file"):
        find_weights("nowhere.pth", "any", [])
    given = find_weights("tests.models.test_weights:SMALL", "any", [])
    assert given is not None
    assert torch.equal(read_state(given)["x"], torch.ones(2))
    with pytest.raises(ConfigError, match="no attribute 'NONE'"):
        read_state("tests.models.test_weights:NONE")


SMALL = {"x": torch.ones(2)}
