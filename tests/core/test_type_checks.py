"""What a message may hold is what its class declares, and nothing else gets by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsift.core.codec import WireFormat
from fedsift.core.type_checks import LARGEST_WHOLE, LONGEST_TEXT, schema_error, shown
from fedsift.protocol.messages import Reply, ReplyEnvelope, SiteFacts, Weights, disclosed


@dataclass(frozen=True)
class TypedInner(Reply):
    count: int = disclosed("a count", "count", default=1)


@dataclass(frozen=True)
class TypedReply(Reply):
    weights: Weights = disclosed("a model", "model")
    loss: float = disclosed("a loss", "loss")
    where: Literal["here", "there"] = disclosed("a place", "setting", default="here")
    sizes: tuple[int, ...] = disclosed("sizes", "count", default=())
    pair: tuple[int, str] = disclosed("a pair", "setting", default=(1, "a"))
    maybe: Tensor | None = disclosed("perhaps a tensor", "setting", default=None)
    then: tuple[Reply, ...] = disclosed("further replies", "replies", default=())
    flag: bool = disclosed("a flag", "setting", default=False)


def reply(**changes: Any) -> TypedReply:
    return TypedReply(**{"weights": {"w": torch.zeros(2)}, "loss": 0.5, **changes})


def test_what_is_declared_fits() -> None:
    full = reply(
        sizes=(1, 2),
        maybe=torch.ones(2, dtype=torch.bool),
        then=(TypedInner(3), reply()),
        pair=(0, "x"),
        loss=1,
    )
    assert schema_error(full, TypedReply) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "0.5"}, "loss is a str (0.5), not a number"),
        ({"loss": None}, "loss is a NoneType (None), not a number"),
        ({"loss": True}, "loss is a bool (True), not a number"),
        ({"loss": 10**400}, "loss is not finite"),
        ({"loss": float("nan")}, "loss is not finite"),
        ({"loss": torch.tensor(0.5)}, "loss is a Tensor (...), not a number"),
        ({"weights": {"w": torch.zeros(2).to(torch.float8_e4m3fn)}}, "weights['w'] is a tensor of type"),
        ({"weights": {"w": torch.tensor([torch.inf])}}, "weights['w'] holds numbers that are not finite"),
        ({"weights": {"w": [1.0]}}, "weights['w'] is a list (1 entries), not a tensor"),
        ({"weights": {3: torch.zeros(1)}}, "a key of weights is a int (3), not a text"),
        ({"weights": None}, "weights is a NoneType (None), not a dictionary"),
        ({"weights": {"w": torch.zeros(2).to_sparse()}}, "weights['w'] is a tensor of type"),
        ({"weights": {"w": torch.zeros(2, dtype=torch.complex64)}}, "weights['w'] is a tensor of type"),
        ({"where": "elsewhere"}, "where is a str (elsewhere)"),
        ({"where": 1}, "where is a int (1)"),
        ({"sizes": [1, 2]}, "sizes is a list (2 entries), not a tuple"),
        ({"sizes": (1, 2.5)}, "sizes[1] is a float (2.5), not a whole number"),
        ({"sizes": (LARGEST_WHOLE + 1,)}, "sizes[0] is beyond"),
        ({"pair": (1,)}, "pair is a tuple (1 entries), not a tuple of 2"),
        ({"maybe": "no"}, "maybe is a str (no), not a tensor"),
        ({"then": (SiteFacts("a", 1),)}, "then[0] is a SiteFacts (...), not a Reply"),
        ({"then": (TypedInner("many"),)}, "then[0].count is a str (many), not a whole number"),
        ({"flag": 1}, "flag is a int (1), not a bool"),
    ],
)
def test_what_is_not_declared_is_named(changes: dict[str, Any], words: str) -> None:
    reason = schema_error(reply(**changes), TypedReply)
    assert reason is not None
    assert reason.startswith(words)


def test_a_message_of_another_class_does_not_fit() -> None:
    assert "not a TypedReply" in str(schema_error(TypedInner(), TypedReply))
    assert schema_error(TypedInner(), Reply) is None
    assert "not a Reply" in str(schema_error(None, Reply))


def test_texts_that_come_with_an_answer_are_texts() -> None:
    good = ReplyEnvelope("run", "site", "0.0:train", None, "it failed")
    assert schema_error(good, ReplyEnvelope) is None
    assert "failure" in str(schema_error(ReplyEnvelope("run", "site", "m", None, torch.zeros(1)), ReplyEnvelope))  # type: ignore[arg-type]
    assert "run" in str(schema_error(ReplyEnvelope(torch.zeros(1), "site", "m", None), ReplyEnvelope))  # type: ignore[arg-type]
    assert "characters" in str(
        schema_error(ReplyEnvelope("r", "s", "m", None, "x" * (LONGEST_TEXT + 1)), ReplyEnvelope)
    )


def test_ranges_are_declared_with_the_field() -> None:
    @dataclass(frozen=True)
    class TypedRanged(WireFormat):
        share: float = disclosed("a share", "share", least=0.0, most=1.0)
        counts: Tensor = disclosed("counts", "count", least=0)

    def reason(share: float, counts: list[int]) -> str | None:
        return schema_error(TypedRanged(share, torch.tensor(counts)), TypedRanged)

    assert reason(0.5, [1, 2]) is None
    assert reason(0.5, []) is None
    assert reason(1.5, [1]) == "share = 1.5 is outside 0.0 to 1.0"
    assert reason(0.5, [3, -1]) == "counts = -1 is outside 0 to inf"


def test_a_field_without_a_type_is_refused_and_depth_is_bounded() -> None:
    assert schema_error(1, Any) == "the reply declares no type"
    nested: Any = reply()
    for _ in range(30):
        nested = reply(then=(nested,))
    assert "levels deep" in str(schema_error(nested, TypedReply))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=5)
    | st.just(torch.zeros(2))
    | st.just(np.zeros(2))
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JUNK, JUNK, JUNK)
def test_nothing_that_can_be_sent_raises(first: Any, second: Any, third: Any) -> None:
    found = schema_error(reply(weights=first, loss=second, then=third), TypedReply)
    assert found is None or (isinstance(found, str) and len(found) < 1000 and found.isprintable())


def test_texts_from_outside_are_shown_short_and_without_control_characters() -> None:
    assert shown("a\x1b[31mred\n") == "a?[31mred?"
    assert len(shown("x" * 10_000)) == 60
    assert shown(10**5000) == "very large"
