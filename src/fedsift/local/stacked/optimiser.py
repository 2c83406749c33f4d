"""torch.optim on stacked parameters: its formulas are element-wise, so one fused call serves all sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

MakeOptimiser: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]


class StackedOptimiser:
    """An optimiser whose cohort may shrink: sites that have finished are neither updated nor decayed."""

    def __init__(self, parameters: Sequence[Tensor], make: MakeOptimiser) -> None:
        self._make = make
        self._parameters = list(parameters)
        self._optimiser = make(self._parameters)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update of all active sites by gradients `[C, ...]`."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = _in_memory_order(gradient, parameter)
        self._optimiser.step()
        for parameter in self._parameters:
            parameter.grad = None

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Go on with fewer sites: `parameters` are the first sites' of those so far; their state stays."""
        sites = len(parameters[0])
        fresh = self._make(list(parameters))
        for old, new in zip(self._parameters, parameters, strict=True):
            fresh.state[new] = {
                key: _first(value, sites) for key, value in self._optimiser.state[old].items()
            }
        self._parameters, self._optimiser = list(parameters), fresh


def _in_memory_order(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Fused updates walk over memory and do not look at strides: both must lie alike."""
    strides = zip(gradient.stride(), parameter.stride(), parameter.shape)
    if all(own == wanted or size == 1 for own, wanted, size in strides):
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _first(value: Any, sites: int) -> Any:
    """Moments have the cohort axis; the step count has none, as active sites have all made the same steps."""
    return value[:sites] if isinstance(value, Tensor) and value.dim() > 0 else value


def clip_gradients(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale each site's gradients `[C, ...]` to at most this norm, as nn.utils.clip_grad_norm_ does."""
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]
