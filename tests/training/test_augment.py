"""Augmentation against pixel-by-pixel versions."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsift.training import augment
from fedsift.training.augment import AugmentationDraws
from fedsift.training.plan import plan
from fedsift.training.recipe import Augment, Recipe

IMAGES = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5) + 1


def test_flip_only_where_drawn() -> None:
    out = augment.apply(IMAGES, Augment(flip=True), AugmentationDraws(flip=torch.tensor([True, False])))
    assert torch.equal(out[0], IMAGES[0].flip(-1))
    assert torch.equal(out[1], IMAGES[1])


def test_crop_is_a_window_of_the_padded_image() -> None:
    pad = 2
    shift = torch.tensor([[0, 4], [3, 1]])
    out = augment.apply(IMAGES, Augment(crop=pad), AugmentationDraws(shift=shift))
    padded = np.pad(IMAGES.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    for i, (down, right) in enumerate(shift.tolist()):
        np.testing.assert_array_equal(out[i].numpy(), padded[i][:, down : down + 4, right : right + 5])


def test_flip_and_crop_together_flip_the_window() -> None:
    shift = torch.tensor([[1, 3], [2, 2]])
    flip = torch.tensor([True, True])
    out = augment.apply(IMAGES, Augment(flip=True, crop=2), AugmentationDraws(flip=flip, shift=shift))
    window = augment.apply(IMAGES, Augment(crop=2), AugmentationDraws(shift=shift))
    assert torch.equal(out, window.flip(-1))


def test_affine_identity_and_half_turn() -> None:
    draws = AugmentationDraws(angle=torch.tensor([0.0, math.pi]), move=torch.zeros(2, 2))
    out = augment.apply(IMAGES, Augment(degrees=180), draws)
    torch.testing.assert_close(out[0], IMAGES[0])
    torch.testing.assert_close(out[1], IMAGES[1].flip(-1, -2), rtol=1e-4, atol=1e-3)


def test_affine_shift_moves_by_the_share_of_the_side() -> None:
    draws = AugmentationDraws(angle=torch.zeros(2), move=torch.tensor([[0.2, 0.0], [0.0, 0.25]]))
    out = augment.apply(IMAGES, Augment(translate=0.25), draws)
    torch.testing.assert_close(out[0][:, :, :4], IMAGES[0][:, :, 1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out[1][:, :3], IMAGES[1][:, 1:], rtol=1e-4, atol=1e-4)


def test_draws_cover_their_range_and_follow_the_generator() -> None:
    recipe = Augment(flip=True, crop=4, degrees=10, translate=0.02)
    one = augment.draw(recipe, 4000, torch.Generator().manual_seed(1))
    two = augment.draw(recipe, 4000, torch.Generator().manual_seed(1))
    assert one.flip is not None and one.shift is not None and one.angle is not None and one.move is not None
    assert two.flip is not None and torch.equal(one.flip, two.flip)
    assert 0.45 < one.flip.float().mean() < 0.55
    assert set(one.shift.unique().tolist()) == set(range(9))
    assert one.angle.abs().max() <= math.radians(10)
    assert one.move.abs().max() <= 0.02


def test_off_or_no_image_is_untouched() -> None:
    rows = torch.randn(3, 7)
    assert augment.apply(rows, Augment(flip=True), AugmentationDraws(flip=torch.tensor([True] * 3))) is rows
    assert augment.apply(IMAGES, Augment(), AugmentationDraws()) is IMAGES


def test_a_still_look_changes_nothing_and_draws_nothing() -> None:
    every = Augment(flip=True, crop=2, degrees=20.0, translate=0.1)
    out = augment.apply(IMAGES, every, augment.still(every, len(IMAGES)))
    torch.testing.assert_close(out, IMAGES, atol=1e-4, rtol=1e-5)
    assert augment.still(Augment(), 3) == AugmentationDraws()


def test_plain_views_come_first() -> None:
    recipe = Recipe(batch_size=2, views=2, plain_views=1, augment=Augment(flip=True, crop=2))
    [batch] = plan(2, recipe, torch.Generator().manual_seed(1))
    assert batch.draws.flip is not None and batch.draws.shift is not None
    assert batch.draws.flip[:2].tolist() == [False, False]
    assert batch.draws.shift[:2].tolist() == [[2, 2], [2, 2]]
    assert batch.draws.shift[2:].tolist() != [[2, 2], [2, 2]]
