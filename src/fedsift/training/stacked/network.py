"""A network for C sites at once: parameters `[C, ...]`, every layer run for all sites in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsift.protocol.messages import Weights
from fedsift.training.stacked import layout
from fedsift.training.stacked.operations import ForwardPass, Unstackable
from fedsift.training.stacked.program import compile_program


class StackedNetwork:
    """The stacked form of a network; raises `Unstackable` with the reason when it has none.

    Sites of unequal length are kept longest first: `activate(k)` narrows every tensor to the first k sites,
    and the others keep the values they had.

    channels_last: the memory order of images and kernels. It is much the faster for cohorts and for most networks;
    some large networks are faster the other way when a site trains alone.
    """

    def __init__(self, module: nn.Module, channels_last: bool = True) -> None:
        self._programs = {train: compile_program(module, train) for train in (True, False)}
        self.by_site = self._programs[True].by_site
        """Whether samples had best lie site by site in memory."""
        self._trainable = [name for name, value in module.named_parameters() if value.requires_grad]
        self._transposed = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.Linear)}
        self._kernels = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.Conv2d)}
        self._channels_last = channels_last
        _refuse_unusual_state(module)
        self.batch_norms = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
        """Whether a batch of one row cannot be trained on."""
        self._all: dict[str, Tensor] = {}
        self._active: dict[str, Tensor] = {}
        self.sites = 0
        """Active sites."""

    def load(self, weights: Sequence[Weights]) -> None:
        """One state a site, in the cohort's order; all sites become active."""
        self._all = {
            name: self._own_memory(name, value.expand(len(weights), *value.shape[1:]))
            for name, value in self._stack(weights, list(weights[0])).items()
        }
        self.activate(len(weights))

    def arrange(self, weights: Sequence[Weights]) -> list[Tensor]:
        """Other weights in the order and layout of `parameters()`; `[1, ...]` when all sites have the same object."""
        return list(self._stack(weights, self._trainable).values())

    def _own_memory(self, name: str, value: Tensor) -> Tensor:
        """A copy in the memory order in which gradients will come: kernels of images have their channels last."""
        if name not in self._kernels or not self._channels_last:
            return value.clone(memory_format=torch.contiguous_format)
        return value.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)

    def _stack(self, weights: Sequence[Weights], names: Sequence[str]) -> dict[str, Tensor]:
        shared = all(own is weights[0] for own in weights)
        stacked = {
            name: torch.stack([own[name].detach() for own in (weights[:1] if shared else weights)]) for name in names
        }
        return {
            name: value.transpose(1, 2).contiguous() if name in self._transposed else value
            for name, value in stacked.items()
        }

    def activate(self, sites: int) -> None:
        """Go on with the first `sites` sites. Parameters are new leaves over the same memory."""
        self.sites = sites
        self._active = {name: value[:sites] for name, value in self._all.items()}
        for name in self._trainable:
            self._active[name] = self._active[name].detach().requires_grad_()

    def parameters(self) -> list[Tensor]:
        """Trainable parameters of the active sites, `[C, ...]` each, in the network's own order."""
        return [self._active[name] for name in self._trainable]

    def active(self) -> dict[str, Tensor]:
        """The whole state of the active sites, `[C, ...]` each, in its own layout: to be read and written in place."""
        return {name: value.detach() for name, value in self._active.items()}

    def weights(self) -> list[Weights]:
        """The state of every loaded site, active or not; copies."""
        total = len(next(iter(self._all.values()))) if self._all else 0
        names = list(self._all)
        own = [value.transpose(1, 2) if name in self._transposed else value for name, value in self._all.items()]
        return [
            {name: value[site].clone(memory_format=torch.contiguous_format) for name, value in zip(names, own)}
            for site in range(total)
        ]

    def agrees_with(self, module: nn.Module, x: Tensor) -> bool:
        """Whether it gives a network's own logits of `[C, B, *shape]`: tracing may not see all that the network does.

        The network's weights become those of every site; both are left in evaluation mode.
        """
        self.load([module.state_dict()] * len(x))
        with torch.inference_mode():
            ours, theirs = self.forward(x, train=False).flatten(0, 1), module.eval()(x.flatten(0, 1))
        near = 1e-4 * float(theirs.abs().max())
        return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-3, atol=near, equal_nan=True)

    def forward(
        self,
        x: Tensor,
        present: Tensor | None = None,
        *,
        train: bool,
        generators: Sequence[torch.Generator] = (),
    ) -> Tensor:
        """Samples `[C, B, *shape]` of the active sites to logits `[C, B, K]`.

        present: `[C, B]`, 1 for real rows; None when all are. Rows of padding give numbers
        that mean nothing. generators: one a site, for dropout.
        """
        return self.forward_both(x, present, train=train, generators=generators)[1]

    def forward_both(
        self,
        x: Tensor,
        present: Tensor | None = None,
        *,
        train: bool,
        generators: Sequence[torch.Generator] = (),
        features: bool = False,
    ) -> tuple[Tensor | None, Tensor]:
        """What the head reads, `[C, B, F]` where `features` asks for it, and the logits `[C, B, K]`."""
        if x.shape[0] != self.sites:
            raise ValueError(f"samples of {x.shape[0]} sites for {self.sites} active ones")
        if x.dim() not in (3, 5):
            raise Unstackable(f"samples of shape {tuple(x.shape[2:])} are neither images nor vectors")
        program = self._programs[train]
        inputs = layout.images_from_samples(x) if x.dim() == 5 and not program.by_site else x
        if not self._channels_last:
            inputs = inputs.contiguous()
        return program.both(ForwardPass(self.sites, train, self._active, present, generators), inputs, features)


def _refuse_unusual_state(module: nn.Module) -> None:
    """Tied weights and other devices would need care that the one-site trainer already has."""
    names = [name for name, _ in module.named_parameters()]
    if names != [name for name, _ in module.named_parameters(remove_duplicate=False)]:
        raise Unstackable("two layers share a weight")
    for name, value in module.named_parameters():
        if not value.is_floating_point() or value.device.type != "cpu":
            raise Unstackable(f"'{name}' is {value.dtype} on {value.device}")
    if not set(names) <= set(module.state_dict()):
        raise Unstackable("some parameters are not part of the state")
