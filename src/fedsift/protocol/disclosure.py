"""Derives what can leave a site from the declarations of a method."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.protocol.messages import Reply, Request
from fedsift.protocol.method import Asks, Method

EVALUATION = "evaluation"
"""Stands for a stage's name where a table says when a reply is sent."""

DisclosureRow = list[str]
"""Reply, field, what it discloses."""


def undeclared(request: Request[Any], asks: Asks) -> str | None:
    """The name of a kind of request in this one (itself, or one inside it) that is not declared; None if all are."""
    if type(request) not in asks:
        return type(request).__name__
    return next((name for part in request.besides if (name := undeclared(part, asks))), None)


def check_declared(stage: str, requests: Iterable[Request[Any]], asks: Asks) -> None:
    """Refuse to send what the stage does not declare."""
    for request in requests:
        name = undeclared(request, asks)
        if name is not None:
            known = ", ".join(kind.__name__ for kind in asks) or "nothing"
            raise ConfigError(
                f"stage '{stage}' sends {name}, which it does not declare (it declares {known}): "
                "add it to the `asks` of that Stage, so that sites know what leaves them"
            )


def replies_of(asks: Sequence[type[Request[Any]]]) -> list[type[Reply]]:
    """Classes of the replies to these requests, each once, with the replies that their fields are declared to hold.

    `Reply` itself as a field's type (a training visit's follow-ups) adds nothing: follow-ups are declared requests.
    """
    found: dict[type[Reply], None] = {}
    waiting = [request.reply_type for request in reversed(asks)]
    while waiting:
        cls = waiting.pop()
        if cls in found:
            continue
        found[cls] = None
        waiting += reversed(_replies_in(list(typing.get_type_hints(cls).values())))
    return list(found)


def _replies_in(hints: Sequence[Any]) -> list[type[Reply]]:
    found: list[type[Reply]] = []
    for hint in hints:
        if isinstance(hint, type) and issubclass(hint, Reply) and hint is not Reply:
            found.append(hint)
        found += _replies_in(typing.get_args(hint))
    return found


def declared(method: Method, evaluates: Asks = ()) -> dict[str, Asks]:
    """Kinds of request by stage, in the order of the stages, then those of the evaluation.

    Stages without rounds ask nothing. `evaluates`: what the engine asks to evaluate a global model, if it must.
    """
    asks: dict[str, Asks] = {}
    for stage in method.stages():
        if stage.rounds > 0:
            asks[stage.name] = tuple(dict.fromkeys((*asks.get(stage.name, ()), *stage.asks)))
    if method.evaluates is None:
        return asks
    evaluation = (*method.evaluates, *evaluates) if method.judges_both else method.evaluates or evaluates
    return {**asks, EVALUATION: evaluation} if evaluation else asks


def declared_replies(method: Method, evaluates: Asks = ()) -> dict[str, list[type[Reply]]]:
    """Reply classes by stage."""
    return {stage: replies_of(asks) for stage, asks in declared(method, evaluates).items()}


def disclosure_rows(by_stage: Mapping[str, Sequence[type[Reply]]]) -> list[DisclosureRow]:
    """Reply, field and its words, straight from the reply classes: the table cannot drift from the code."""
    classes = dict.fromkeys(cls for replies in by_stage.values() for cls in replies)
    return [
        [cls.__name__, field.name, field.metadata.get("what", "")]
        for cls in classes
        for field in dataclasses.fields(cls)
    ]
