"""Whatever a site answers, the worst that happens is that its reply is set aside with a reason."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift.core.type_checks import LONGEST_TEXT, declarations, schema_error
from fedsift.methods.fedcorr import Scored, ScoreModel
from fedsift.protocol.messages import (
    Reply,
    ReplyEnvelope,
    RequestEnvelope,
    RequestMoment,
    SiteFacts,
    Statistic,
    Weights,
    disclosed,
)
from fedsift.runtime.gate.protection import Protection
from fedsift.runtime.gate.reply_checks import refusal
from fedsift.training.own_models import EvaluateOwn, OwnEvaluated
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate, Evaluated, Indicate, Indicators, Train, Trained

FACTS = SiteFacts("north", 10, held_out=4, test=6, classes=3)
WEIGHTS: Weights = {"w": torch.zeros(2)}
TRAIN = Train(WEIGHTS, Recipe())
RIGHT, TOTAL, NONE = torch.tensor([2, 1, 0]), torch.tensor([2, 1, 1]), torch.zeros(2, dtype=torch.int64)


def counts(right: Any = RIGHT, total: Any = TOTAL, rest: Any = NONE, loss: Any = 0.5, **more: Any) -> Any:
    return Evaluated(right, total, rest, loss, **{"samples": 4, "min_count": 0, **more})


def envelope(request: Any) -> RequestEnvelope:
    return RequestEnvelope("run", "north", RequestMoment(1, "train", 0, 0), "", request)


def judged(reply: Any, request: Any = TRAIN, facts: SiteFacts = FACTS, **changes: Any) -> str | None:
    asked = envelope(request)
    return refusal(ReplyEnvelope(**{**_signed(asked), "reply": reply, **changes}), asked, facts)


def _signed(asked: RequestEnvelope) -> dict[str, Any]:
    return {"run": asked.run, "site": asked.site, "moment_id": asked.moment.id}


def trained(**changes: Any) -> Trained:
    return dataclasses.replace(Trained({"w": torch.ones(2)}, 10, 0.5), **changes)


def scored(lid: Any) -> Scored:
    return Scored(lid, 10)


def test_honest_replies_pass() -> None:
    assert judged(trained()) is None
    assert judged(scored(12.5), ScoreModel()) is None
    assert judged(counts(), Evaluate(WEIGHTS)) is None
    lumped = counts(torch.tensor([2, 0, 0]), torch.tensor([2, 0, 0]), torch.tensor([1, 2]))
    assert judged(lumped, Evaluate(WEIGHTS)) is None
    assert judged(Indicators(torch.zeros(3), torch.ones(3) > 0, 10), Indicate(None, 3)) is None


@pytest.mark.parametrize(
    ("reply", "request_", "word"),
    [
        (trained(loss="0.5"), TRAIN, "loss is a str"),
        (trained(samples=None), TRAIN, "samples is a NoneType"),
        (trained(loss=10**400), TRAIN, "loss is not finite"),
        (trained(loss=1e308), TRAIN, "loss is beyond"),
        (trained(loss=torch.tensor(0.5)), TRAIN, "loss is a Tensor"),
        (trained(samples=10**400), TRAIN, "samples is beyond"),
        (trained(weights={"w": torch.ones(2).to(torch.float8_e4m3fn)}), TRAIN, "float8_e4m3fn"),
        (trained(weights={"w": torch.ones(2).to_sparse()}), TRAIN, "weights['w'] is a tensor of type"),
        (trained(weights={"w": torch.tensor([1.0, torch.nan])}), TRAIN, "not finite"),
        (trained(weights={"w": torch.tensor([1.0, 1e38])}), TRAIN, "holds numbers beyond"),
        (trained(weights={"w": np.ones(2)}), TRAIN, "is a ndarray"),
        (trained(weights=[torch.ones(2)]), TRAIN, "weights is a list"),
        (trained(then=(SiteFacts("a", 1),)), TRAIN, "not a Reply"),
        (trained(then=None), TRAIN, "then is a NoneType"),
        (scored(1e308), ScoreModel(), "lid is beyond"),
        (scored(1e12), ScoreModel(), "lid is beyond 1e+09"),
        (scored(-1.0), ScoreModel(), "lid = -1 is outside 0.0 to"),
        (scored(-1e300), ScoreModel(), "lid is beyond"),
        (scored("12"), ScoreModel(), "lid is a str"),
        (counts(torch.ones(4, dtype=torch.int64)), Evaluate(WEIGHTS), "right has shape (4,)"),
        (counts(total=torch.ones(3, 2, dtype=torch.int64)), Evaluate(WEIGHTS), "total has shape (3, 2)"),
        (counts(rest=torch.ones(3, dtype=torch.int64)), Evaluate(WEIGHTS), "rest has shape (3,)"),
        (counts(RIGHT * 10**14, TOTAL * 10**14), Evaluate(WEIGHTS), "add up to 400000000000000, 4 are due"),
        (counts(RIGHT * 2**53), Evaluate(WEIGHTS), "holds numbers beyond"),
        (counts(RIGHT - 1), Evaluate(WEIGHTS), "right = -1 is outside 0"),
        (counts(RIGHT + 1), Evaluate(WEIGHTS), "more samples are right than there are"),
        (counts(loss=-0.5), Evaluate(WEIGHTS), "loss = -0.5 is outside 0.0"),
        (counts(samples=5), Evaluate(WEIGHTS), "samples = 5 is outside 0 to 4"),
        (counts(min_count=5), Evaluate(WEIGHTS), "min_count = 5 is outside 0 to 4"),
        (counts(min_count=-1), Evaluate(WEIGHTS), "min_count = -1 is outside 0"),
        (OwnEvaluated(RIGHT[:2], TOTAL, NONE, 0.5, 6, 0, "test set"), EvaluateOwn(), "right has shape (2,)"),
        (OwnEvaluated(RIGHT, TOTAL, NONE, 0.5, 6, 0, "test set"), EvaluateOwn(), "add up to 4, 6 are due"),
        (OwnEvaluated(RIGHT, TOTAL, NONE, 0.5, 4, 0, ["held out"]), EvaluateOwn(), "where is a list"),
        (Indicators(torch.full((3,), -1e300, dtype=torch.float64), torch.ones(3) > 0, 10), Indicate(None, 3), "beyond"),
        (Indicators(torch.full((3,), 1e12), torch.ones(3) > 0, 10), Indicate(None, 3), "values = 1e+12 is outside"),
        (Indicators(torch.full((3,), -5.0), torch.ones(3) > 0, 10), Indicate(None, 3), "values = -5 is outside 0.0"),
        (None, TRAIN, "Train was answered by NoneType"),
        (FACTS, TRAIN, "is a SiteFacts"),
        ("hello", TRAIN, "reply is a str"),
        (scored(1.0), TRAIN, "Train was answered by Scored"),
    ],
)  # fmt: skip
def test_what_is_not_declared_is_set_aside_with_its_reason(reply: Any, request_: Any, word: str) -> None:
    reason = judged(reply, request_)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize("field", ["run", "site", "moment_id", "failure"])
@pytest.mark.parametrize("value", [torch.zeros(2), None, 7, ["x"]])
def test_what_a_reply_is_signed_with_must_be_text(field: str, value: Any) -> None:
    reason = judged(trained(), **{field: value})
    assert reason is not None
    assert reason.startswith(f"{field} is a {type(value).__name__}")


def test_a_sites_own_words_are_cut_and_cannot_act() -> None:
    reason = judged(None, failure="\x1b[2Jdisk\r\nfull \u202e" + "x" * 50_000_000)
    assert reason is not None
    assert reason.startswith("\\x1b[2Jdisk full \\u202e")
    assert len(reason) == LONGEST_TEXT and reason.isprintable()
    odd = judged(trained(weights={"w\x1b[31m" + "y" * 900: torch.ones(2)}))
    assert odd is not None and odd.isprintable()


@dataclasses.dataclass(frozen=True)
class GateRaising(Reply):
    number: float = disclosed("a number", "setting", default=1.0)

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        raise KeyError("not there")

    def moves(self, request: Any) -> tuple[tuple[Weights, Weights], ...]:
        raise OverflowError("too long")


def test_an_exception_while_checking_is_a_refusal() -> None:
    asked = dataclasses.replace(envelope(TRAIN))
    object.__setattr__(asked.request, "reply_type", GateRaising)
    try:
        assert "cannot be checked: KeyError" in str(judged(GateRaising(), asked.request))
    finally:
        object.__delattr__(asked.request, "reply_type")
    good = {site: trained() for site in "abc"}
    every = {site: envelope(TRAIN) for site in "abcd"}
    found = Protection().refusals("train", {**good, "d": GateRaising()}, every, lambda site: ())
    assert list(found) == ["d"] and "OverflowError: too long" in found["d"]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just(torch.zeros(2))
    | st.just(torch.tensor(2**62))
    | st.just(RIGHT)
    | st.just(trained())
    | st.just(FACTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JUNK, JUNK, JUNK)
def test_no_reply_whatever_raises(first: Any, second: Any, third: Any) -> None:
    replies = (
        (Trained(first, second, third, first), TRAIN),
        (Evaluated(first, second, third, first, second, third), Evaluate(WEIGHTS)),
        (Indicators(first, second, third), Indicate(None, 3)),
        (Scored(first, second), ScoreModel()),
        (first, TRAIN),
    )
    for reply, request in replies:
        reason = judged(reply, request)
        assert reason is None or (reason.isprintable() and len(reason) <= LONGEST_TEXT)


def _reply_classes() -> list[type[Reply]]:
    """Every reply of the program, those of methods that are added later included."""
    for module in pkgutil.walk_packages(fedsift.__path__, "fedsift."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if str(error.name).startswith("fedsift"):
                    raise
    found, waiting = [], [Reply]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        found += [cls] if cls.__module__.startswith("fedsift.") and cls is not Reply else []
    return sorted(found, key=lambda cls: cls.__name__)


def _leaves(hint: Any) -> Iterator[Any]:
    inside = [part for part in typing.get_args(hint) if part is not Ellipsis]
    if typing.get_origin(hint) is typing.Literal or not inside:
        yield hint
    for part in inside if typing.get_origin(hint) is not typing.Literal else []:
        yield from _leaves(part)


def test_a_field_without_a_kind_of_statistic_cannot_be_written() -> None:
    with pytest.raises(TypeError, match=r"Untold\.number does not say what it discloses"):

        class Untold(Reply):
            number: float = 0.0

    with pytest.raises(TypeError, match="statistic"):
        disclosed("a number")  # type: ignore[call-arg]


def test_every_reply_of_the_program_declares_what_can_be_checked() -> None:
    classes = _reply_classes()
    assert {"Trained", "Evaluated", "Introduction", "Scored", "ClassPrototypes"} <= {cls.__name__ for cls in classes}
    for cls in classes:
        for field, declared in declarations(cls):
            where = f"{cls.__name__}.{field.name}"
            assert field.metadata.get("what"), f"{where} does not say what it tells: use disclosed()"
            assert field.metadata["statistic"] in typing.get_args(Statistic), where
            assert not field.metadata["spare"] or schema_error(None, declared, where) is None, where
            for leaf in _leaves(declared):
                # an object fits nothing: a hint that can be checked says so, another says that it cannot be checked
                assert str(schema_error(object(), leaf, where)).startswith(f"{where} is a object"), (
                    where,
                    leaf,
                )
