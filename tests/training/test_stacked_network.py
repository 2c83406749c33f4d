"""A stacked cohort computes what each site's own network does: forward, gradients, statistics, updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.models.factory import build_model, models
from fedsift.models.network import Dropout
from fedsift.training.cohort import StackedOptimiser, clip_gradients
from fedsift.training.stacked import layout
from fedsift.training.stacked.layout import empty_samples
from fedsift.training.stacked.network import StackedNetwork
from fedsift.training.stacked.operations import Unstackable

pytestmark = pytest.mark.usefixtures("kernels")

CLASSES = 5


def cohort_of(network: nn.Module, sites: int) -> list[nn.Module]:
    """Copies with weights of their own: each tensor is scaled and its entries change places."""
    generator = torch.Generator().manual_seed(9)
    copies = []
    for _ in range(sites):
        own = copy.deepcopy(network)
        with torch.no_grad():
            for value in own.parameters():
                order = torch.randperm(value.numel(), generator=generator)
                value.copy_(value.flatten()[order].view_as(value) * 1.1)
        copies.append(own)
    return copies


Options = dict[str, Any]
SGD: Options = {"kind": "sgd", "lr": 0.003, "momentum": 0.5, "weight_decay": 1e-3}


def torchs_own(parameters: list[Tensor], options: Options) -> torch.optim.Optimizer:
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[options["kind"]](parameters, **{k: v for k, v in options.items() if k != "kind"})


def train_alone(
    network: nn.Module,
    samples: Tensor,
    labels: Tensor,
    rows: list[int],
    options: Options = SGD,
    clip: float = 0.0,
) -> None:
    """Steps over `samples[t, :rows[t]]`; a site with fewer entries in `rows` stops earlier."""
    optimiser = torchs_own([p for p in network.parameters() if p.requires_grad], options)
    network.train()
    for x, y, real in zip(samples, labels, rows):
        optimiser.zero_grad()
        F.cross_entropy(network(x[:real]), y[:real]).backward()
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimiser.step()


def train_stacked(
    network: nn.Module,
    starts: list[dict[str, Tensor]],
    samples: Tensor,
    labels: Tensor,
    rows: list[list[int]],
    options: Options = SGD,
    clip: float = 0.0,
) -> list[dict[str, Tensor]]:
    """The same for all sites at once; sites are ordered longest first. samples: `[C, steps, B, *shape]`."""
    stacked = StackedNetwork(network)
    stacked.load(starts)
    optimiser = StackedOptimiser(stacked.parameters(), **options)
    generators = [torch.Generator().manual_seed(100 + site) for site in range(len(starts))]
    for step in range(len(rows[0])):
        active = sum(len(own) > step for own in rows)
        if active < stacked.sites:
            stacked.activate(active)
            optimiser.narrow(stacked.parameters())
        batch = samples.shape[2]
        real = torch.tensor([own[step] for own in rows[:active]])
        present = (torch.arange(batch) < real[:, None]).to(samples.dtype)
        full = bool((real == batch).all())
        logits = stacked.forward(
            samples[:active, step], None if full else present, train=True, generators=generators[:active]
        )
        losses = F.cross_entropy(logits.flatten(0, 1), labels[:active, step].flatten(), reduction="none")
        loss = ((losses.view(active, batch) * present).sum(-1) / real).sum()
        gradients = torch.autograd.grad(loss, stacked.parameters())
        optimiser.step(clip_gradients(gradients, clip) if clip else gradients)
    return stacked.weights()


def make_data(sites: int, steps: int, batch: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    samples = torch.randn(sites, steps, batch, *shape, generator=generator, dtype=dtype)
    return samples, torch.randint(0, CLASSES, (sites, steps, batch), generator=generator)


def assert_same_training(
    network: nn.Module,
    shape: tuple[int, ...],
    rows: list[list[int]],
    *,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
    options: Options = SGD,
    clip: float = 0.0,
    batch: int = 4,
) -> None:
    network = network.to(dtype)
    alone = cohort_of(network, len(rows))
    starts = [{key: value.clone() for key, value in own.state_dict().items()} for own in alone]
    samples, labels = make_data(len(rows), len(rows[0]), batch, shape, dtype)
    together = train_stacked(network, starts, samples, labels, rows, options, clip)
    for site, own in enumerate(alone):
        with torch.random.fork_rng():
            torch.manual_seed(100 + site)
            train_alone(own, samples[site], labels[site], rows[site], options, clip)
        assert_same_state(together[site], own.state_dict(), tolerance)


def assert_same_state(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Relative to the length of the whole: single entries, and means that ought to be zero, may be tiny."""
    assert list(got) == list(expected)
    assert all(got[key].dtype == value.dtype and got[key].shape == value.shape for key, value in expected.items())
    for buffers in (False, True):
        names = [key for key in expected if ("running" in key or "tracked" in key) == buffers]
        if names:
            ours = torch.cat([got[key].double().flatten() for key in names])
            theirs = torch.cat([expected[key].double().flatten() for key in names])
            error = float((ours - theirs).norm() / theirs.norm())
            assert error <= tolerance, (buffers, error)


LARGE = {"resnet50-imagenet", "resnet34-cifar", "resnet18-cifar", "resnet18-imagenet", "vgg11-cifar"}


@pytest.mark.parametrize("name", [name for name in models if name not in LARGE])
def test_registered_networks_train_alike(name: str) -> None:
    """Unequal batches and lengths, in double precision: there, only a wrong formula makes a difference."""
    network = build_model(name, (3, 8, 8), CLASSES)
    steps = 20 if sum(p.numel() for p in network.parameters()) < 500_000 else 2
    rows = [[6] * steps, [6, 4] * (steps // 2), [6] * (steps // 2)]
    assert_same_training(network, (3, 8, 8), rows, batch=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_every_registered_network_trains_alike_for_20_steps(name: str) -> None:
    """With a small step: deep networks with batch norm are chaotic on such small images. At 0.0005 ResNet-50 makes of a
    difference of 6e-16 after the first step, rounding alone, 1e-12 after the fourth; MobileNetV2 is as wild."""
    side = 64 if name.endswith("imagenet") else 16
    network = build_model(name, (3, side, side), CLASSES)
    gentle: Options = {**SGD, "lr": 5e-5}
    rows = [[8] * 20, [8, 5] * 10]
    assert_same_training(network, (3, side, side), rows, batch=8, tolerance=1e-8, options=gentle)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("mlp", 1e-5), ("cnn", 1e-5), ("lenet5", 1e-5), ("resnet8-cifar", 1e-3)]
)
def test_single_precision(name: str, tolerance: float) -> None:
    """With batch norm, two single-precision runs of one network alone (in another memory order) part as far."""
    network = build_model(name, (3, 32, 32), CLASSES)
    rows = [[8] * 20, [8] * 19 + [5]]
    assert_same_training(network, (3, 32, 32), rows, dtype=torch.float32, tolerance=tolerance, batch=8)


OPTIMISERS: dict[str, Options] = {
    "sgd": {"kind": "sgd", "lr": 0.05},
    "sgd, momentum, decay": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"kind": "adam", "lr": 1e-3, "weight_decay": 5e-4},
    "adamw": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1},
}


@pytest.mark.parametrize("options", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_optimisers_leave_finished_sites_alone(options: Options) -> None:
    network = build_model("resnet8-cifar", (1, 8, 8), CLASSES)
    rows = [[4] * 8, [4, 4, 3, 4, 2], [4, 4, 3, 4, 2], [2]]
    assert_same_training(network, (1, 8, 8), rows, options=options)


def test_gradient_clipping_is_per_site() -> None:
    network = build_model("lenet5", (1, 8, 8), CLASSES)
    assert_same_training(network, (1, 8, 8), [[4] * 6, [3] * 6], clip=0.3)


class Zoo(nn.Module):
    """Every layer and every way of writing things that has a stacked form."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, stride=2, padding=1, groups=2)
        self.norm = nn.GroupNorm(4, 8)
        self.dilated = nn.Conv2d(8, 8, 3, padding=2, dilation=2, bias=False)
        self.batch = nn.BatchNorm2d(8, affine=False, momentum=0.3)
        self.shuffle = nn.ChannelShuffle(2)
        self.drop = Dropout(0.3)
        self.act = nn.ModuleList([nn.GELU(), nn.SiLU(), nn.LeakyReLU(0.1), nn.Hardswish(), nn.Tanh()])
        self.max = nn.MaxPool2d(3, stride=2, padding=1)
        self.adaptive = nn.AdaptiveMaxPool2d(3)
        self.vector = nn.Linear(16 * 9, 12)
        self.vector_norm = nn.LayerNorm(12)
        self.row_norm = nn.BatchNorm1d(12, track_running_stats=False)
        self.plain = nn.Linear(12, 12, bias=False)
        self.gate = nn.Conv2d(8, 8, 1)
        self.out = nn.Linear(12 + 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act[0](self.norm(self.stem(x)))
        y = self.drop(self.shuffle(self.act[1](self.batch(self.dilated(x)))))
        y = y + x
        y *= torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))
        pooled = y.mean(dim=(2, 3))
        y = torch.cat([y, 2.0 * F.avg_pool2d(y, 3, stride=1, padding=1)], dim=1)
        y = self.adaptive(self.max(F.relu(y)))
        v = self.act[2](self.vector(y.view(y.size(0), -1)))
        v = self.drop(self.act[3](self.row_norm(self.plain(self.vector_norm(v)))))
        v = torch.cat((v, pooled), dim=-1)
        return self.out(self.act[4](v.reshape(v.shape[0], -1)))


def test_every_layer_with_a_stacked_form() -> None:
    rows = [[4] * 6, [3, 4, 2, 4, 4, 2], [4, 2]]
    assert_same_training(Zoo(), (2, 12, 10), rows)


def test_evaluation_uses_each_sites_statistics() -> None:
    network = build_model("resnet8-cifar", (3, 8, 8), CLASSES).double()
    alone = cohort_of(network, 3)
    generator = torch.Generator().manual_seed(1)
    for own in alone:
        for value in own.buffers():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    stacked = StackedNetwork(network)
    stacked.load([own.state_dict() for own in alone])
    x = torch.randn(3, 6, 3, 8, 8, generator=generator, dtype=torch.float64)
    with torch.inference_mode():
        logits = stacked.forward(x, train=False)
        expected = torch.stack([own.eval()(x[site]) for site, own in enumerate(alone)])
    assert torch.allclose(logits, expected, rtol=1e-10, atol=1e-12)


def test_pooling_and_relu_change_places_without_a_trace_on_ties() -> None:
    """Flat images tie in every pooling window, where only the first of the equals may get the gradient."""
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5))
    network = network.double()
    x, y = torch.ones(2, 4, 1, 6, 6, dtype=torch.float64), torch.zeros(8, dtype=torch.long)
    alone = cohort_of(network, 2)
    stacked = StackedNetwork(network)
    stacked.load([own.state_dict() for own in alone])
    F.cross_entropy(stacked.forward(x, train=True).flatten(0, 1), y, reduction="sum").backward()
    for site, own in enumerate(alone):
        F.cross_entropy(own(x[site]), y[:4], reduction="sum").backward()
        assert torch.allclose(stacked.parameters()[0].grad[site], own[0].weight.grad, rtol=1e-10, atol=1e-12)


def test_frozen_parameters_stay() -> None:
    network = build_model("lenet5", (1, 8, 8), CLASSES)
    for value in network.encoder[0].parameters():
        value.requires_grad_(False)
    stacked = StackedNetwork(network)
    stacked.load([network.state_dict()] * 2)
    assert len(stacked.parameters()) == len(list(network.parameters())) - 2


def test_samples_in_the_cohorts_own_memory_order_are_not_copied() -> None:
    samples = empty_samples(3, 4, (2, 5, 6))
    assert samples.shape == (3, 4, 2, 5, 6)
    images = layout.images_from_samples(samples)
    assert images.data_ptr() == samples.data_ptr()
    assert images.is_contiguous(memory_format=torch.channels_last)


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def hooked() -> nn.Module:
    network = nn.Linear(4, 4)
    network.register_forward_hook(lambda *_: None)
    return network


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (DataDependent(), "traced"),
        (Tied(), "share a weight"),
        (nn.Sequential(nn.LSTM(4, 4)), "LSTM"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding_mode="reflect")), "reflect"),
        (nn.Sequential(nn.BatchNorm1d(4, momentum=None)), "momentum=None"),
        (nn.Sequential(nn.Softmax(dim=0)), "Softmax"),
        (hooked(), "hooks"),
    ],
)
def test_what_cannot_be_stacked_says_why(network: nn.Module, reason: str) -> None:
    with pytest.raises(Unstackable, match=reason):
        StackedNetwork(network)
