"""Flower's grid as a channel: values become records, answers are fetched one by one and decoded within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsift.transports.flower.mailbox import AnswerMailbox, Unreadable
from fedsift.transports.flower.records import (
    MESSAGE_TYPE,
    from_records,
    size_of_records,
    tensors_record,
    to_records,
)
from fedsift.transports.remote.channel import Channel, ReceivedAnswer, most_bytes
from fedsift.transports.remote.encoding import Encoder, decode

COMES_BACK = frozenset({3, 4, 5, 8})
"""Flower's error codes of messages and nodes that got lost or crashed; others will not mend by asking again."""
CLOCKS_DIFFER = 3600.0
"""Flower drops a message after its lifetime by each machine's own clock, so lifetimes are an hour longer."""


class FlowerChannel(Channel):
    """Nodes of a Flower grid, simulated or real."""

    def __init__(self, grid: Grid, note: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        """`note`: texts that every message carries."""
        self.grid, self.note = grid, dict(note)
        self.mailbox = AnswerMailbox(grid, clock)
        self._asked: dict[str, int] = {}
        """Bytes of each message that may still be answered."""

    def nodes(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def send(self, messages: Sequence[tuple[int, Any]], lifetime: float = 0.0) -> list[str | None]:
        records = RecordsOfOneExchange()  # anew each time: what sites have seen is theirs to abuse
        return [self._push(node, records.of(value, self.note), lifetime) for node, value in messages]

    def _push(self, node: int, content: RecordDict, lifetime: float) -> str | None:
        """Hand one message to Flower; its id, or None if Flower did not take it."""
        message = Message(content, dst_node_id=node, message_type=MESSAGE_TYPE, ttl=lifetime + CLOCKS_DIFFER)
        ids = [id for id in self.grid.push_messages([message]) if id]
        if not ids:
            return None
        self._asked[ids[0]] = size_of_records(content)
        return ids[0]

    def collect(self, ids: set[str]) -> list[tuple[str, ReceivedAnswer]]:
        if not ids:
            return []
        return [(id, self._read(id, message)) for id, message in self.mailbox.look(ids)]

    def arriving(self, ids: Iterable[str]) -> set[str]:
        return self.mailbox.under_way(ids)

    def forget(self, ids: Iterable[str]) -> None:
        ids = list(ids)
        self.mailbox.forget(ids)
        for id in ids:
            self._asked.pop(id, None)

    def _read(self, id: str, message: Message | Unreadable) -> ReceivedAnswer:
        """The value in a message, or the words for an error. One far longer than what was asked is not decoded."""
        asked = self._asked.pop(id, 0)
        if isinstance(message, Unreadable):
            return ReceivedAnswer(failure=message.reason, lost=message.again)
        if message.has_error():
            code, reason = message.error.code, message.error.reason or "no reason given"
            return ReceivedAnswer(failure=f"Flower reports error {code}: {reason}", lost=code in COMES_BACK)
        try:
            size, most = size_of_records(message.content), most_bytes(asked)
            if size > most:
                return ReceivedAnswer(failure=f"the reply has {size} bytes, {most} are the most for what was asked")
            return ReceivedAnswer(decode(from_records(message.content)))
        except Exception as error:  # whoever sent it may have written anything
            return ReceivedAnswer(failure=f"the reply cannot be read: {error}")


class RecordsOfOneExchange:
    """Records of several values; tensors that they share become one record, which Flower uploads once."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._known: list[tuple[bytes, ArrayRecord]] = []

    def of(self, value: Any, note: Mapping[str, str]) -> RecordDict:
        message = self._encoder.encode(value, **note)
        return to_records(message, self._record(message.tensors) if message.tensors else None)

    def _record(self, tensors: bytes) -> ArrayRecord:
        for known, record in self._known:
            if known is tensors:
                return record
        record = tensors_record(tensors)
        self._known.append((tensors, record))
        return record
