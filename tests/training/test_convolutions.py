"""Convolutions by products and by tiles give what torch's convolution gives, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.training import native
from fedsift.training.stacked import convolutions as winograd
from fedsift.training.stacked.convolutions import Geometry, convolve_by_products
from fedsift.training.stacked.network import StackedNetwork

needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"no native kernels here: {native.why_not()}")


def make(sites: int, rows: int, sizes: tuple[int, ...], seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images `[B, C*in, H, W]`, channels last, and kernels `[C, out, in, h, w]` with input channels last."""
    channels, out, height, width, high, wide = sizes
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, height, width, sites * channels, generator=generator, dtype=dtype)
    kernels = torch.randn(sites, out, high, wide, channels, generator=generator, dtype=dtype)
    kernels /= (channels * high * wide) ** 0.5
    return images.permute(0, 3, 1, 2).requires_grad_(), kernels.permute(0, 1, 4, 2, 3).requires_grad_()


def plainly(images: Tensor, kernels: Tensor, stride: tuple[int, int] | int, padding: tuple[int, int] | int) -> Tensor:
    """torch's own convolution, a group for each site."""
    return F.conv2d(images.contiguous(), kernels.flatten(0, 1).contiguous(), None, stride, padding, 1, len(kernels))


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor], tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).detach().norm() / theirs.detach().norm()) < tolerance
    gradient = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=ours.dtype)
    for own, other in zip(torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, inputs, gradient)):
        assert float((own - other).norm() / other.norm()) < tolerance


@settings(max_examples=60, deadline=None)
@given(
    sites=st.integers(1, 3),
    rows=st.integers(1, 3),
    channels=st.integers(1, 5),
    out=st.integers(1, 5),
    sides=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 1000),
)
def test_products(
    sites: int,
    rows: int,
    channels: int,
    out: int,
    sides: tuple[int, int],
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    seed: int,
) -> None:
    images, kernels = make(sites, rows, (channels, out, *sides, *size), seed, torch.float64)
    ours = convolve_by_products(images, kernels, Geometry(size, stride, padding))
    theirs = plainly(images, kernels, stride, padding)
    assert_same(ours, theirs, [images, kernels], 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    sites=st.integers(1, 3),
    rows=st.integers(1, 3),
    channels=st.integers(1, 5),
    out=st.integers(1, 5),
    sides=st.tuples(st.integers(3, 13), st.integers(3, 13)),
    padding=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
def test_tiles(sites: int, rows: int, channels: int, out: int, sides: tuple[int, int], padding: int, seed: int) -> None:
    images, kernels = make(sites, rows, (channels, out, *sides, 3, 3), seed, torch.float64)
    ours = winograd.convolve_by_tiles(images, kernels, padding)
    theirs = plainly(images, kernels, 1, padding)
    assert_same(ours, theirs, [images, kernels], 1e-12)


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(
    sites=st.integers(1, 3),
    rows=st.integers(1, 3),
    channels=st.sampled_from([16, 32, 48]),
    out=st.sampled_from([16, 32, 48]),
    sides=st.tuples(st.integers(3, 13), st.integers(3, 13)),
    padding=st.integers(0, 1),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_native_tiles(
    sites: int,
    rows: int,
    channels: int,
    out: int,
    sides: tuple[int, int],
    padding: int,
    double: bool,
    seed: int,
) -> None:
    dtype = torch.float64 if double else torch.float32
    images, kernels = make(sites, rows, (channels, out, *sides, 3, 3), seed, dtype)
    assert native.knows(images, kernels)
    ours: Tensor = winograd._Compiled.apply(images, kernels, padding)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert_same(ours, plainly(images, kernels, 1, padding), [images, kernels], 1e-12 if double else 2e-5)


@needs_kernels
def test_native_tiles_in_many_chunks_and_by_several_threads() -> None:
    """More tiles than fit the cache at once; and each thread has its part of tiles, or of channels."""
    images, kernels = make(2, 9, (64, 32, 32, 29, 3, 3), 3, torch.float64)
    ours: Tensor = winograd._Compiled.apply(images, kernels, 1)
    assert_same(ours, plainly(images, kernels, 1, 1), [images, kernels], 1e-12)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        parted: Tensor = winograd._Compiled.apply(images, kernels, 1)
        assert torch.equal(parted, ours)
        assert_same(parted, plainly(images, kernels, 1, 1), [images, kernels], 1e-12)
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_no_site_notices_its_neighbours() -> None:
    images, kernels = make(3, 2, (32, 32, 12, 12, 3, 3), 0, torch.float32)
    together: Tensor = winograd._Compiled.apply(images, kernels, 1)
    for site in range(3):
        own = images[:, 32 * site : 32 * (site + 1)].contiguous(memory_format=torch.channels_last)
        alone: Tensor = winograd._Compiled.apply(own, kernels[site : site + 1], 1)
        assert torch.equal(alone, together[:, 32 * site : 32 * (site + 1)])


@needs_kernels
def test_channels_that_native_kernels_do_not_know() -> None:
    images, kernels = make(1, 2, (40, 32, 8, 8, 3, 3), 0, torch.float64)
    assert not native.knows(images, kernels)
    assert_same(
        winograd.convolve_by_tiles(images, kernels, 1),
        plainly(images, kernels, 1, 1),
        [images, kernels],
        1e-12,
    )


@pytest.mark.usefixtures("kernels")
def test_tiles_in_single_precision_lose_little() -> None:
    """Against double precision: at most four times what torch's own convolution loses."""
    images, kernels = make(1, 4, (128, 128, 16, 16, 3, 3), 0, torch.float32)
    images, kernels = images.detach(), kernels.detach()
    exact = F.conv2d(images.double(), kernels[0].double(), padding=1)

    def lost(result: Tensor) -> float:
        return float((result.double() - exact).norm() / exact.norm())

    assert lost(winograd.convolve_by_tiles(images, kernels, 1)) < 4 * lost(F.conv2d(images, kernels[0], padding=1))


def test_the_transforms_in_plain_numpy() -> None:
    """One tile and one kernel: 36 products give the 16 sums of 9 that a window slides over."""
    to_results, of_kernels, of_tiles = (m.numpy() for m in winograd._transforms(torch.float64))
    random = np.random.default_rng(0)
    tile, kernel = random.normal(size=(6, 6)), random.normal(size=(3, 3))
    results = to_results @ ((of_kernels @ kernel.ravel()) * (of_tiles @ tile.ravel()))
    expected = [[(tile[i : i + 3, j : j + 3] * kernel).sum() for j in range(4)] for i in range(4)]
    assert np.allclose(results.reshape(4, 4), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("layer", "side", "way"),
    [
        (nn.Conv2d(128, 128, 3, padding=1), 8, "tiles"),
        (nn.Conv2d(128, 160, 3), 14, "tiles"),
        (nn.Conv2d(128, 128, 3, padding=1), 3, "products"),
        (nn.Conv2d(64, 128, 3, stride=2, padding=1), 6, "products"),
        (nn.Conv2d(128, 256, 1, bias=False), 4, "products"),
        (nn.Conv2d(16, 64, 3, padding=1), 8, "torch"),
        (nn.Conv2d(128, 128, 3, padding=1, groups=2), 8, "torch"),
        (nn.Conv2d(128, 128, 3, padding=1), 9, "torch"),
    ],
    ids=lambda value: str(value),
)
def test_which_way_a_layer_takes(layer: nn.Conv2d, side: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images a site, two sites; whichever way is taken, torch's numbers come out."""
    from fedsift.training.stacked import operations

    taken = []
    for name, module, attribute in (
        ("tiles", winograd, "convolve_by_tiles"),
        ("products", operations, "convolve_by_products"),
    ):
        usual = getattr(module, attribute)
        monkeypatch.setattr(module, attribute, lambda *a, n=name, f=usual: taken.append(n) or f(*a))
    network = nn.Sequential(layer, nn.Flatten()).double()
    stacked = StackedNetwork(network)
    stacked.load([network.state_dict()] * 2)
    x = torch.randn(2, 4, layer.in_channels, side, side, dtype=torch.float64)
    with torch.no_grad():
        ours, theirs = stacked.forward(x, train=True), network(x.flatten(0, 1))
    assert taken == ([] if way == "torch" else [way])
    assert torch.allclose(ours.flatten(0, 1), theirs, rtol=1e-10, atol=1e-10)
