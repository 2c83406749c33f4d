"""torch.optim's SGD, Adam and AdamW for one site's network, without the classes.

Creating a torch.optim.Optimizer imports the compiler: seconds and seventy megabytes, in every process that trains. The
functional forms are what the classes call, with the same settings (`foreach`), so every bit is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedsift.local.recipe import Recipe


class PlainOptimiser:
    """Parameters without a gradient are left as they are, as torch leaves them."""

    def __init__(self, parameters: Sequence[Tensor], recipe: Recipe) -> None:
        self._parameters = list(parameters)
        self._recipe = recipe
        self._buffers: dict[int, Tensor | None] = {}
        self._moments: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One update by the parameters' gradients."""
        live = [number for number, value in enumerate(self._parameters) if value.grad is not None]
        values = [self._parameters[number] for number in live]
        gradients = [value.grad for value in values if value.grad is not None]
        if self._recipe.optimiser == "sgd":
            self._sgd(live, values, gradients)
        else:
            self._adam(live, values, gradients)

    def _sgd(self, live: list[int], values: list[Tensor], gradients: list[Tensor]) -> None:
        buffers = [self._buffers.get(number) for number in live]
        sgd(
            values,
            gradients,
            buffers,
            foreach=True,
            weight_decay=self._recipe.weight_decay,
            momentum=self._recipe.momentum,
            lr=self._recipe.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers.update(zip(live, buffers, strict=True))

    def _adam(self, live: list[int], values: list[Tensor], gradients: list[Tensor]) -> None:
        for number, value in zip(live, values, strict=True):
            if number not in self._moments:
                self._moments[number] = (torch.zeros_like(value), torch.zeros_like(value), torch.zeros(()))
        means, squares, steps = (list(each) for each in zip(*(self._moments[n] for n in live), strict=True))
        form = adam if self._recipe.optimiser == "adam" else adamw
        form(
            values,
            gradients,
            means,
            squares,
            [],
            steps,
            foreach=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._recipe.lr,
            weight_decay=self._recipe.weight_decay,
            eps=1e-8,
            maximize=False,
        )
