"""Dropout whose draws can be repeated: a site's masks do not depend on who trains beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """nn.Dropout that draws by `dropout_mask`, so that another trainer can draw the very same masks.

    It draws from torch's own stream, which the trainer seeds for each site.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        return input * dropout_mask(input.shape, self.p).to(input)


def dropout_mask(shape: torch.Size | tuple[int, ...], p: float, generator: torch.Generator | None = None) -> Tensor:
    """0 with probability p, else 1 / (1 - p); from torch's own stream when no generator is given."""
    if p >= 1.0:
        return torch.zeros(shape)
    kept = torch.rand(shape, generator=generator) >= p
    return kept.to(torch.float32).div_(1.0 - p)


def with_repeatable_dropout(module: nn.Module) -> nn.Module:
    """Exchange plain nn.Dropout layers (of plug-in networks) for `Dropout`; other kinds are left alone."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    return module
