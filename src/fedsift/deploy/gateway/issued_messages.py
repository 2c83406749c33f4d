"""What a key was handed, and so may answer, confirm and fetch.

Flower checks that a node's number belongs to its key, and nothing of the messages in a request: whoever may push can
push an order in the SuperLink's name to another node, an answer in another's name, any number of messages that nobody
fetches, and a list of pieces without end. The door sees every message that is handed out. So it lets a key answer what
that key was handed, once announced in so many words, and fetch and confirm nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedsift.deploy.gateway.limits import MESSAGES_REMEMBERED, RequestRefused

MOST_PIECES = 2000
"""Of one answer: the largest message has some fifty pieces of 5 MB, and six more that hold them together."""
LARGEST_ANNOUNCEMENT = 2**20
"""Bytes of an announcement, which names pieces and holds none: each takes some seventy."""
MOST_ANNOUNCEMENTS = 50
"""Of the answer to one message: a node that does not hear of its success announces it again."""
PULL_OBJECT, CONFIRM = "/v1/fleet/pull-object", "/v1/fleet/confirm-message-received"
PUSH = "/v1/fleet/push-messages"


@dataclass
class IssuedMessage:
    """A message that was handed out."""

    pieces: frozenset[str]
    announced: int = 0


@dataclass
class IssuedMessages:
    """Messages by key, the latest last."""

    _of: dict[str, dict[str, IssuedMessage]] = field(default_factory=dict)

    def note(self, mark: str, content: bytes) -> None:
        """Remember what the SuperLink's answer to a poll hands to this key."""
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        answer = PullMessagesResponse.FromString(content)
        known = self._of.setdefault(mark, {})
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=False):
            known[message.metadata.message_id] = IssuedMessage(frozenset(_pieces(tree)))
        for oldest in list(known)[:-MESSAGES_REMEMBERED]:
            del known[oldest]

    def check(self, mark: str, path: str, body: bytes) -> None:
        """Refuse what this key has no business with; other calls than these are Flower's to judge."""
        try:
            if path == PUSH:
                self._check_answer(mark, body)
            elif path == CONFIRM:
                self._check_confirmed(mark, body)
            elif path == PULL_OBJECT:
                self._check_fetched(mark, body)
        except DecodeError:
            raise RequestRefused(400, "this is none of Flower's requests") from None

    def _check_answer(self, mark: str, body: bytes) -> None:
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        if len(body) > LARGEST_ANNOUNCEMENT:
            raise RequestRefused(413, f"an announcement may have {LARGEST_ANNOUNCEMENT} bytes")
        asked = PushMessagesRequest.FromString(body)
        if len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
            raise RequestRefused(403, "a site pushes one answer at a time, with one list of its pieces")
        about, tree = asked.messages_list[0].metadata, asked.message_object_trees[0]
        parcel = self._of.get(mark, {}).get(about.reply_to_message_id)
        if parcel is None:
            raise RequestRefused(403, "a site answers messages that it was handed, and sends none of its own")
        if about.src_node_id != asked.node.node_id or about.dst_node_id != SUPERLINK_NODE_ID:
            raise RequestRefused(403, "a site answers in its own name, and the coordinator alone")
        if tree.object_id != about.message_id:
            raise RequestRefused(403, "the pieces that a site announces must be those of its answer")
        if sum(1 for _ in _pieces(tree)) > MOST_PIECES:
            raise RequestRefused(413, f"an answer may have {MOST_PIECES} pieces")
        parcel.announced += 1
        if parcel.announced > MOST_ANNOUNCEMENTS:
            raise RequestRefused(403, f"this answer was announced {MOST_ANNOUNCEMENTS} times already")

    def _check_confirmed(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        if ConfirmMessageReceivedRequest.FromString(body).message_object_id not in self._of.get(mark, {}):
            raise RequestRefused(403, "a site confirms messages that it was handed")

    def _check_fetched(self, mark: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import PullObjectRequest

        wanted = PullObjectRequest.FromString(body).object_id
        if not any(wanted in parcel.pieces for parcel in reversed(self._of.get(mark, {}).values())):
            raise RequestRefused(403, "a site fetches pieces of messages that it was handed")


def _pieces(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node.object_id
        waiting.extend(node.children)
