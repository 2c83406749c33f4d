"""The native kernels: the numbers of torch's own operations, whoever trains beside whom, and a way without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.training import augment, native
from fedsift.training.native import building as build
from fedsift.training.native.operations import PooledBlock
from fedsift.training.recipe import Augment
from fedsift.training.stacked import layout
from fedsift.training.stacked.network import StackedNetwork

needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"no native kernels here: {native.why_not()}")


def expected_block(kind: PooledBlock, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same by torch, site by site."""
    return torch.stack(
        [
            F.relu(F.max_pool2d(F.conv2d(own, w, b, padding=kind.padding), 2))
            for own, w, b in zip(x, weight, [None] * len(x) if bias is None else bias)
        ]
    )


def assert_same_block(kind: PooledBlock, x: Tensor, weight: Tensor, bias: Tensor | None, tolerance: float) -> None:
    inputs = [value.requires_grad_() for value in (x, weight, bias) if value is not None]
    ours, theirs = native.block(kind, x, weight, bias), expected_block(kind, x, weight, bias)
    assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    gradient = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    for own, other in zip(torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, inputs, gradient)):
        assert float((own - other).norm()) <= tolerance * max(1.0, float(other.norm()))


@needs_kernels
@settings(max_examples=120, deadline=None)
@given(
    sites=st.integers(1, 3),
    rows=st.integers(1, 3),
    channels=st.integers(1, 9),
    out=st.integers(1, 17),
    side=st.sampled_from([1, 2, 3, 5, 7]),
    padding=st.integers(0, 3),
    room=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    biased=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_block_is_convolution_pooling_and_relu(
    sites: int,
    rows: int,
    channels: int,
    out: int,
    side: int,
    padding: int,
    room: tuple[int, int],
    biased: bool,
    double: bool,
    seed: int,
) -> None:
    """Any size, whole vectors or not, in both precisions. The result has at least one pixel."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    height, width = (max(1, side + 1 - 2 * padding + extra) for extra in room)
    x = torch.randn(sites, rows, channels, height, width, generator=generator, dtype=dtype)
    weight = torch.randn(sites, out, channels, side, side, generator=generator, dtype=dtype)
    weight /= (channels * side**2) ** 0.5
    bias = torch.randn(sites, out, generator=generator, dtype=dtype) if biased else None
    assert_same_block(PooledBlock(side, padding), x, weight, bias, 1e-11 if double else 1e-4)


@needs_kernels
def test_a_block_by_hand() -> None:
    """One image of 3 x 3, a kernel of 1 x 1 that doubles: the window's largest is 5, doubled 10, less 4 makes 6."""
    x = torch.tensor([[1.0, 2.0, 9.0], [5.0, 3.0, 9.0], [9.0, 9.0, 9.0]]).view(1, 1, 1, 3, 3).requires_grad_()
    weight = torch.full((1, 1, 1, 1, 1), 2.0, requires_grad=True)
    bias = torch.full((1, 1), -4.0, requires_grad=True)
    result = native.block(PooledBlock(1, 0), x, weight, bias)
    assert result.flatten().tolist() == [6.0]
    by_x, by_weight, by_bias = torch.autograd.grad(result, [x, weight, bias], torch.full((1, 1, 1, 1, 1), 3.0))
    assert by_x.flatten().tolist() == [0, 0, 0, 6, 0, 0, 0, 0, 0]
    assert (by_weight.item(), by_bias.item()) == (15.0, 3.0)


@needs_kernels
def test_ties_go_to_the_first_as_in_torch() -> None:
    """Few whole numbers: most windows tie, in every pattern."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (2, 4, 2, 12, 13), generator=generator).double()
    weight = torch.randint(-1, 2, (2, 3, 2, 3, 3), generator=generator).double()
    assert_same_block(PooledBlock(3, 1), x, weight, torch.zeros(2, 3, dtype=torch.float64), 1e-12)


@needs_kernels
def test_a_number_that_is_none_stays_visible() -> None:
    x = torch.randn(1, 2, 1, 8, 8)
    x[0, 0, 0, 3, 3] = torch.nan
    weight = torch.randn(1, 2, 1, 3, 3)
    ours = native.block(PooledBlock(3, 0), x, weight, None)
    theirs = expected_block(PooledBlock(3, 0), x, weight, None)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert ours.isnan().any()
    assert native.block(PooledBlock(3, 0), x, weight * torch.nan, None).isnan().all()


@needs_kernels
def test_no_site_notices_its_neighbours_or_the_threads() -> None:
    """Bit for bit: alone, in company, and in company computed by three threads."""
    x, weight, bias = torch.randn(4, 5, 3, 16, 16), torch.randn(4, 6, 3, 5, 5), torch.randn(4, 6)

    def run(part: slice) -> list[Tensor]:
        inputs = [value[part].clone().requires_grad_() for value in (x, weight, bias)]
        result = native.block(PooledBlock(5, 2), *inputs)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), inputs)]

    together = run(slice(0, 4))
    for site in range(4):
        for own, all_sites in zip(run(slice(site, site + 1)), together):
            assert torch.equal(own[0], all_sites[site])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert all(torch.equal(own, other) for own, other in zip(run(slice(0, 4)), together))
    finally:
        torch.set_num_threads(before)


UNKNOWN = [
    (nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, 3, dilation=2), nn.MaxPool2d(2)),
    (nn.Conv2d(2, 2, 3, groups=2), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, (3, 1)), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, 3, padding=(1, 0)), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2)),
    (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3)),
    (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, stride=1)),
    (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1)),
    (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)),
    (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, dilation=2)),
    (nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)),
]


@pytest.mark.parametrize(("conv", "pool"), UNKNOWN)
def test_other_kinds_are_left_to_torch(conv: nn.Module, pool: nn.Module) -> None:
    assert PooledBlock.of(conv, pool) is None


class Mixed(nn.Module):
    """A block whose result is read by a block, a sum and a convolution, and blocks written in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(6, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
        self.beside = nn.Conv2d(6, 6, 3, padding=1)
        self.odd = nn.Sequential(nn.Conv2d(6, 4, 3), nn.MaxPool2d(3, stride=2), nn.ReLU())
        self.out = nn.Linear(4 * 9 + 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.odd(x + self.beside(x))
        z = self.second(x)
        return self.out(torch.cat([z.flatten(1), y.view(y.size(0), -1)], dim=1))


@needs_kernels
def test_blocks_and_torchs_layers_in_one_network() -> None:
    network = Mixed().double()
    stacked = StackedNetwork(network)
    assert stacked.by_site
    stacked.load([network.state_dict()] * 2)
    x = torch.randn(2, 3, 2, 12, 12, dtype=torch.float64)
    ours = stacked.forward(x, train=True)
    theirs = network(x.flatten(0, 1)).view(2, 3, 3)
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(ours.square().sum(), stacked.parameters())
    expected = torch.autograd.grad(theirs.square().sum(), list(network.parameters()))
    for (name, _), own, other in zip(network.named_parameters(), gradients, expected):
        total = own.sum(0).t() if name == "out.weight" else own.sum(0)
        assert torch.allclose(total, other, rtol=1e-9, atol=1e-11), name


# Norms -----------------------------------------------------------------------------------------------------


@needs_kernels
@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 5),
    channels=st.sampled_from([16, 32, 80]),
    sides=st.tuples(st.integers(1, 9), st.integers(2, 9)),
    affine=st.booleans(),
    tracked=st.booleans(),
    summed=st.booleans(),
    relu=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_norm_with_what_follows_it(
    rows: int,
    channels: int,
    sides: tuple[int, int],
    affine: bool,
    tracked: bool,
    summed: bool,
    relu: bool,
    double: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype, tolerance = (torch.float64, 1e-10) if double else (torch.float32, 2e-4)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def images() -> Tensor:
        return drawn(rows, *sides, channels).permute(0, 3, 1, 2)

    x = (3 + 2 * images()).requires_grad_()
    other = images().requires_grad_() if summed else None
    weight, bias = (drawn(channels).requires_grad_() for _ in range(2)) if affine else (None, None)
    running = (drawn(channels), drawn(channels).abs()) if tracked else None
    expected_running = tuple(value.clone() for value in running) if running else (None, None)
    ours = native.batch_norm(x, running, weight, bias, 0.3, 1e-5, other, relu)
    theirs = F.batch_norm(x, *expected_running, weight, bias, True, 0.3, 1e-5)
    theirs = theirs if other is None else theirs + other
    theirs = F.relu(theirs) if relu else theirs
    assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    for own, wanted in zip(running or (), expected_running):
        assert torch.allclose(own, wanted, rtol=tolerance, atol=tolerance)
    inputs = [value for value in (x, other, weight, bias) if value is not None]
    # where ReLU is a hair from closing, the two may close it differently
    gradient = drawn(*theirs.shape) * ((theirs.detach() == 0) | (theirs.detach() > 1e-3))
    for own, wanted in zip(torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, inputs, gradient)):
        assert float((own - wanted).norm()) <= 10 * tolerance * max(1.0, float(wanted.norm()))


@needs_kernels
def test_a_norm_by_hand() -> None:
    """Four rows 1, 2, 3, 6 in every channel: mean 3, variance 14 / 4, so that 6 becomes 3 / sqrt(3.5)."""
    x = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64).view(4, 1, 1, 1).expand(4, 1, 1, 16)
    x = x.contiguous().permute(0, 3, 1, 2)
    running = (torch.zeros(16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64))
    result = native.batch_norm(x, running, None, None, 0.5, 0.0, relu=True)
    assert result[:, 0, 0, 0].tolist() == pytest.approx([0, 0, 0, 3 / 3.5**0.5])
    assert running[0].tolist() == [1.5] * 16
    assert running[1].tolist() == pytest.approx([14 / 3 / 2] * 16)


@needs_kernels
def test_a_norm_of_far_away_numbers_keeps_its_variance() -> None:
    """Mean 10,000 and spread 1 in single precision: squares of the numbers themselves would have lost it."""
    x = 10_000 + torch.randn(64, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last)
    result = native.batch_norm(x, None, None, None, 0.1, 1e-5)
    assert torch.allclose(result.std((0, 2, 3)), torch.ones(16), atol=1e-2)


@needs_kernels
def test_a_norm_shows_what_is_no_number() -> None:
    x = torch.randn(4, 32, 3, 3).contiguous(memory_format=torch.channels_last)
    x[1, 5, 0, 0] = torch.nan
    result = native.batch_norm(x, None, None, None, 0.1, 1e-5, relu=True)
    assert result[:, 5].isnan().all()
    assert int(result.isnan().sum()) == result[:, 5].numel()


# Images ----------------------------------------------------------------------------------------------------


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(
    sites=st.integers(1, 3),
    rows=st.integers(1, 4),
    channels=st.integers(1, 5),
    sides=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    crop=st.integers(0, 4),
    flip=st.booleans(),
    by_site=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_images_are_augmented_as_by_torch(
    sites: int,
    rows: int,
    channels: int,
    sides: tuple[int, int],
    crop: int,
    flip: bool,
    by_site: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randint(0, 256, (9, channels, *sides), dtype=torch.uint8, generator=generator)
    chosen = torch.randint(0, 9, (sites * rows,), generator=generator)
    kind = Augment(flip=flip, crop=crop)
    draws = augment.draw(kind, sites * rows, generator)
    scale, offset = torch.rand(2, sites, channels, generator=generator) + 0.1
    images = layout.empty_samples(sites, rows, (channels, *sides), by_site).fill_(torch.nan)
    native.take_images(pool, chosen, draws.shift, draws.flip, crop, scale, offset, images)
    plain = pool[chosen].view(sites, rows, channels, *sides).float()
    plain = plain * scale.view(sites, 1, channels, 1, 1) - offset.view(sites, 1, channels, 1, 1)
    expected = augment.apply(plain.flatten(0, 1), kind, draws).view_as(images)
    assert torch.allclose(images, expected, rtol=1e-5, atol=1e-4)


# Building --------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path))
    monkeypatch.delenv(build.OFF, raising=False)
    return tmp_path


@needs_kernels
def test_kernels_are_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build._built()
    assert first.is_relative_to(fresh)
    assert build._load(first)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build._built() == first
    assert [path.name for path in first.parent.iterdir()] == [first.name], "nothing else is left behind"


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.KernelsUnavailable, match="no C\\+\\+ compiler"):
        build._built()


def test_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fresh / "broken"
    broken.write_text("#!/bin/sh\necho 'blocks.cpp:1: error: no room' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(build.KernelsUnavailable, match="no room"):
        build._built()
    assert list((fresh / "native").iterdir()) == []


def test_kernels_can_be_left_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.OFF, "0")
    with pytest.raises(build.KernelsUnavailable, match=build.OFF):
        build._built()


def test_a_cache_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = fresh / "file"
    blocked.write_text("")
    monkeypatch.setenv("FEDSIFT_CACHE", str(blocked))
    build._library.cache_clear()
    try:
        if native.library() is None:
            assert native.why_not()
        else:
            pytest.fail(f"{os.listdir(fresh)}")
    finally:
        build._library.cache_clear()
