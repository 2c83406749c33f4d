"""Flower's grid as a channel: sends values as records, fetches answers one by one and decodes them within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedsift.core.text import short
from fedsift.transports.flower.records import MESSAGE_TYPE, from_records, size_of_records, tensors_record, to_records
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
        except Exception as error:  # the sender may have written anything
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


# Incoming answers
# ------------------------------------------------------------------------------


FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two looks for pieces that have not come: at first, and when they have not for long."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for an answer that cannot be read."""

    reason: str
    again: bool = False
    """Whether asking again may help: it was lost rather than unreadable."""


@dataclass
class PartialAnswer:
    """An answer whose pieces are being fetched."""

    message_id: str
    pieces: list[str]
    here: dict[str, bytes] = field(default_factory=dict)
    due: float = 0.0
    pause: float = FIRST_PAUSE

    def missing(self) -> list[str]:
        return [piece for piece in self.pieces if piece not in self.here]


class AnswerMailbox:
    """Fetches the answers that have arrived, without waiting."""

    def __init__(self, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        self.grid, self._clock = grid, clock
        self._arriving: dict[str, PartialAnswer] = {}
        self._one_by_one = False
        """Since a look for several failed: from then on one that fails is one site's."""

    def look(self, ids: set[str]) -> list[tuple[str, Message | Unreadable]]:
        """What has come to these messages, with the message's id as the SuperLink knows it, not as the answer says."""
        if not isinstance(self.grid, HttpGrid):
            answers = self.grid.pull_messages(list(ids))
            return [
                (message.metadata.reply_to_message_id, message)
                for message in answers
                if message.metadata.reply_to_message_id in ids
            ]
        found = self._announced(self.grid, ids)
        for id in sorted(ids & self._arriving.keys()):
            answer = self._fetched(self.grid, self._arriving[id])
            if answer is not None:
                del self._arriving[id]
                found.append((id, answer))
        return found

    def under_way(self, ids: Iterable[str]) -> set[str]:
        """Messages of these whose answer was announced and is not here in full."""
        return set(ids) & self._arriving.keys()

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody waits for these answers any more."""
        for id in ids:
            self._arriving.pop(id, None)

    def _announced(self, grid: HttpGrid, ids: set[str]) -> list[tuple[str, Message | Unreadable]]:
        """Ask which answers are there. Those of a question that fails are gone, so these sites are asked again."""
        asked = sorted(ids - self._arriving.keys())
        lots = [[id] for id in asked] if self._one_by_one else [asked]
        failed: list[tuple[str, Message | Unreadable]] = []
        for lot in filter(None, lots):
            try:
                answer = _client(grid).PullMessages(PullAppMessagesRequest(message_ids=lot))
                pairs = list(zip(answer.messages_list, answer.message_object_trees, strict=True))
            except Exception as error:
                _raise_connection_errors(error)
                self._one_by_one = True
                reason = _words("the answer could not be fetched", error)
                failed.extend((id, Unreadable(reason, again=True)) for id in lot)
                continue
            for message, tree in pairs:
                id = message.metadata.reply_to_message_id
                if id in ids:
                    pieces = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
                    self._arriving[id] = PartialAnswer(message.metadata.message_id, pieces)
        return failed

    def _fetched(self, grid: HttpGrid, one: PartialAnswer) -> Message | Unreadable | None:
        """The answer; None while pieces of it are missing."""
        if self._clock() < one.due:
            return None
        try:
            self._fetch_pieces(grid, one)
            if one.missing():
                one.due, one.pause = self._clock() + one.pause, min(2 * one.pause, LONGEST_PAUSE)
                return None
            _client(grid).ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=one.message_id)
            )
            answer = inflate_object_from_contents(one.message_id, one.here)
            if not isinstance(answer, Message):
                raise TypeError(f"it is a {type(answer).__name__}")
            return answer
        except ObjectPullError as error:  # the SuperLink gave up on a sender that stopped in the middle
            return Unreadable(_words("the answer did not arrive in full", error), again=True)
        except Exception as error:  # the sender may have sent anything
            _raise_connection_errors(error)
            return Unreadable(_words("the answer cannot be put together", error))

    def _fetch_pieces(self, grid: HttpGrid, one: PartialAnswer) -> None:
        """Fetch what is there; the first piece that is not ends this look."""
        pull = make_pull_object_fn_protobuf(_client(grid).PullObject, grid.node, grid.run.run_id)

        def fetch(piece: str) -> bytes:
            try:
                one.here[piece] = pull(piece)
            except ObjectUnavailableError:
                raise _NotYet from None
            return one.here[piece]

        with suppress(_NotYet):
            pull_objects(one.missing(), fetch)


class _NotYet(Exception):
    """A piece is not there; `pull_objects` would wait for it at Flower's own word for that."""


def _client(grid: HttpGrid) -> Any:
    return grid._runtime_client


def _raise_connection_errors(error: Exception) -> None:
    """Raise what is no site's doing: the SuperLink is gone, or says that this run is over."""
    if isinstance(error, httpx.TransportError):
        raise error
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
        raise error


def _words(what: str, error: Exception) -> str:
    return short(f"{what}: {type(error).__name__}: {error}")
