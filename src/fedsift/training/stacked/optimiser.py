"""torch.optim on stacked parameters: its formulas are element-wise, so one fused call serves all sites.

The functional forms are called, not the classes: creating a torch.optim.Optimizer imports the compiler first, which
takes a process about as long as importing torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

IN_ORDER = tuple(range(8))


class StackedOptimiser:
    """SGD, Adam or AdamW with torch's defaults, for a cohort that may shrink.

    Sites that have finished are neither updated nor decayed. All active sites have made the same number of steps.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        kind: Literal["sgd", "adam", "adamw"] = "sgd",
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        # the fused update copies whatever does not lie in the order of its axes
        self._orders = [_order_in_memory(value) for value in parameters]
        self._parameters = self._as_they_lie(parameters)
        self._update: Callable[[list[Tensor]], None] = self._sgd
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._buffers: list[Tensor | None] = [None] * len(self._parameters)
        if kind != "sgd":
            self._update = self._adam
            self._adam_form: Callable[..., None] = adam if kind == "adam" else adamw
            self._means = [torch.zeros_like(value) for value in self._parameters]
            self._squares = [torch.zeros_like(value) for value in self._parameters]
            self._steps = [torch.zeros((), dtype=torch.float32) for _ in self._parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update of all active sites by gradients `[C, ...]`."""
        self._update([gradient.contiguous() for gradient in self._as_they_lie(gradients)])

    def _as_they_lie(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Views of one tensor a parameter, with axes in the order of the parameter's memory."""
        pairs = zip(values, self._orders, strict=True)
        return [value.permute(order) if order != IN_ORDER[: len(order)] else value for value, order in pairs]

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Go on with fewer sites: `parameters` are the first sites' of those so far; their state stays."""
        sites = len(parameters[0])
        self._parameters = self._as_they_lie(parameters)
        self._means = [value[:sites] for value in self._means]
        self._squares = [value[:sites] for value in self._squares]
        self._buffers = [None if value is None else value[:sites] for value in self._buffers]

    def _sgd(self, gradients: list[Tensor]) -> None:
        sgd(
            self._parameters,
            gradients,
            self._buffers,
            fused=True,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adam(self, gradients: list[Tensor]) -> None:
        self._adam_form(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )


def _order_in_memory(parameter: Tensor) -> tuple[int, ...]:
    """The axes from the widest stride to the narrowest."""
    strides = parameter.stride()
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def clip_gradients(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale each site's gradients `[C, ...]` to at most this norm, as nn.utils.clip_grad_norm_ does."""
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]
