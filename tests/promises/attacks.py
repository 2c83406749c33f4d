"""What a hostile site may send in the place of its honest answer, for any method: the attacks of docs/attacks.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsift.core.randomness import torch_generator
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope, Weights
from fedsift.runtime.in_process import InProcess


@dataclass
class Sight:
    """What an attacker sees: its own envelope, everybody's honest answers in this exchange, and its own past."""

    envelope: RequestEnvelope
    honest: Mapping[str, ReplyEnvelope]
    past: dict[str, Reply] = field(default_factory=dict)
    """Its first reply of each kind."""

    def others(self, name: str, number: int | None = None) -> list[Weights]:
        """The same model of the other sites' replies."""
        found = [getattr(a.reply, name, None) for s, a in self.honest.items() if s != self.envelope.site]
        if number is not None:
            found = [models[number] for models in found if models is not None]
        return [model for model in found if isinstance(model, dict)]


Change = Callable[[ReplyEnvelope, Sight], ReplyEnvelope | None]
"""The answer that is sent, or None where the attack finds nothing to change in a reply of this kind."""
Rule = Callable[[Weights, Weights, Sequence[Weights]], Weights]
"""A model, what it began from and the other sites' models, to the one that is sent."""


def _each(model: Weights, rule: Callable[[str, Tensor], Tensor]) -> Weights:
    return {
        name: rule(name, tensor).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in model.items()
    }


def on_models(rule: Rule) -> Change:
    """An attack on every model in a reply."""

    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
        reply, request = answer.reply, sight.envelope.request
        changes: dict[str, Any] = {}
        for entry in dataclasses.fields(reply) if reply is not None else ():
            value, start = getattr(reply, entry.name), getattr(request, entry.name, None)
            if isinstance(value, dict) and value:
                start = start or {name: torch.zeros_like(tensor) for name, tensor in value.items()}
                changes[entry.name] = rule(value, start, sight.others(entry.name))
            elif isinstance(value, tuple) and value and isinstance(value[0], dict):
                changes[entry.name] = tuple(
                    rule(own, sent, sight.others(entry.name, number))
                    for number, (own, sent) in enumerate(zip(value, start or ()))
                )
            elif entry.name == "models" and isinstance(value, Tensor) and isinstance(start, Tensor):
                changes[entry.name] = rule({"": value}, {"": start}, [])[""]
        if not changes or reply is None:
            return None
        return dataclasses.replace(answer, reply=dataclasses.replace(reply, **changes))

    return change


def scaled(factor: float) -> Change:
    """The honest update, so many times as long; negative: the other way."""

    def rule(own: Weights, start: Weights, others: Sequence[Weights]) -> Weights:
        return _each(own, lambda name, tensor: start[name] + factor * (tensor - start[name]))

    return on_models(rule)


def filled(value: float) -> Change:
    """Every number of the model the same."""
    return on_models(lambda own, start, others: _each(own, lambda name, t: torch.full_like(t, value)))


def shrunk(factor: float) -> Change:
    """The model itself, a thousand times smaller, say: zeros that are not quite zeros."""
    return on_models(lambda own, start, others: _each(own, lambda name, tensor: tensor * factor))


def _a_little(own: Weights, start: Weights, others: Sequence[Weights]) -> Weights:
    """Mean - 1.5 standard deviations of the honest models, value by value (Baruch et al. 2019)."""
    if len(others) < 2:
        return _each(own, lambda name, tensor: 2 * start[name] - tensor)

    def worse(name: str, tensor: Tensor) -> Tensor:
        every = torch.stack([other[name] for other in others if other[name].shape == tensor.shape])
        return every.mean(0) - 1.5 * every.std(0) if len(every) > 1 else tensor

    return _each(own, worse)


def _random(own: Weights, start: Weights, others: Sequence[Weights]) -> Weights:
    """A random direction, three times as long as the honest update."""
    generator = torch_generator(7, "random direction")

    def anywhere(name: str, tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        return start[name] + 3 * drawn * (tensor - start[name]).norm() / drawn.norm().clamp(min=1e-12)

    return _each(own, anywhere)


def _first(value: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> tuple[Any, bool]:
    """Change the first part of a reply that is wanted, however deep it lies."""
    if wanted(value):
        return change(value), True
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    elif isinstance(value, Reply):
        parts = [(entry.name, getattr(value, entry.name)) for entry in dataclasses.fields(value)]
    else:
        return value, False
    for key, part in parts:
        changed, hit = _first(part, wanted, change)
        if hit:
            if isinstance(value, dict):
                return {**value, key: changed}, True
            if isinstance(value, tuple):
                return (*value[:key], changed, *value[key + 1 :]), True
            return dataclasses.replace(value, **{key: changed}), True
    return value, False


def on_first(wanted: Callable[[Any], bool], rule: Callable[[Any], Any]) -> Change:
    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
        reply, hit = _first(answer.reply, wanted, rule)
        return dataclasses.replace(answer, reply=reply) if hit else None

    return change


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1


def _model(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(t, Tensor) for t in value.values())


def _scores(value: Any) -> bool:
    """What is told of losses, LIDs and the like: a number, or a tensor that is no model's."""
    return isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())


def on_all(wanted: Callable[[Any], bool], rule: Callable[[Any], Any]) -> Change:
    """The rule on every part of a reply outside its models, where there is one that is wanted."""

    def rewritten(part: Any) -> Any:
        if isinstance(part, Reply):
            parts = {entry.name: getattr(part, entry.name) for entry in dataclasses.fields(part)}
            said = {name: rewritten(value) for name, value in parts.items() if not _model(value)}
            return dataclasses.replace(part, **said)
        if isinstance(part, tuple):
            return tuple(item if _model(item) else rewritten(item) for item in part)
        return rule(part)

    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
        _, hit = _first(answer.reply, wanted, lambda v: v)
        return dataclasses.replace(answer, reply=rewritten(answer.reply)) if hit else None

    return change


def corrupted(value: float) -> Change:
    """One number of the first tensor (or the first number) becomes this."""

    def put(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return value
        changed = tensor.clone()
        changed.view(-1)[0] = value
        return changed

    return on_first(lambda v: _floats(v) or isinstance(v, float), put)


def scores(value: float) -> Change:
    """Every loss, LID, indicator and other score becomes this; models stay as they are."""

    def said(part: Any) -> Any:
        if isinstance(part, Tensor) and part.is_floating_point():
            return torch.full(part.shape, value, dtype=torch.float64)
        return value if isinstance(part, float) else part

    return on_all(_scores, said)


def counts(value: int) -> Change:
    """Every count becomes this: samples trained on, held-out counts, whatever is a whole number."""

    def said(part: Any) -> Any:
        if isinstance(part, Tensor) and part.dtype == torch.int64:
            return torch.full_like(part, value)
        return value if isinstance(part, int) and not isinstance(part, bool) else part

    def is_count(part: Any) -> bool:
        whole = isinstance(part, int) and not isinstance(part, bool)
        return whole or (isinstance(part, Tensor) and part.dtype == torch.int64 and part.dim() > 0)

    return on_all(is_count, said)


def replayed(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
    """Its first reply of this kind again, signed as if it were of now."""
    kind = f"{type(sight.envelope.request).__name__}/{sight.envelope.moment.stage}"
    if answer.reply is None:
        return None
    return dataclasses.replace(answer, reply=sight.past.setdefault(kind, answer.reply))


def later(change: Change) -> Change:
    """The attack from the second round on; honest before."""
    return lambda answer, sight: change(answer, sight) if sight.envelope.moment.round > 0 else None


def stale(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
    """An answer of another time, as it was signed then."""
    return dataclasses.replace(answer, moment_id="0.99:of another time")


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor.float()


FORM: Mapping[str, Change] = {
    "NaN": corrupted(float("nan")),
    "infinity": corrupted(float("inf")),
    "another shape": on_first(_floats, lambda t: torch.cat([t, t[:1]])),
    "a shape that stretches": on_first(_floats, lambda t: t.reshape(-1)[:1].reshape((1,) * t.dim())),
    "another type": on_first(_model, lambda m: {name: _double(tensor) for name, tensor in m.items()}),
    "float8": on_first(_floats, lambda t: t.to(torch.float8_e4m3fn)),
    "a key too few": on_first(_model, lambda m: dict(list(m.items())[1:])),
    "a key too many": on_first(_model, lambda m: {**m, "backdoor": torch.zeros(2)}),
    "1e12 samples": counts(10**12),
    "counts of 1e15": counts(10**15),
    "counts of -5": counts(-5),
    "scores of -1e300": scores(-1e300),
    "scores of 1e300": scores(1e300),
    "a stale answer": stale,
}
"""Attacks that the gate must refuse in every exchange where they find something to change."""

MODEL: Mapping[str, Change] = {
    "all zeros": filled(0.0),
    "constant 0.1": filled(0.1),
    "x1000": scaled(1000.0),
    "sign flip x15": scaled(-15.0),
    "x25": scaled(25.0),
    "x10": scaled(10.0),
    "sign flip x1": scaled(-1.0),
    "later sign flip": later(scaled(-1.0)),
    "nearly zeros": shrunk(1e-3),
    "random direction x3": on_models(_random),
    "a little is enough": on_models(_a_little),
    "replay": replayed,
}
"""Attacks of the right form: what they cost is measured."""
ATTACKS: Mapping[str, Change] = {**FORM, **MODEL}


def attacked(change: Change, hostile: Sequence[str]) -> type[InProcess]:
    """An engine some of whose sites answer so. Where an attack finds nothing to change, the honest answer is sent."""

    class Attacked(InProcess):
        past: dict[str, dict[str, Reply]]

        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            honest = super().deliver(envelopes, deadline)
            kept = self.__dict__.setdefault("past", {})
            sent = dict(honest)
            for site in hostile:
                if site in honest:
                    sight = Sight(envelopes[site], honest, kept.setdefault(site, {}))
                    sent[site] = change(honest[site], sight) or honest[site]
            return sent

    return Attacked


def absent(hostile: Sequence[str]) -> type[InProcess]:
    """An engine some of whose sites never answer: what a refused attack costs."""

    class Absent(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            return {site: answer for site, answer in answers.items() if site not in hostile}

    return Absent
