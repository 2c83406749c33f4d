"""What a broken or hostile site may send, as changes to an honest answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsift.protocol.messages import Reply, ReplyEnvelope


def _first(value: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> tuple[Any, bool]:
    """Change the first part of a reply that is wanted, however deep it lies."""
    if wanted(value):
        return change(value), True
    if isinstance(value, dict):
        for key, item in value.items():
            changed, hit = _first(item, wanted, change)
            if hit:
                return {**value, key: changed}, True
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            changed, hit = _first(item, wanted, change)
            if hit:
                return (*value[:i], changed, *value[i + 1 :]), True
    if isinstance(value, Reply):
        for field in dataclasses.fields(value):
            changed, hit = _first(getattr(value, field.name), wanted, change)
            if hit:
                return dataclasses.replace(value, **{field.name: changed}), True
    return value, False


def _is_float_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1


def _with_reply(answer: ReplyEnvelope, reply: Reply) -> ReplyEnvelope:
    return dataclasses.replace(answer, reply=reply)


def nan(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    def poison(tensor: Tensor) -> Tensor:
        poisoned = tensor.clone()
        poisoned.view(-1)[0] = float("nan")
        return poisoned

    reply, hit = _first(answer.reply, _is_float_tensor, poison)
    if not hit:
        reply, hit = _first(answer.reply, lambda v: isinstance(v, float), lambda v: float("nan"))
    return _with_reply(answer, reply) if hit else None


def wrong_shape(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    reply, hit = _first(answer.reply, _is_float_tensor, lambda t: torch.cat([t, t[:1]]))
    return _with_reply(answer, reply) if hit else None


def broadcastable(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    """A shape that arithmetic would silently stretch."""
    reply, hit = _first(answer.reply, _is_float_tensor, lambda t: t.reshape(-1)[:1].reshape((1,) * t.dim()))
    return _with_reply(answer, reply) if hit else None


def negative_count(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    if not isinstance(getattr(answer.reply, "samples", None), int):
        return None
    return _with_reply(answer, dataclasses.replace(answer.reply, samples=-5))  # type: ignore[type-var]


def stale(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    return dataclasses.replace(answer, moment_id="0.99:of another time")


def other_run(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    return dataclasses.replace(answer, run="another run")


def missing_key(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    def drop(weights: dict[str, Any]) -> dict[str, Any]:
        return dict(list(weights.items())[1:])

    reply, hit = _first(answer.reply, lambda v: isinstance(v, dict) and len(v) > 0, drop)
    return _with_reply(answer, reply) if hit else None


def huge(answer: ReplyEnvelope) -> ReplyEnvelope | None:
    """An update that is finite and well-formed, but a thousand times too long."""
    reply, hit = _first(
        answer.reply,
        lambda v: isinstance(v, dict) and len(v) > 0,
        lambda w: {k: t * 1000 if t.is_floating_point() else t for k, t in w.items()},
    )
    return _with_reply(answer, reply) if hit else None


TAMPERS: dict[str, tuple[Callable[[ReplyEnvelope], ReplyEnvelope | None], str]] = {
    "nan": (nan, "not finite"),
    "wrong shape": (wrong_shape, "shape"),
    "broadcastable shape": (broadcastable, "shape"),
    "negative count": (negative_count, "samples = -5"),
    "stale": (stale, "stale"),
}
"""Name to the change and a word that the gate's reason must hold."""
