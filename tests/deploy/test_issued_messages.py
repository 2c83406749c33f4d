"""A listed site that is hostile answers what it was handed, in its own name, and does nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers

from fedsift.deploy.coordinator.roster import RosterEntry
from fedsift.deploy.gateway.limits import (
    CONFIRM,
    MESSAGES_REMEMBERED,
    MOST_ANNOUNCEMENTS,
    MOST_PIECES,
    PULL_OBJECT,
    PUSH,
)
from fedsift.deploy.gateway.proxy import PULL
from tests.deploy.test_gateway import Key, Setting, handing

QUESTION, ANSWER, PIECE = "1" * 64, "2" * 64, "3" * 64


class Flower:
    """Flower's own state and handlers behind a gateway, with one run and two nodes: `mine` and `other`."""

    def __init__(self, folder: Path) -> None:
        self.state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore(verify=False))
        self.mine, self.other = (self.state.create_node("", "", key, 0) for key in (b"a", b"b"))
        for node in (self.mine, self.other):
            self.state.activate_node(node, 60.0)
        self.run = self.state.create_run("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        task = self.state.task_store[self.state._get_run(self.run).primary_task_id or 0]
        task.status.status = "running"
        self.setting = Setting(folder, self._answered)

    def _answered(self, path: str) -> bytes:
        body, store = self.setting.upstream.calls[-1][2], self.state.object_store
        if path == PULL:
            asked = PullMessagesRequest.FromString(body)
            return bytes(fleet_handlers.pull_messages(asked, self.state, store).SerializeToString())
        if path == PUSH:
            pushed = PushMessagesRequest.FromString(body)
            return bytes(fleet_handlers.push_messages(pushed, self.state).SerializeToString())
        return b""

    def message(self, **about: Any) -> PushMessagesRequest:
        """A message in `mine`'s request; by default an order to `other` in the SuperLink's name."""
        told = {"message_id": ANSWER, "src_node_id": 1, "dst_node_id": self.other, **about}
        return PushMessagesRequest(
            node=Node(node_id=self.mine),
            messages_list=[
                Message(
                    metadata=Metadata(
                        run_id=self.run, ttl=1e6, message_type="query.call", created_at=time.time(), **told
                    ),
                    content={},
                )
            ],
            message_object_trees=[ObjectTree(object_id=told["message_id"])],
        )

    def ask(self, node: int) -> None:
        """The coordinator's own question to a node, which does not come through the gateway."""
        question = self.message(message_id=QUESTION, dst_node_id=node)
        fleet_handlers.push_messages(question, self.state)

    def push(self, request: PushMessagesRequest, headers: dict[str, str] | None = None) -> tuple[int, str]:
        answer = self.setting.post(PUSH, headers, request.SerializeToString())
        return answer.status_code, answer.text

    def poll(self, node: int, headers: dict[str, str] | None = None) -> None:
        request = PullMessagesRequest(node=Node(node_id=node))
        assert self.setting.post(PULL, headers, request.SerializeToString()).status_code == 200


@pytest.fixture
def flower(tmp_path: Path) -> Flower:
    return Flower(tmp_path)


def test_a_site_gives_no_orders_in_the_coordinators_name(flower: Flower) -> None:
    status, words = flower.push(flower.message())
    assert (status, words) == (403, "a site answers messages that were issued to it, and sends none of its own")
    assert not flower.state.message_ins_store  # Flower itself would have kept it, and handed it to the other


def test_a_site_stores_no_messages_that_nobody_fetches(flower: Flower) -> None:
    for number in range(3):
        assert flower.push(flower.message(message_id=f"{number:064x}", dst_node_id=1))[0] == 403
    assert not flower.state.message_ins_store and not len(flower.state.object_store)


def test_a_site_answers_what_it_was_handed(flower: Flower) -> None:
    flower.ask(flower.mine)
    answer = flower.message(src_node_id=flower.mine, dst_node_id=1, reply_to_message_id=QUESTION)
    assert flower.push(answer)[0] == 403  # not handed to it yet
    flower.poll(flower.mine)
    assert flower.push(answer)[0] == 200
    assert list(flower.state.message_res_store) == [ANSWER]


def test_a_site_does_not_answer_for_another(flower: Flower) -> None:
    other = Key()
    flower.setting.list(RosterEntry("north", flower.setting.key.mark, 100), RosterEntry("south", other.mark, 100))
    flower.ask(flower.other)
    flower.poll(flower.other, other.headers())
    forged = flower.message(src_node_id=flower.other, dst_node_id=1, reply_to_message_id=QUESTION)
    assert flower.push(forged)[0] == 403
    assert flower.push(forged, other.headers())[0] == 403  # its key, another's number in the request
    assert not flower.state.message_res_store


def test_the_list_of_pieces_is_bounded_and_that_of_the_answer(flower: Flower) -> None:
    flower.ask(flower.mine)
    flower.poll(flower.mine)
    about = {"src_node_id": flower.mine, "dst_node_id": 1, "reply_to_message_id": QUESTION}
    long, other, two = flower.message(**about), flower.message(**about), flower.message(**about)
    long.message_object_trees[0].children.extend(ObjectTree(object_id=PIECE) for _ in range(MOST_PIECES))
    assert flower.push(long) == (413, f"an answer may have {MOST_PIECES} pieces")
    other.message_object_trees[0].object_id = PIECE
    assert flower.push(other)[0] == 403
    two.messages_list.append(two.messages_list[0])
    assert flower.push(two)[0] == 403
    assert flower.setting.post(PUSH, body=b"\xff").status_code == 400
    assert flower.setting.post(PUSH, body=b"x" * (2**20 + 1)).status_code == 413


def test_an_answer_is_announced_so_often_and_no_more(flower: Flower) -> None:
    flower.ask(flower.mine)
    flower.poll(flower.mine)
    answer = flower.message(src_node_id=flower.mine, dst_node_id=1, reply_to_message_id=QUESTION)
    statuses = [flower.push(answer)[0] for _ in range(MOST_ANNOUNCEMENTS + 1)]
    assert statuses == [200] * MOST_ANNOUNCEMENTS + [403]


def test_a_site_fetches_and_confirms_what_it_was_handed(tmp_path: Path) -> None:
    """Who may ask for any piece by its hash can try what another site answered."""
    setting = Setting(tmp_path, lambda path: handing(QUESTION, PIECE) if path == PULL else b"")
    other = Key()
    setting.list(RosterEntry("north", setting.key.mark, 100), RosterEntry("south", other.mark, 100))
    piece = PullObjectRequest(object_id=PIECE).SerializeToString()
    confirmed = ConfirmMessageReceivedRequest(message_object_id=QUESTION).SerializeToString()
    assert [setting.post(PULL_OBJECT, body=piece).status_code] == [403]
    setting.post(PULL)
    assert setting.post(PULL_OBJECT, body=piece).status_code == 200
    assert setting.post(CONFIRM, body=confirmed).status_code == 200
    assert setting.post(PULL_OBJECT, other.headers(), piece).status_code == 403
    assert setting.post(CONFIRM, other.headers(), confirmed).status_code == 403


def test_messages_that_were_handed_out_are_forgotten_in_their_turn(tmp_path: Path) -> None:
    numbers = iter(range(MESSAGES_REMEMBERED + 1))
    setting = Setting(tmp_path, lambda path: handing(f"{next(numbers):064x}") if path == PULL else b"")
    for _ in range(MESSAGES_REMEMBERED + 1):
        setting.post(PULL)
    first, last = (
        ConfirmMessageReceivedRequest(message_object_id=f"{which:064x}").SerializeToString()
        for which in (0, MESSAGES_REMEMBERED)
    )
    assert setting.post(CONFIRM, body=first).status_code == 403
    assert setting.post(CONFIRM, body=last).status_code == 200
