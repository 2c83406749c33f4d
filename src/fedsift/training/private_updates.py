"""Differential privacy for model updates: clipping and Gaussian noise on the fields of a reply that are declared as
updates."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsift.core.errors import RunError
from fedsift.formulas.privacy import GRID_BITS, clipping_share, discrete_gaussian
from fedsift.protocol.messages import Reply, Request, Weights

SMALLEST_VARIANCE = 1e-6
"""Noise must not make a running variance negative; correcting what was released costs no privacy."""
ROUNDING = 2.0**-26
"""By how much a noised update is made shorter than C, so that no rounding in measuring it makes it longer."""


@dataclass(frozen=True)
class NoiseMechanism:
    """What a site does to every update before it leaves."""

    clip: float
    """The longest update, C."""
    noise: float = 0.0
    """Standard deviation of the noise on each number, in units of C; 0 clips alone."""
    entropy: Callable[[int], bytes] = os.urandom
    """So many random bytes; from the operating system, since noise that can be repeated can be subtracted."""


@dataclass(frozen=True)
class PrivateReply:
    """A reply after clipping and noise."""

    reply: Reply
    updates: int
    """How many updates in it were clipped and noised."""
    fields: tuple[str, ...]
    """Where they are, as `Reply.field`."""


def updates_in(kind: type[Reply]) -> list[str]:
    """Fields of a reply's class that carry updates."""
    return [f.name for f in dataclasses.fields(kind) if f.metadata.get("update") is not None]


def protected(reply: Reply, request: Request[Any], mechanism: NoiseMechanism) -> PrivateReply:
    """The reply with every update in it, and in the replies to what rode on the request, clipped and noised."""
    changes: dict[str, Any] = {}
    names: list[str] = []
    count = 0
    for f in dataclasses.fields(reply):
        value, start = getattr(reply, f.name), f.metadata.get("update")
        if start is not None and value is not None and len(value):
            base = getattr(request, start) if start else None
            changes[f.name], found = _each(value, base, mechanism)
            names.append(f"{type(reply).__name__}.{f.name}")
            count += found
        elif isinstance(value, tuple) and any(isinstance(item, Reply) for item in value):
            inner = [protected(own, asked, mechanism) for asked, own in zip(request.besides, value, strict=True)]
            changes[f.name] = tuple(one.reply for one in inner)
            names += [name for one in inner for name in one.fields]
            count += sum(one.updates for one in inner)
    return PrivateReply(dataclasses.replace(reply, **changes) if changes else reply, count, tuple(names))


def _each(value: Any, base: Any, mechanism: NoiseMechanism) -> tuple[Any, int]:
    """A model, several models, or one tensor that starts from nothing."""
    if isinstance(value, Tensor):
        return protected_model({"": value}, None, mechanism)[""], 1
    if isinstance(value, Mapping):
        return protected_model(dict(value), base, mechanism), 1
    starts = base if base is not None else [None] * len(value)
    models = tuple(protected_model(own, start, mechanism) for own, start in zip(value, starts, strict=True))
    return models, len(models)


def protected_model(model: Weights, start: Weights | None, mechanism: NoiseMechanism) -> Weights:
    """w + min(1, C / ||w_k - w||) (w_k - w) + N(0, (noise C)^2), over all floating tensors together. The noise is a
    discrete Gaussian on a grid of `noise C / 2^20`, drawn and added in whole numbers.

    `start`: the weights w that the site received; None for a change that is itself the update. A number that training
    made infinite or no number has not moved. Whole numbers, such as how many batches a layer has seen, cannot be
    noised: where there is noise they leave as they came.
    """
    _check_start(start)
    moves = {
        name: _move(tensor, None if start is None else start[name])
        for name, tensor in model.items()
        if tensor.is_floating_point()
    }
    share = clipping_share(_length(moves), mechanism.clip)
    if not mechanism.noise > 0:
        return {**model, **{name: _moved(name, share * move, model, start) for name, move in moves.items()}}
    sizes = [move.numel() for move in moves.values()]
    drawn = torch.from_numpy(discrete_gaussian(mechanism.entropy, sum(sizes))).double()
    step = mechanism.noise * mechanism.clip / 2.0**GRID_BITS
    result = _as_received(model, start)
    for (name, move), part in zip(moves.items(), torch.split(drawn, sizes)):
        # whole steps, cut towards 0 so that none is longer, and the noise joins them before anything is rounded: what
        # follows is computed from their sum and what the coordinator sent alone
        steps = torch.trunc(share * (1 - ROUNDING) * move / step) + part.reshape(move.shape)
        result[name] = _moved(name, steps * step, model, start)
    return result


def _moved(name: str, move: Tensor, model: Weights, start: Weights | None) -> Tensor:
    moved = move if start is None else start[name].double() + move
    if name.endswith("running_var"):
        moved = moved.clamp(min=SMALLEST_VARIANCE)
    return moved.to(model[name].dtype)


def _check_start(start: Weights | None) -> None:
    """Refuse weights that are not finite: their update would not be finite either."""
    for name, tensor in (start or {}).items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RunError(f"the weights sent hold numbers in '{name}' that are not finite: send others")


def _move(tensor: Tensor, start: Tensor | None) -> Tensor:
    """w_k - w in double precision; 0 where it is not finite, for infinity times a share of 0 would give NaN."""
    move = tensor.double() if start is None else tensor.double() - start.double()
    return torch.where(move.isfinite(), move, torch.zeros_like(move))


def _length(moves: Weights) -> float:
    """Infinite where squares overflow, and then the share is 0."""
    squares = [move.square().sum() for move in moves.values()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _as_received(model: Weights, start: Weights | None) -> Weights:
    return {name: torch.zeros_like(tensor) if start is None else start[name] for name, tensor in model.items()}
