"""Every registered network: shapes, features and head, determinism, sizes known from the papers."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor, nn

from fedsift.core.errors import ConfigError
from fedsift.models.factory import buffers_of, build_model, describe, initial_weights, models
from fedsift.models.network import dropout_mask, has_features, require_features, with_repeatable_dropout

SMALL = (3, 32, 32)


def rows(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", models.names())
def test_forward_is_head_of_features(name: str) -> None:
    network = build_model(name, SMALL, 7, seed=1).eval()
    x = rows(3, SMALL)
    with torch.inference_mode():
        features = network.features(x)
        assert features.ndim == 2
        assert torch.equal(network(x), network.head(features))
        assert network(x).shape == (3, 7)


@pytest.mark.parametrize("name", models.names())
def test_trains_on_two_samples(name: str) -> None:
    network = build_model(name, SMALL, 4, seed=1).train()
    network(rows(2, SMALL)).square().sum().backward()
    missing = [key for key, value in network.named_parameters() if value.grad is None]
    assert missing == []


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet8-cifar", "vgg11-cifar"])
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = initial_weights(name, SMALL, 10, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(11)
    again = initial_weights(name, SMALL, 10, seed=3)
    other = initial_weights(name, SMALL, 10, seed=4)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


# Sizes worked out by hand from the layer lists in the papers.
@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("lenet5", (1, 28, 28), 10, 61_706),
        ("resnet18-imagenet", (3, 224, 224), 1000, 11_689_512),
        ("resnet50-imagenet", (3, 224, 224), 1000, 25_557_032),
        ("resnet18-cifar", (3, 32, 32), 10, 11_173_962),
        ("resnet34-cifar", (3, 32, 32), 100, 21_328_292),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    card = describe(name, shape, classes)
    assert card.parameters == parameters
    assert card.bytes >= 4 * parameters


@pytest.mark.parametrize("name", ["cnn", "lenet5"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 33, 40), (4, 64, 64)])
def test_any_image_size(name: str, shape: tuple[int, ...]) -> None:
    assert build_model(name, shape, 5, seed=0)(rows(2, shape)).shape == (2, 5)


def test_mlp_takes_rows() -> None:
    assert build_model("mlp", (13,), 3, seed=0)(rows(4, (13,))).shape == (4, 3)


def test_wrong_shapes_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"use 'mlp'"):
        build_model("lenet5", (13,), 3, seed=0)
    with pytest.raises(ConfigError, match="8x8"):
        build_model("cnn", (1, 4, 4), 3, seed=0)
    with pytest.raises(ConfigError, match="Did you mean 'lenet5'"):
        build_model("lenet", SMALL, 3, seed=0)


class ByKeyword(nn.Linear):
    def __init__(self, num_classes: int = 2) -> None:
        super().__init__(4, num_classes)


def by_position(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Linear(shape[0], n_classes)


def by_options(*, weights: None = None, **options: int) -> nn.Module:
    return nn.Linear(4, options["num_classes"])


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("someones_networks")
    module.ByKeyword, module.by_position, module.by_options = ByKeyword, by_position, by_options  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "someones_networks", module)
    return "someones_networks"


@pytest.mark.parametrize("callable_name", ["ByKeyword", "by_position", "by_options"])
def test_plug_ins(plug_in: str, callable_name: str) -> None:
    network = build_model(f"{plug_in}:{callable_name}", (4,), 6, seed=0)
    assert network(torch.zeros(2, 4)).shape == (2, 6)
    assert not has_features(network)
    with pytest.raises(ConfigError, match=r"prototypes needs .* Linear|prototypes needs .*ByKeyword"):
        require_features(network, "prototypes")


@pytest.mark.parametrize("name", ["someones_networks:nothing", "no_such_package_at_all:x", "someones_networks:number"])
def test_bad_plug_ins_are_refused(plug_in: str, name: str) -> None:
    with pytest.raises(ConfigError, match=name.split(":")[0]):
        build_model(name, (4,), 6, seed=0)


def test_buffers_are_what_is_not_a_parameter() -> None:
    network = build_model("resnet8-cifar", SMALL, 10, seed=0)
    buffers = buffers_of(network)
    kinds = {key.rpartition(".")[2] for key in buffers}
    assert kinds == {"running_mean", "running_var", "num_batches_tracked"}
    assert buffers | {key for key, _ in network.named_parameters()} == set(network.state_dict())
    assert buffers_of(build_model("lenet5", SMALL, 10, seed=0)) == set()


def test_dropout_can_be_repeated() -> None:
    network = with_repeatable_dropout(nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.25)))).train()
    x = torch.ones(400, 10)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        dropped = network(x)
    generator = torch.Generator().manual_seed(4)
    masks = [dropout_mask((400, 10), p, generator) for p in (0.5, 0.25)]
    assert torch.equal(dropped, masks[0] * masks[1])
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (0.5 * 0.75)])
    assert abs(float((dropped > 0).float().mean()) - 0.375) < 0.03
    assert torch.equal(network.eval()(x), x)
