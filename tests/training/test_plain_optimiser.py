"""The optimiser of one site's network has torch.optim's bits without torch.optim's imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedsift.training.recipe import Recipe
from fedsift.training.trainer import PlainOptimiser, make_optimiser

KINDS = [
    Recipe(optimiser="sgd", lr=0.1),
    Recipe(optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01),
    Recipe(optimiser="adam", lr=0.01, weight_decay=0.01),
    Recipe(optimiser="adamw", lr=0.01, weight_decay=0.1),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3), nn.Linear(3, 3))


@pytest.mark.parametrize("recipe", KINDS)
def test_every_bit_is_that_of_torchs_own_class(recipe: Recipe) -> None:
    ours, theirs = network(), network()
    plain = PlainOptimiser(list(ours.parameters()), recipe)
    usual = make_optimiser(list(theirs.parameters()), recipe)
    for step in range(5):
        images = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(step))
        for net, optimiser in ((ours, plain), (theirs, usual)):
            optimiser.zero_grad()
            part = net if step != 2 else net[:4]  # once, the last layer has no gradient
            part(images).square().mean().backward()
            optimiser.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, two)


PROGRAM = """
import sys, torch
from fedsift.training.trainer import PlainOptimiser
from fedsift.training.recipe import Recipe
for kind in ("sgd", "adam", "adamw"):
    value = torch.ones(2, requires_grad=True)
    optimiser = PlainOptimiser([value], Recipe(optimiser=kind))
    value.sum().backward()
    optimiser.step()
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_training_does_not_import_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
