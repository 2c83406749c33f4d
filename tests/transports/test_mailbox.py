"""What one site sends in pieces that fit nowhere, or never sends, costs no other site its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from fedsift.transports.flower.channel import LONGEST_PAUSE, AnswerMailbox, FlowerChannel, Unreadable


def piece(kind: str, children: Iterable[str], body: bytes) -> bytes:
    """An object in the form that Flower stores: any that its own check lets pass."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
    validate_object_content(content)
    return content


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Client:
    """The SuperLink as the coordinator's program sees it: every answer is handed out once."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ObjectTree]] = {}
        self.store: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.asked: list[list[str]] = []
        self.pieces_asked = 0
        self.fails: Any = lambda ids: None

    def add(self, id: str, root: bytes, *children: bytes, says: str | None = None) -> None:
        for content in (root, *children):
            self.store[name_of(content)] = content
        leaves = [ObjectTree(object_id=name_of(child)) for child in children]
        self.answers[id] = (
            id if says is None else says,
            ObjectTree(object_id=name_of(root), children=leaves),
        )

    def add_honest(self, id: str, reply_to: str | None = None) -> None:
        content = RecordDict({"said": ConfigRecord({"by": id})})
        about = Metadata(1, id, 7, 1, reply_to or id, "", 1.0, 60.0, "query.call")
        message = make_message(metadata=about, content=content)
        for name, part in get_all_nested_objects(message).items():
            self.store[name] = part.deflate()
        self.answers[id] = (id, get_object_tree(message))

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        ids = list(request.message_ids)
        self.asked.append(ids)
        ready = [self.answers.pop(id) for id in ids if id in self.answers]
        self.fails(ids)
        return PullAppMessagesResponse(
            messages_list=[
                ProtoMessage(metadata=ProtoMetadata(message_id=tree.object_id, reply_to_message_id=says))
                for says, tree in ready
            ],
            message_object_trees=[tree for _, tree in ready],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:
        self.pieces_asked += 1
        content = self.store.get(request.object_id)
        if content is None:
            return PullObjectResponse(object_found=False)
        return PullObjectResponse(object_found=True, object_available=content != b"", object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


class StubbedGrid(HttpGrid):
    """Flower's own grid, with another client inside."""

    def __init__(self, client: Client) -> None:
        self._run, self.node, self._stub = Run.create_empty(1), Node(node_id=1), client

    @property
    def _runtime_client(self) -> Any:
        return self._stub


@pytest.fixture
def client() -> Client:
    return Client()


JUNK = piece("RecordDict", [], b"\xff\xfe junk")
LONE = piece("RecordDict", ["0" * 64], b"{}")
MALFORMED = {
    "junk": (piece("Message", [name_of(JUNK)], b"\xff\xff"), JUNK),
    "a child that is missing": (piece("Message", [name_of(LONE)], b""), LONE),
    "no message at all": (piece("ConfigRecord", [], b""),),
}


@pytest.mark.parametrize("pieces", MALFORMED.values(), ids=MALFORMED)
def test_pieces_that_flower_stores_and_cannot_put_together_cost_their_sender_the_answer(
    client: Client, pieces: tuple[bytes, ...]
) -> None:
    client.add("hostile", *pieces)
    client.add_honest("honest")
    both = {"hostile", "honest"}
    found = dict(FlowerChannel(StubbedGrid(client), {}).collect(both))
    assert found["hostile"].failure.startswith("the answer cannot be put together: ")
    assert not found["hostile"].lost
    assert found["honest"].failure.startswith("the reply cannot be read: ")  # it is here, and is no message of ours


def test_an_answer_that_is_announced_and_not_sent_is_not_waited_for(client: Client) -> None:
    now = [0.0]
    client.add_honest("slow")
    client.add_honest("quick")
    last = next(name for name, content in client.store.items() if b"slow" in content)
    content, client.store[last] = client.store[last], b""
    mailbox = AnswerMailbox(StubbedGrid(client), clock=lambda: now[0])
    assert [id for id, _ in mailbox.look({"slow", "quick"})] == ["quick"]
    assert mailbox.under_way(["slow", "other"]) == {"slow"}
    before = client.pieces_asked
    assert mailbox.look({"slow"}) == []  # no sooner than the pause
    assert client.pieces_asked == before
    for _ in range(10):
        now[0] += LONGEST_PAUSE
        assert mailbox.look({"slow"}) == []
    client.store[last] = content
    now[0] += LONGEST_PAUSE
    [(id, answer)] = mailbox.look({"slow"})
    assert (id, isinstance(answer, Message)) == ("slow", True)
    assert len(client.confirmed) == 2
    assert mailbox.under_way(["slow"]) == set()


def test_an_answer_whose_sender_flower_gave_up_is_asked_for_again(client: Client) -> None:
    client.add("gone", *MALFORMED["junk"])
    client.store.clear()
    [(_, answer)] = AnswerMailbox(StubbedGrid(client)).look({"gone"})
    assert isinstance(answer, Unreadable)
    assert answer.again
    assert "did not arrive in full" in answer.reason


def test_answers_nobody_waits_for_any_more_are_not_fetched(client: Client) -> None:
    client.add("late", *MALFORMED["junk"])
    client.store = dict.fromkeys(client.store, b"")
    mailbox = AnswerMailbox(StubbedGrid(client))
    assert mailbox.look({"late"}) == []
    mailbox.forget(["late"])
    assert mailbox.under_way(["late"]) == set()


def test_an_answer_counts_for_the_message_that_the_superlink_names(client: Client) -> None:
    client.add_honest("mine", reply_to="another's")  # what the answer says of itself is its sender's own word
    client.add("unasked", *MALFORMED["junk"], says="")  # a message that answers nothing
    found = AnswerMailbox(StubbedGrid(client)).look({"mine", "another's", "unasked"})
    assert [id for id, _ in found] == ["mine"]


def test_when_a_look_for_several_fails_each_is_looked_for_by_itself(client: Client) -> None:
    client.add_honest("north")

    def fails(ids: list[str]) -> None:
        if "hostile" in ids:
            raise ValueError("a tree too deep")

    client.fails = fails
    mailbox = AnswerMailbox(StubbedGrid(client))
    first = dict(mailbox.look({"hostile", "north"}))
    assert all(
        isinstance(answer, Unreadable) and answer.again for answer in first.values()
    )  # the SuperLink gave north's away: it is asked again
    client.add_honest("north again")
    second = dict(mailbox.look({"hostile", "north again"}))
    assert isinstance(second["north again"], Message)
    assert second["hostile"] == Unreadable("the answer could not be fetched: ValueError: a tree too deep", again=True)
    assert client.asked == [["hostile", "north"], ["hostile"], ["north again"]]


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("the SuperLink is gone"),
        httpx.HTTPStatusError("over", request=httpx.Request("POST", "http://x"), response=httpx.Response(403)),
    ],
)
def test_a_line_that_is_gone_is_no_sites_doing(client: Client, error: Exception) -> None:
    def fails(ids: list[str]) -> None:
        raise error

    client.fails = fails
    with pytest.raises(type(error)):
        AnswerMailbox(StubbedGrid(client)).look({"north"})
