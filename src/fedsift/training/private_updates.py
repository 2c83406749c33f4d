"""The last step of a site's policy for every kind of statistic: models and features are clipped, figures bounded and
rounded, and with noise all of them leave noised (differential privacy)."""

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
from fedsift.protocol.messages import SPANS, Reply, Request, Weights

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


NOISED = ("model", "features", "share", "loss", "score", "likelihood")
"""Kinds of statistic that are real numbers: with noise they leave noised and paid for, each like an update."""
DIGITS = {"share": 2, "loss": 2, "score": 2, "likelihood": 0}
"""Digits after the point with which a figure leaves under a minimum count."""


@dataclass(frozen=True)
class PrivateReply:
    """A reply after the last step of a site's policy."""

    reply: Reply
    updates: int
    """How many vectors in it were clipped or noised: each costs what an update does."""
    fields: tuple[str, ...]
    """Where they are, as `Reply.field`."""


def statistic_of(field: dataclasses.Field[Any]) -> str:
    """The kind of a reply's field; raises RunError for one that has none."""
    kind = field.metadata.get("statistic")
    if kind is None:
        raise RunError(f"the field '{field.name}' does not say what kind of statistic it is")
    return str(kind)


def noised_fields(kind: type[Reply]) -> list[str]:
    """Fields of a reply's class that leave noised under a policy with noise."""
    return [f.name for f in dataclasses.fields(kind) if statistic_of(f) in NOISED]


def protected(
    reply: Reply,
    request: Request[Any],
    mechanism: NoiseMechanism | None,
    *,
    min_count: int = 0,
    samples: int = 1,
) -> PrivateReply:
    """The reply after the last step for each field's kind of statistic, and so the replies to what rode on the request.

    Models and features are clipped and noised, figures bounded, rounded (with a minimum count) and noised. `samples`:
    how many a sum of the site is over at most.
    """
    changes: dict[str, Any] = {}
    names: list[str] = []
    count = 0
    for f in dataclasses.fields(reply):
        value, kind = getattr(reply, f.name), statistic_of(f)
        if kind == "replies" and isinstance(value, tuple):
            besides = zip(request.besides, value, strict=True)
            inner = [protected(own, to, mechanism, min_count=min_count, samples=samples) for to, own in besides]
            changes[f.name] = tuple(one.reply for one in inner)
            names += [name for one in inner for name in one.fields]
            count += sum(one.updates for one in inner)
        elif value is None or kind not in NOISED:
            continue
        elif kind in ("model", "features"):
            if mechanism is None or not len(value):
                continue
            start = f.metadata["update"]
            changes[f.name], found = _each(value, getattr(request, start) if start else None, mechanism)
            names.append(f"{type(reply).__name__}.{f.name}")
            count += found
        else:
            span = SPANS[kind] * (samples if kind == "likelihood" else 1)
            noised = mechanism if mechanism is not None and mechanism.noise > 0 else None
            changes[f.name] = figures(value, f, span, noised, DIGITS[kind] if min_count > 1 else None)
            if noised is not None:
                names.append(f"{type(reply).__name__}.{f.name}")
                count += 1
    return PrivateReply(dataclasses.replace(reply, **changes) if changes else reply, count, tuple(names))


def figures(
    value: Any, field: dataclasses.Field[Any], span: float, mechanism: NoiseMechanism | None, digits: int | None
) -> Any:
    """Numbers that lie within `span` of each other, bounded, noised as an update that long, rounded: of the same type.

    They are below 0 where the field says that 0 is the most, else above it. Without noise and digits nothing changes.
    """
    if mechanism is None and digits is None:
        return value
    numbers = torch.as_tensor(value, dtype=torch.float64)
    low, high = (-span, 0.0) if field.metadata["most"] == 0 else (0.0, span)
    numbers = numbers.nan_to_num(nan=high, posinf=high, neginf=low).clamp(low, high)
    if mechanism is not None:
        middle, clip = (low + high) / 2, span / 2 * max(numbers.numel(), 1) ** 0.5
        moved = dataclasses.replace(mechanism, clip=clip)
        numbers = (protected_model({"": numbers - middle}, None, moved)[""] + middle).clamp(low, high)
    numbers = numbers.round(decimals=2 if digits is None else digits)
    if isinstance(value, Tensor):
        return numbers.to(value.dtype)
    return type(value)(numbers.item())


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
