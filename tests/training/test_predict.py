"""Logits without training: the network's own, however they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedsift.models.factory import build_model
from fedsift.protocol.site import Samples
from fedsift.training import augment as augmentation
from fedsift.training import predict
from fedsift.training.predict import features_of, logits_of, logits_of_each
from fedsift.training.recipe import Augment

pytestmark = pytest.mark.usefixtures("kernels")


def make_samples(n: int, channels: int = 3, side: int = 16) -> Samples:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 256, (300, channels, side, side), dtype=torch.uint8, generator=generator)
    rows = torch.randperm(300, generator=generator)[:n]
    return Samples(pool, rows, (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])


def own_logits(network: nn.Module, images: Tensor) -> Tensor:
    network.eval()
    with torch.no_grad():
        logits: Tensor = network(images)
    return logits


@pytest.mark.parametrize("name", ["lenet5", "cnn", "resnet8-cifar", "mobilenetv2-cifar"])
@pytest.mark.parametrize("n", [1, 7, 250])
def test_logits_are_the_networks_own(name: str, n: int) -> None:
    """One sample, less than a batch, several batches; and again after the weights have changed."""
    samples, network = make_samples(n), build_model(name, (3, 16, 16), 4)
    for _ in range(2):
        expected = own_logits(network, samples.take(torch.arange(n)))
        assert torch.allclose(logits_of(network, samples), expected, rtol=1e-4, atol=1e-5)
        features, logits = features_of(network, samples)
        with torch.no_grad():
            read = network.features(samples.take(torch.arange(n)))  # type: ignore[operator]
        assert torch.allclose(features, read, rtol=1e-4, atol=1e-5)
        assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            for value in network.parameters():
                value.mul_(1.1)


@pytest.mark.parametrize("augment", [Augment(flip=True, crop=2), Augment(flip=True, degrees=10, translate=0.1)])
def test_augmented_samples(augment: Augment) -> None:
    samples, network = make_samples(130), build_model("lenet5", (3, 16, 16), 4)
    draws = augmentation.draw(augment, 130, torch.Generator().manual_seed(5))
    images = augmentation.apply(samples.take(torch.arange(130)), augment, draws)
    logits = logits_of(network, samples, augment=augment, generator=torch.Generator().manual_seed(5))
    assert torch.allclose(logits, own_logits(network, images), rtol=1e-4, atol=1e-5)
    features, again = features_of(network, samples, augment=augment, generator=torch.Generator().manual_seed(5))
    assert features.shape == (130, 84)
    assert torch.allclose(again, logits, rtol=1e-4, atol=1e-5)


def test_no_samples_and_samples_that_are_no_images() -> None:
    network = build_model("lenet5", (3, 16, 16), 4)
    assert logits_of(network, make_samples(0)).numel() == 0
    table = Samples(torch.randn(5, 6), torch.arange(5), (0.0,), (1.0,))
    mlp = build_model("mlp", (6,), 3)
    expected = own_logits(mlp, table.take(torch.arange(5)))
    assert torch.allclose(logits_of(mlp, table), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("augment", [None, Augment(flip=True, crop=2)])
def test_several_networks_see_the_same_views(augment: Augment | None) -> None:
    samples = make_samples(130)
    networks = [build_model("lenet5", (3, 16, 16), 4, seed=seed) for seed in (0, 1)]

    def views() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    found = logits_of_each(networks, samples, augment=augment, generator=views())
    for network, logits in zip(networks, found, strict=True):
        assert torch.equal(logits, logits_of(network, samples, augment=augment, generator=views()))
    assert not torch.allclose(found[0], found[1])


class Moody(nn.Module):
    """What it does depends on the data: tracing sees nothing of it, or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 16)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x).flatten(1)
        return logits if bool(x.sum() > 0) else -logits


class Hidden(nn.Module):
    """Tracing succeeds, and misses that the factor changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 16)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x).flatten(1) * (1.0 if self.calls < 3 else 2.0)


@pytest.mark.parametrize("network", [Moody(), Hidden()])
def test_a_network_that_cannot_be_trusted_to_tracing_computes_itself(network: nn.Module) -> None:
    samples = make_samples(9)
    logits = logits_of(network, samples)
    assert predict._stacked_forms.get(network) is None
    assert torch.allclose(logits, own_logits(network, samples.take(torch.arange(9))), rtol=1e-4, atol=1e-5)
