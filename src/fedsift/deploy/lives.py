"""A site's node from one life to the next.

Flower counts a node as present until it has been silent for a minute, and does not let it in again before. A site that
lost power and is back sooner therefore signs off for its last life itself: the number of that node lies in the site's
home, and whoever holds the home's lock knows that no other program of this site runs.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.contract.files import write_private
from fedsift.deploy.certificates import client_context
from fedsift.deploy.private import alone

LAST_NODE = "node"
DEACTIVATE = "/v1/fleet/deactivate-node"
FORM = {"content-type": "application/protobuf", "accept": "application/protobuf"}


def only_one(home: Path) -> AbstractContextManager[None]:
    """The home of a site's node for one program at a time."""
    return alone(
        home / "lock",
        f"this site runs already, with its files in '{home}': end that program first, or name another --home",
    )


def note_node(home: Path, node: int) -> None:
    """Write down the number under which this site's node was let in."""
    write_private(home / LAST_NODE, str(node).encode("ascii"))


def sign_off(home: Path, superlink: str, ca: Path, key: Path) -> bool:
    """Tell the coordinator that this site's last node has ended, if there was one; whether it took note.

    Nothing depends on it: without it the site is let in a minute later.
    """
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    try:
        node = int((home / LAST_NODE).read_text("ascii"))
        (home / LAST_NODE).unlink()
        body = DeactivateNodeRequest(node_id=node).SerializeToString()
        with httpx.Client(verify=client_context(ca), timeout=10.0, trust_env=False) as line:
            headers = {**FORM, **signature(key)}
            return line.post(f"https://{superlink}{DEACTIVATE}", content=body, headers=headers).is_success
    except (OSError, ValueError, httpx.HTTPError):
        return False


def signature(key: Path) -> dict[str, str]:
    """A site's key and this moment, signed with it: what Flower asks of a node's requests."""
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("no key of an elliptic curve")
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public = private.public_key().public_bytes(serialization.Encoding.PEM, spki)
    stamp = datetime.now(UTC).isoformat()
    signed = private.sign(stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": b64encode(public).decode(),
        "flwr-signature": b64encode(signed).decode(),
        "flwr-timestamp": stamp,
    }
