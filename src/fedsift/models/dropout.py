"""Dropout with a generator of its own: a site's masks do not depend on who trains beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """nn.Dropout with an explicit generator; set it with `seed_dropout` before training.

    Without a generator it draws as nn.Dropout does.
    """

    generator: torch.Generator | None = None

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0 or self.generator is None:
            return super().forward(input)
        return input * dropout_mask(input.shape, self.p, self.generator)


def dropout_mask(shape: torch.Size | tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    """0 with probability p, else 1 / (1 - p)."""
    if p >= 1.0:
        return torch.zeros(shape)
    kept = torch.rand(shape, generator=generator) >= p
    return kept.to(torch.float32).div_(1.0 - p)


def seed_dropout(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Let every dropout layer of the module draw from `generator`, in the order in which they run.

    Plain nn.Dropout layers (of plug-in networks) are exchanged for `Dropout`; other kinds are left alone.
    """
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                seeded = Dropout(child.p)
                seeded.train(child.training)
                setattr(parent, name, seeded)
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.generator = generator
    return module
