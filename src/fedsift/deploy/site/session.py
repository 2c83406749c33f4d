"""Runs a site: its SuperNode, the process that holds its data, and its gateway to the network."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.core.errors import ConfigError, RunError
from fedsift.core.files import make_files_private, private_folder, safe_name, write_private
from fedsift.core.loopback import host_of
from fedsift.core.process import exclusive
from fedsift.core.text import argument
from fedsift.deploy.certificates import client_context, greet, server_context, temporary_certificate, words_of
from fedsift.deploy.flower_commands import SiteProcess, ended, existing, node_of, site_command
from fedsift.deploy.gateway.limits import KeyLimits
from fedsift.deploy.gateway.listener import GatewayServer, bind
from fedsift.deploy.gateway.proxy import Gateway
from fedsift.deploy.site.confinement import of_node, report
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.temporary import new_socket
from fedsift.deploy.waiting import Say, Starting, meanwhile

# A site's node from one life to the next
# ------------------------------------------------------------------------------

LAST_NODE = "node"
DEACTIVATE = "/v1/fleet/deactivate-node"
FORM = {"content-type": "application/protobuf", "accept": "application/protobuf"}


def only_one(home: Path) -> AbstractContextManager[None]:
    """The home of a site's node for one program at a time."""
    words = f"this site runs already, with its files in '{home}': end that program first, or name another --home"
    return exclusive(private_folder(home) / "lock", ConfigError(words))


def note_node(home: Path, node: int) -> None:
    """Write down the number under which this site's node was let in."""
    write_private(home / LAST_NODE, str(node).encode("ascii"))


def announce_end(home: Path, superlink: str, ca: Path, key: Path) -> bool:
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


AGAIN_AFTER = 10.0
"""Seconds before a node that ended is started again."""
STRAIGHT_THROUGH = KeyLimits(hold_seconds=0.0, message_bytes=4 * 2**30)
"""The coordinator's gateway holds polls open and sets the size of messages; here they are only counted.

Of what comes in, `largest_answer` of site.toml sets the size.
"""


def flower_home(site_file: Path) -> Path:
    """Where Flower's own files of this site are, by its name: two site files in a folder share nothing."""
    head = read_head(site_file)
    return head.path.parent / ".flower" / safe_name(head.name)


@dataclass(frozen=True)
class NodeSession:
    """The outcome of one session of the site's node."""

    code: int
    joined: bool
    """Whether the coordinator had let it in."""
    too_early: bool = False
    """Whether it was not let in because its last life was not given up yet."""


def attend(
    site_file: Path,
    superlink: str,
    *,
    ca: Path | None,
    key: Path | None,
    home: Path,
    say: Say,
    rest: Callable[[float], None] = time.sleep,
) -> int:
    """Run node, gateway and worker until a signal comes, or until the coordinator does not let the node in.

    A node that had joined and ended is started again: a SuperLink without a database forgets its nodes when it is
    restarted, and theirs end themselves. So is one that came too early: a site that lost power and is back within a
    minute finds its old node still counted as present. Returns the exit code.
    """
    make_files_private()
    if ca is None or key is None:
        raise ConfigError("a site needs --ca and --key, or --insecure for a trial on 127.0.0.1")
    host_of(superlink)
    existing(key, "the site's private key")
    site_file = site_file.resolve()
    with only_one(home):
        return _attend(site_file, superlink, ca, key, home, say, rest)


def _attend(
    site_file: Path, superlink: str, ca: Path, key: Path, home: Path, say: Say, rest: Callable[[float], None]
) -> int:
    worker = SiteProcess(site_file, new_socket())
    try:
        with meanwhile("reading this site's data", say):
            worker.start()
        trouble = greet(superlink, ca)
        say(f"the line to {superlink} stands" if trouble is None else f"{trouble} It is tried again and again")
        if not read_head(site_file).apps:
            say(f"no app is pinned, so none will run: fedsift flower pin sha256:... {argument(site_file.name)}")
        while True:
            if announce_end(home, superlink, ca, key):
                say("this site's last node had not taken leave; that is done")
            visit = _visit(site_file, superlink, ca, key, worker, home, say)
            if visit.too_early:
                say(
                    "the coordinator has not noticed yet that this site's last node ended, which takes a minute; or "
                    "another program uses this site's key"
                )
            elif not visit.joined:
                return visit.code
            say(f"the node is started again in {AGAIN_AFTER:.0f} s")
            rest(AGAIN_AFTER)
    finally:
        worker.stop()


def _visit(
    site_file: Path, superlink: str, ca: Path, key: Path, worker: SiteProcess, home: Path, say: Say
) -> NodeSession:
    own = temporary_certificate(home / "own")
    head = read_head(site_file)
    egress = head.egress
    gateway = Gateway(
        f"https://{superlink}",
        httpx.AsyncClient(verify=client_context(ca), timeout=60.0, trust_env=False),
        pins=lambda: read_head(site_file).apps,
        egress=egress,
        limits=replace(STRAIGHT_THROUGH, answer_bytes=head.largest_answer),
        on_activated=lambda node: note_node(home, node),
        explain=lambda error: words_of(error, superlink, ca),
        notify=say,
    )
    with bind("127.0.0.1", 0) as listener:
        inside = f"127.0.0.1:{listener.getsockname()[1]}"
        place = worker.place
        command = site_command(inside, insecure=False, ca=own.certificate, key=key, worker=place)
        worker.start()
        rules = of_node(home, place, [own.certificate, key], head.guarded)
        report(rules, head.guarded, say)
        with node_of(command, home, place, rules) as node:
            say(f"what leaves is written to {egress}")

            starts = Starting(
                "Flower's SuperNode starts and asks to be let in",
                f"the coordinator has let site '{head.name}' in; it answers from here on",
                say,
            )

            def alive() -> bool:
                worker.keep(say)
                starts.look(lambda: gateway.joined)
                if gateway.heartbeat_stopped:
                    say("Flower's SuperNode has stopped its heartbeats, so the coordinator takes this site for absent")
                    return False
                return node.poll() is None and not gateway.clock_trouble

            GatewayServer(gateway, listener, server_context(own), alive=alive, notify=say).run()
            if gateway.clock_trouble:
                raise ConfigError(f"the coordinator refuses this site: {gateway.clock_trouble}")
            quit_itself = node.poll() is not None
            code = ended(node, "the SuperNode", say)
            if quit_itself and not gateway.joined:
                code = code or RunError.exit_code  # Flower ends with 0 when it is not let in
            return NodeSession(code, gateway.joined, gateway.too_early)
