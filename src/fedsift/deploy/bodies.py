"""What a door reads in the bodies of Flower's calls; Flower itself is imported when the first one comes."""

from __future__ import annotations

import hashlib

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedsift.deploy.limits import Refused


def pinned(content: bytes, pins: frozenset[str]) -> bytes:
    """The answer that brings an app, written anew from what was checked."""
    from flwr.proto.fab_pb2 import GetFabResponse

    app = GetFabResponse()
    app.ParseFromString(content)
    found = hashlib.sha256(app.fab.content).hexdigest()
    if found not in pins:
        raise Refused(
            403,
            f"the app sha256:{found} is not pinned in this site's site.toml, so it does not run here. If you read "
            f"and trust it: fedsift flower pin sha256:{found} site.toml",
        )
    return bytes(app.SerializeToString())


def session_of(body: bytes) -> str:
    """The session that a piece says it belongs to; none for what is no piece, which the other side will say."""
    from flwr.proto.message_pb2 import PushObjectRequest

    try:
        return str(PushObjectRequest.FromString(body).session_id)
    except DecodeError:
        return ""


def node_id(content: bytes) -> int:
    from flwr.proto.fleet_pb2 import ActivateNodeResponse

    return int(ActivateNodeResponse.FromString(content).node_id)


def holds_message(content: bytes) -> bool:
    """Whether an answer to a poll brings a message."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    answer = PullMessagesResponse()
    answer.ParseFromString(content)
    return len(answer.messages_list) > 0
