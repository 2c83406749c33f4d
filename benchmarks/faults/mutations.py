"""What a broken or hostile site may put in the place of an honest answer: seeded, for any method's replies.

A mutation changes one part of an answer (a number, a tensor, a key, a whole reply), what it is signed with, or the
bytes that it travels as. Most have a wrong form; some are of the right form and merely false.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tests.promises.attacks import ATTACKS, Sight
from torch import Tensor

from fedsift.protocol.messages import Reply, ReplyEnvelope, SiteFacts
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.messages import EncodedMessage

EXECUTED: list[str] = []
"""Grows if anything that was sent is ever executed."""


class Bomb:
    """A pickle that tells when it is opened."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return EXECUTED.append, ("a pickle was opened",)


def deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = (found,)
    return found


TEXTS = (
    "",
    "x" * 200_000,
    "\x1b[2J[/foo]<script>",
    "\ud800",
    "\0",
    "../../etc",
    "1e999",
    "nan",
    "{}",
    "é" * 999,
)
NUMBERS = (
    0,
    -1,
    1,
    True,
    2**31,
    2**53 + 1,
    -(2**63),
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    -1e300,
    1e308,
    1e-320,
)
NUMBERS_OF_A_TENSOR = (float("nan"), float("inf"), -float("inf"), 3e38, 1e30, -1.0, 0.0, 1e-45)
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: [],
    lambda: (),
    dict,
    object,
    lambda: b"\x80\x04.",
    lambda: 1j,
    lambda: {1, 2},
    lambda: np.ones(3),
    lambda: np.array([object()], dtype=object),
    lambda: torch.zeros(2),
    lambda: deep(30),
    lambda: [[[]]] * 50,
    lambda: {"": {"": {}}},
    lambda: dict.fromkeys(range(2000)),
    lambda: tuple(range(100_001)),
    lambda: SiteFacts("north", 10),
    lambda: int,
    lambda: print,
    lambda: pickle.dumps(Bomb()),
)
TENSORS: tuple[Callable[[Tensor], Any], ...] = (
    lambda t: t.reshape(-1),
    lambda t: t.reshape(-1)[:1],
    lambda t: t.reshape(-1)[:0],
    lambda t: t.unsqueeze(0),
    lambda t: torch.cat([t.reshape(-1), t.reshape(-1)]),
    lambda t: t.reshape(-1)[:1].expand(10**6),
    lambda t: t.transpose(0, -1) if t.dim() > 1 else t.flip(0) if t.dim() else t + 1,
    lambda t: t.double(),
    lambda t: t.half(),
    lambda t: t.to(torch.complex64),
    lambda t: t.to(torch.float8_e4m3fn),
    lambda t: t.to(torch.int64),
    lambda t: t.bool(),
    lambda t: t.to_sparse() if t.dim() else t,
    lambda t: t.to("meta"),
    lambda t: t.numpy(),
    lambda t: t.tolist(),
    lambda t: -t if t.dtype != torch.bool else ~t,
    lambda t: torch.zeros_like(t),
    lambda t: torch.ones_like(t),
    lambda t: t * 1000,
    lambda t: t + 1,
    lambda t: t.reshape(-1)[torch.randperm(t.numel(), generator=torch.Generator().manual_seed(1))].reshape(t.shape),
    lambda t: torch.nn.Parameter(t) if t.is_floating_point() else t,
)  # fmt: skip


class Mutations:
    """A stream of changed answers, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pool: list[Reply] = []
        """Replies of other exchanges, methods and sites."""

    def of(self, answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        """One changed answer; how much it was changed is a matter of luck."""
        kinds = (self._part, self._part, self._part, self._signature, self._attack, self._bytes, self._bytes)
        changed = kinds[self.random.integers(len(kinds))](answer, sight)
        return self._part(changed, sight) if self.random.random() < 0.1 else changed

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def _signature(self, answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        field = self._pick(("run", "site", "moment_id", "failure", "reply"))
        if field == "reply" and self.pool:
            return dataclasses.replace(answer, reply=self._pick(self.pool))
        if field == "moment_id" and self.random.random() < 0.5:
            return dataclasses.replace(answer, moment_id=self._pick(("0.0:train", "-1.0:", "1.0:train", "9.9:x")))
        return dataclasses.replace(answer, **{field: self._junk()})

    def _attack(self, answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        """One of docs/attacks.md; replays among them."""
        return ATTACKS[self._pick(list(ATTACKS))](answer, sight) or answer

    def _junk(self) -> Any:
        kind = self.random.integers(3)
        return self._pick(TEXTS) if kind == 0 else self._pick(NUMBERS) if kind == 1 else self._pick(OTHERS)()

    # One part ---------------------------------------------------------------------------------------------------

    def _part(self, answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        return dataclasses.replace(answer, reply=self._changed(answer.reply, 0))

    def _changed(self, value: Any, depth: int) -> Any:
        """The value with one part of it changed, chosen on a random way down."""
        if self.random.random() < 0.1 * min(depth, 1):
            return self._junk()
        if isinstance(value, Reply) and dataclasses.fields(value):
            names = [entry.name for entry in dataclasses.fields(value)]
            name = self._pick(names)
            return dataclasses.replace(value, **{name: self._changed(getattr(value, name), depth + 1)})
        if isinstance(value, dict):
            return self._mapping(value, depth)
        if isinstance(value, tuple | list):
            return self._sequence(value, depth)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, int | float) and self.random.random() < 0.6:
            return self._pick((*NUMBERS, value + 1, -value, value * 10))
        return self._junk()

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        choice = self.random.random()
        if value and choice < 0.7:
            key = self._pick(list(value))
            return {**value, key: self._changed(value[key], depth + 1)}
        if value and choice < 0.8:
            return dict(list(value.items())[1:])
        if value and choice < 0.9:
            return {self._junk_key(): item for item in value.values()}
        return {**value, self._junk_key(): self._junk()}

    def _junk_key(self) -> Any:
        return self._pick((*TEXTS, 0, None, 1.5, (1, 2)))

    def _sequence(self, value: Any, depth: int) -> Any:
        choice, items = self.random.random(), list(value)
        if items and choice < 0.6:
            place = int(self.random.integers(len(items)))
            items[place] = self._changed(items[place], depth + 1)
        elif choice < 0.75:
            items = items[1:]
        elif choice < 0.9:
            items = [*items, *items, self._junk()]
        else:
            return list(value) if isinstance(value, tuple) else tuple(value)
        return type(value)(items)

    def _tensor(self, value: Tensor) -> Any:
        try:
            if self.random.random() < 0.4 and value.numel() and value.is_floating_point():
                changed = value.clone().reshape(-1)
                place = slice(None) if self.random.random() < 0.3 else int(self.random.integers(len(changed)))
                changed[place] = self._pick(NUMBERS_OF_A_TENSOR)
                return changed.reshape(value.shape)
            return self._pick(TENSORS)(value)
        except (
            RuntimeError,
            TypeError,
            NotImplementedError,
        ):  # not every tensor can be made into every other, and it may have been changed before
            return self._junk()

    # Bytes ------------------------------------------------------------------------------------------------------

    def _bytes(self, answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        """The answer as it would be read from a message whose bytes were changed; what cannot be read says so."""
        try:
            encoded = encode(answer)
        except (TypeError, ValueError, RuntimeError):  # it was changed before and cannot travel
            return answer
        words = sight.envelope
        try:
            found = decode(self._encoded(encoded))
        except ValueError as error:
            return ReplyEnvelope(words.run, words.site, words.moment.id, None, str(error))
        if isinstance(found, ReplyEnvelope):
            return found
        return ReplyEnvelope(
            words.run, words.site, words.moment.id, None, f"the node answered with {type(found).__name__}"
        )

    def _encoded(self, encoded: EncodedMessage) -> EncodedMessage:
        kind = self.random.integers(6)
        if kind == 0:
            return EncodedMessage(self._tree(encoded.tree), encoded.tensors)
        if kind == 1:
            return EncodedMessage(encoded.tree, self._pick((pickle.dumps(Bomb()), b"", b"\0" * 64, b"\xff" * 8 + b"{")))
        if kind == 2:
            return EncodedMessage(encoded.tree, encoded.tensors[: int(self.random.integers(len(encoded.tensors) + 1))])
        if kind == 3:
            return EncodedMessage(encoded.tree[: int(self.random.integers(len(encoded.tree) + 1))], encoded.tensors)
        if kind == 4:
            return EncodedMessage(encoded.tree, self._flipped(encoded.tensors))
        text = self._flipped(encoded.tree.encode()).decode("utf-8", "replace")
        return EncodedMessage(text, encoded.tensors)

    def _flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(int(self.random.integers(1, 5)) if changed else 0):
            changed[int(self.random.integers(len(changed)))] = int(self.random.integers(256))
        return bytes(changed)

    def _tree(self, tree: str) -> str:
        """Well-formed JSON that means something else."""
        names = (
            "Envelope",
            "ReplyEnvelope",
            "SiteFacts",
            "os.system",
            "Trained",
            "Evaluated",
            "Study",
            "",
            "__import__",
        )
        choice = self.random.integers(5)
        if choice == 0:
            return tree.replace('"$class": "', f'"$class": "{self._pick(names)}', 1)
        if choice == 1:
            return "[" * 100_000 + "]" * 100_000
        if choice == 2:
            return tree.replace(
                '{"$tensor": "0"}', json.dumps(self._pick(({"$tensor": "7777"}, {"$array": "0"}, None, [])))
            )
        if choice == 3:
            return tree.replace('"$tuple"', '"$dict"')
        return json.dumps({"$class": self._pick(names), "fields": {}})
