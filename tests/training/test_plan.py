"""How many steps a recipe takes, and how far they can carry a network."""

from __future__ import annotations

import pytest

from fedsift.training.plan import batch_bounds, reach, steps
from fedsift.training.recipe import Recipe


@pytest.mark.parametrize("batch_size", [1, 2, 7, 32])
def test_as_many_steps_as_batches(batch_size: int) -> None:
    for n in range(1, 100):
        assert steps(n, Recipe(epochs=2, batch_size=batch_size)) == 2 * len(batch_bounds(n, batch_size))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_is_the_way_of_equal_gradients(momentum: float) -> None:
    """A plain walk: v = m v + 1, x = x + v, for each of 3 epochs of 4 batches."""
    velocity = place = 0.0
    for _ in range(3 * 4):
        velocity = momentum * velocity + 1
        place += velocity
    assert reach(40, Recipe(epochs=3, batch_size=10, momentum=momentum)) == pytest.approx(place)
    assert reach(40, Recipe(epochs=3, batch_size=10, momentum=momentum, optimiser="adam")) == 12
    assert reach(0, Recipe()) == 1, "a site that trained on nothing"
    assert reach(10**12, Recipe(batch_size=1)) == pytest.approx(10**12), "a count that nobody has is no list"
