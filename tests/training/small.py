"""One small site made by hand, and networks that can be followed on paper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import Samples, Site
from fedsift.training.requests import LocalSite


class Linear(nn.Module):
    """z = W x + b on flattened samples."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(int(torch.tensor(shape).prod()), n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


class NormThenLinear(nn.Module):
    """Batch norm on the features themselves: a single row has no statistics."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(shape[0])
        self.layer = nn.Linear(shape[0], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(x))  # type: ignore[no-any-return]


LINEAR = "tests.training.small:Linear"
NORM = "tests.training.small:NormThenLinear"


def make_site(x: Tensor, labels: Tensor, n_classes: int, model: str = LINEAR, **options: Any) -> Site:
    facts = SiteFacts("a", len(x), model=model, annotated=options.pop("annotated", None))
    return LocalSite(
        facts=facts,
        samples=Samples(x, torch.arange(len(x)), (0.0,), (1.0,)),
        given=labels,
        classes=tuple(str(k) for k in range(n_classes)),
        moment=RequestMoment(1, "train", 0, 0),
        multilabel=labels.dim() == 2,
        **options,
    )


def linear_weights(features: int, n_classes: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(n_classes, features, generator=generator) * 0.3,
        "layer.bias": torch.randn(n_classes, generator=generator) * 0.1,
    }
